"""The manager: the calls a scheduler makes, `allocate_slots` above all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from slotproof.impl.allocator.block_pool import NULL_BLOCK, BlockPool
from slotproof.impl.allocator.block_table import BlockTable
from slotproof.impl.allocator.decode_batch import BatchSlots, DecodeBatch, allocate_full_attention
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.kv_cache_coordinator import (
    HybridKVCacheCoordinator,
    KVCacheBlocks,
    KVCacheCoordinator,
    UnitaryKVCacheCoordinator,
)
from slotproof.impl.allocator.managers.full_attention import FullAttentionManager
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.managers.sliding_window import SlidingWindowManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.protocol import Config, Group

_WAITING, _PREEMPTED = RequestStatus.WAITING, RequestStatus.PREEMPTED
_FIRST_ROWS, _FIRST_COLUMNS = 64, 256


class KVCacheManager:
    """One pool and its attention groups, with the names and meanings of vLLM 0.32.0.

    Args:
        config: Sizes and policy.
        device: Where the block tables live for attention to read: "cpu" or "cuda".

    Raises:
        AllocatorError: a size of `config` is too small.
    """

    def __init__(self, config: Config, device: torch.device | str = "cpu") -> None:
        _check_config(config)
        self.max_model_len = config.max_model_len
        self.enable_caching = config.enable_caching
        self.watermark_blocks = config.watermark_blocks
        self.block_pool = BlockPool(config.num_blocks, config.enable_caching)
        groups = config.all_groups
        self.scheduler_block_size = config.scheduler_block_size
        managers = tuple([self._group(config, device, g, group) for g, group in enumerate(groups)])
        self.coordinator: KVCacheCoordinator
        if len(managers) == 1:
            self.coordinator = UnitaryKVCacheCoordinator(self.block_pool, managers[0])
        else:
            self.coordinator = HybridKVCacheCoordinator(self.block_pool, managers, self.scheduler_block_size)
        self.empty_kv_cache_blocks: KVCacheBlocks = ((),) * len(managers)
        full = [manager for manager in managers if isinstance(manager, FullAttentionManager)]
        self._all_full = full if len(full) == len(managers) else []

    def _group(
        self, config: Config, device: torch.device | str, group_id: int, group: Group
    ) -> SingleTypeKVCacheManager:
        columns = min(-(-config.max_model_len // group.block_size), _FIRST_COLUMNS)
        block_table = BlockTable(device, _FIRST_ROWS, columns)
        if group.sliding_window is None:
            return FullAttentionManager(
                group.block_size,
                self.block_pool,
                block_table,
                config.max_model_len,
                group_id=group_id,
                scheduler_block_size=self.scheduler_block_size,
            )
        return SlidingWindowManager(
            group.block_size,
            self.block_pool,
            block_table,
            config.max_model_len,
            group_id=group_id,
            scheduler_block_size=self.scheduler_block_size,
            sliding_window=group.sliding_window,
            max_in_flight_tokens=config.max_in_flight_tokens,
        )

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0.0 to 1.0."""
        return self.block_pool.get_usage()

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Look a request up in the prefix cache; nothing changes.

        At most `num_tokens - 1` tokens can be hit: the last one is computed again for its logits.

        Returns:
            The blocks found, null where attention skips them, and the tokens they cover.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0
        return self.coordinator.find_longest_cache_hit(request.block_keys, request.num_tokens - 1)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Sequence[int] = (),
    ) -> KVCacheBlocks | None:
        """Give a request slots for its next tokens, or refuse.

        Checks come first, changes after them: a refusal changes nothing but for the releases of stage 1.

        Args:
            request: The request; `num_computed_tokens` does not yet count any of the tokens below.
            num_new_tokens: Tokens to be computed in this step, drafts included.
            num_new_computed_tokens: Tokens of the hit in the prefix cache.
            new_computed_blocks: The hit, from `get_computed_blocks`.
            num_lookahead_tokens: Further slots that a drafter writes to.
            num_external_computed_tokens: Tokens after the hit whose KV is loaded from elsewhere.
            delay_cache_blocks: Leave stage 4 to a later `cache_blocks`: the load has not arrived.
            full_sequence_must_fit: Refuse unless all of the request's tokens would fit (stage 0).
            reserved_blocks: Free blocks that stage 2 leaves to others.
            has_scheduled_reqs: Whether others run in this step, so that the watermark matters.
            skip_zeroing_group_ids: Groups whose external blocks are not to be zeroed: the load may precede.

        Returns:
            New blocks by group, in order, those for external tokens not among them; None for a refusal.

        Raises:
            AllocatorError: the caller is wrong; nothing has changed.
        """
        request_id = request.request_id
        coordinator, block_pool = self.coordinator, self.block_pool
        hit = self.empty_kv_cache_blocks if new_computed_blocks is None else new_computed_blocks
        num_local_computed_tokens = request.num_computed_tokens + num_new_computed_tokens
        total_computed_tokens = num_local_computed_tokens + num_external_computed_tokens
        # A request that runs and asks for its next tokens needs no further look.
        if (
            num_new_tokens < 1
            or num_lookahead_tokens < 0
            or reserved_blocks < 0
            or num_new_computed_tokens
            or num_external_computed_tokens
            or new_computed_blocks is not None
            or request.num_tokens > self.max_model_len
            or not coordinator.has_blocks(request_id)
        ):
            self._check_allocation(
                request,
                hit,
                new=num_new_tokens,
                new_computed=num_new_computed_tokens,
                lookahead=num_lookahead_tokens,
                external=num_external_computed_tokens,
                reserved=reserved_blocks,
            )
        watermark_blocks = 0
        if has_scheduled_reqs and (request.status is _WAITING or request.status is _PREEMPTED):
            watermark_blocks = self.watermark_blocks

        # Stage 0: does the whole request fit?
        if full_sequence_must_fit:
            num_blocks = coordinator.get_num_blocks_to_allocate(
                request_id,
                request.num_tokens,
                hit,
                total_computed_tokens,
                apply_admission_cap=True,
            )
            if num_blocks + watermark_blocks > block_pool.get_num_free_blocks():
                return None

        # Stage 1: give back what is no longer needed, were it only to need less in stage 2. Tokens in
        # flight still read their windows, and rejected ones fall back.
        coordinator.remove_skipped_blocks(request_id, total_computed_tokens - request.num_in_flight_tokens)

        # Stage 2: count.
        num_tokens_main_model = total_computed_tokens + num_new_tokens
        num_tokens_need_slot = min(num_tokens_main_model + num_lookahead_tokens, self.max_model_len)
        num_blocks = coordinator.get_num_blocks_to_allocate(
            request_id, num_tokens_need_slot, hit, total_computed_tokens
        )
        if num_blocks + watermark_blocks > block_pool.get_num_free_blocks() - reserved_blocks:
            return None

        # Stage 3: commit. The hit comes first, so that no new block evicts it.
        if num_new_computed_tokens or num_external_computed_tokens:
            coordinator.allocate_new_computed_blocks(
                request_id,
                hit,
                num_local_computed_tokens,
                num_external_computed_tokens,
                skip_zeroing_group_ids,
            )
        new_blocks = self.empty_kv_cache_blocks
        if num_blocks:
            new_blocks = coordinator.allocate_new_blocks(request_id, num_tokens_need_slot)

        # Stage 4: hashes, for final tokens only; drafts may yet be rejected.
        if self.enable_caching and not delay_cache_blocks:
            coordinator.cache_blocks(request, min(num_tokens_main_model, request.num_tokens))
        return new_blocks

    def decode_batch(self, requests: Sequence[Request] = ()) -> DecodeBatch:
        """Running requests as `allocate_slots_batch` takes them; build it once, and keep it up.

        Raises:
            AllocatorError: one does not run, or is named twice.
        """
        return DecodeBatch(self.coordinator.single_type_managers, requests)

    def allocate_slots_batch(self, batch: DecodeBatch) -> BatchSlots:
        """`allocate_slots(request, 1)` for the requests of a batch, in order, until one is refused.

        Raises:
            AllocatorError: a request was freed since it was added, or has no token left to compute; nothing
                has changed.
        """
        batch.check_held()
        if self._all_full:
            return allocate_full_attention(
                batch, self.block_pool, self._all_full, self.max_model_len, self.enable_caching
            )
        # What one gives back, the next may take: call by call, but only where a call does anything.
        due = batch.due(self.enable_caching)
        batch.check_length(due, self.max_model_len)
        indices: list[int] = []
        group_ids: list[int] = []
        block_ids: list[int] = []
        for index in due.tolist():
            new_blocks = self.allocate_slots(batch.requests[index], 1)
            if new_blocks is None:
                return BatchSlots(index, indices, block_ids, group_ids)
            for group_id, blocks in enumerate(new_blocks):
                indices.extend([index] * len(blocks))
                group_ids.extend([group_id] * len(blocks))
                block_ids.extend(blocks)
        return BatchSlots(len(batch), indices, block_ids, group_ids)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish the blocks that the request's first `num_computed_tokens` tokens fill.

        Raises:
            AllocatorError: the count is negative, or the request lacks the blocks or hashes.
        """
        if num_computed_tokens < 0:
            raise AllocatorError(f"request {request.request_id}: {num_computed_tokens} computed tokens")
        if self.enable_caching:
            self.coordinator.check_can_cache(request, num_computed_tokens)
            self.coordinator.cache_blocks(request, num_computed_tokens)

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Release the blocks that no later token looks at; nothing if the request holds none.

        Raises:
            AllocatorError: the count is negative.
        """
        if processed_computed_tokens < 0:
            raise AllocatorError(f"request {request_id}: {processed_computed_tokens} processed tokens")
        self.coordinator.remove_skipped_blocks(request_id, processed_computed_tokens)

    def free(self, request: Request) -> None:
        """Release all blocks of a request, its tail to be reused first; nothing if it holds none."""
        self.coordinator.free(request.request_id)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """The named blocks lose their hashes, and stay where they are.

        Raises:
            AllocatorError: an id is out of range.
        """
        self.block_pool.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, unless a request still holds a block; whether it was done."""
        return self.block_pool.reset_prefix_cache()

    def get_block_ids(self, request_id: str) -> KVCacheBlocks:
        """Copies of the request's block tables, by group; empty if it holds no blocks."""
        return self.coordinator.get_blocks(request_id)

    def take_new_block_ids(self) -> list[int]:
        """Drain the list of blocks that were taken from the pool and are to be zeroed."""
        return self.coordinator.take_new_block_ids()

    def commit(self) -> tuple[torch.Tensor, ...]:
        """End the scheduler's step: bring the device's block tables up to date with one packed copy.

        Returns:
            The block tables by group, int32 [requests, blocks], for work that is queued from now on.
        """
        return self.coordinator.commit()

    def _is_hashed(self, request: Request) -> bool:
        groups, keys = self.coordinator.single_type_managers, request.block_keys
        return len(keys) == len(groups) and all(
            len(keys[g]) == request.num_tokens // group.block_size for g, group in enumerate(groups)
        )

    def _check_allocation(self, request: Request, hit: KVCacheBlocks, **counts: int) -> None:
        """Raise AllocatorError for an `allocate_slots` that cannot be meant."""

        def wrong(why: str) -> AllocatorError:
            return AllocatorError(f"request {request.request_id}: {why}")

        for name, count in counts.items():
            if count < 0:
                raise wrong(f"{name} is {count}: counts must not be negative")
        adopted = counts["new_computed"] + counts["external"]
        if adopted + counts["new"] == 0:
            raise wrong("no new tokens and no computed ones to adopt: ask for at least one")
        if request.num_tokens > self.max_model_len:
            raise wrong(f"{request.num_tokens} tokens exceed max_model_len {self.max_model_len}")
        if self.enable_caching and not self._is_hashed(request):
            sizes = [group.block_size for group in self.coordinator.single_type_managers]
            raise wrong(f"its tokens are not hashed: create it with block_size {str(sizes)[1:-1]}")
        if adopted > request.num_tokens:
            raise wrong(f"{adopted} computed tokens to adopt, but it has {request.num_tokens} tokens")
        if self.coordinator.has_blocks(request.request_id):
            if adopted:
                raise wrong("holds blocks already: a hit and external tokens come with the first ones")
        elif request.num_computed_tokens:
            raise wrong(f"{request.num_computed_tokens} tokens are computed, but it holds no blocks")
        for blocks, group in zip(hit, self.coordinator.single_type_managers, strict=True):
            if len(blocks) * group.block_size != counts["new_computed"]:
                raise wrong(f"{len(blocks)} hit blocks for {counts['new_computed']} tokens: look it up again")
            uncached = self.block_pool.uncached(blocks)
            self.block_pool.check_ids(uncached)
            for block in uncached:
                if block != NULL_BLOCK:
                    raise wrong(f"hit block {block} is not cached any more: look it up again")


def _check_config(config: Config) -> None:
    for name, least in (
        ("num_blocks", 1),
        ("block_size", 1),
        ("max_model_len", 1),
        ("sliding_window", 1),
        ("watermark_blocks", 0),
        ("max_in_flight_tokens", 0),
    ):
        value = getattr(config, name)
        if value is not None and value < least:
            raise AllocatorError(f"{name} is {value}: it must be at least {least}")
    for g, group in enumerate(config.groups, 1):
        for name in ("block_size", "sliding_window"):
            value = getattr(group, name)
            if value is not None and value < 1:
                raise AllocatorError(f"group {g}: {name} is {value}: it must be at least 1")
