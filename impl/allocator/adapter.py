"""The PyTorch implementation behind the gate's protocol."""

from __future__ import annotations

from collections.abc import Callable

import torch

from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.kv_cache_manager import KVCacheManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)


class TorchAllocator:
    """`Allocator` over our `KVCacheManager`, with the caller's bookkeeping on its requests.

    Args:
        config: Sizes and policy.
        device: Where the block tables live: "cpu" or "cuda".
        batched: Make a plain decode a batch of one.

    Raises:
        AllocatorError: a size of `config` is too small.
    """

    def __init__(self, config: Config, device: torch.device | str = "cpu", *, batched: bool = False) -> None:
        self.manager = KVCacheManager(config, device)
        self._config = config
        self._batched = batched
        self._requests: dict[int, Request] = {}
        self._used_ids: set[int] = set()
        self._steps: dict[type[Call], Callable[..., Result]] = {
            AddRequest: self._add_request,
            Allocate: self._allocate,
            Execute: lambda _: Result(),
            Complete: self._complete,
            CacheBlocks: self._cache_blocks,
            RemoveSkipped: self._remove_skipped,
            Preempt: self._preempt,
            Finish: self._finish,
            EvictBlocks: self._evict_blocks,
            ResetPrefixCache: self._reset_prefix_cache,
            TakeNewBlockIds: self._take_new_block_ids,
        }

    def step(self, call: Call) -> Result:
        """Make one call. `hits` is what the lookup found, also when slots are then refused.

        Raises:
            AllocatorError: the caller's contract forbids the call; nothing has changed.
        """
        return self._steps[type(call)](call)

    def snapshot(self) -> Snapshot:
        """The state now, from the host: the pool, and the block tables that it is the authority on."""
        pool = self.manager.block_pool
        (group,) = self.manager.coordinator.single_type_managers
        return Snapshot(
            free_queue=tuple(pool.free_queue),
            ref_cnt=(0, *pool.ref_cnt[1:]),
            hashes=tuple(pool.block_hash),
            tables={int(request): tuple(held.blocks) for request, held in group.req_to_blocks.items()},
            usage=self.manager.usage,
            to_zero=tuple(group.new_block_ids),
        )

    def lookup(self, request: int) -> int:
        """Tokens that the request would find in the prefix cache; nothing changes."""
        return self.manager.get_computed_blocks(self._request(request))[1]

    def block_ids(self, request: int) -> tuple[int, ...]:
        """The request's block table, empty if it holds no blocks."""
        return tuple(self.manager.get_block_ids(str(request))[0])

    def remaining_blocks(self, request: int, num_extra_tokens: int) -> int:
        """Blocks that the request still needs for all its tokens and `num_extra_tokens` more slots, as
        admission counts them."""
        known = self._request(request)
        return self.manager.coordinator.get_num_blocks_to_allocate(
            known.request_id,
            min(known.num_tokens, self._config.max_model_len) + num_extra_tokens,
            self.manager.empty_kv_cache_blocks,
            known.num_computed_tokens,
            apply_admission_cap=True,
        )

    def device_tables(self) -> dict[int, tuple[int, ...]]:
        """Commit, then read `Snapshot.tables` from the device instead. Waits for the device: for tests."""
        (tensor,) = self.manager.commit()
        rows = tensor.cpu()
        (group,) = self.manager.coordinator.single_type_managers
        return {
            int(request): tuple(rows[held.row, : len(held.blocks)].tolist())
            for request, held in group.req_to_blocks.items()
        }

    def _request(self, request_id: int) -> Request:
        request = self._requests.get(request_id)
        if request is None:
            raise AllocatorError(f"request {request_id} is unknown: add it first")
        return request

    def _add_request(self, call: AddRequest) -> Result:
        if call.request in self._used_ids:
            raise AllocatorError(f"request {call.request} was added before: ids are never reused")
        if not 1 <= len(call.tokens) <= self._config.max_model_len:
            raise AllocatorError(
                f"request {call.request} has {len(call.tokens)} tokens: "
                f"1 to max_model_len {self._config.max_model_len} are possible"
            )
        self._requests[call.request] = Request(
            str(call.request),
            call.tokens,
            block_size=self._config.block_size if self._config.enable_caching else None,
            cache_salt=str(call.salt) if call.salt else None,
            lora_id=str(call.lora) if call.lora else None,
        )
        self._used_ids.add(call.request)
        return Result()

    def _allocate(self, call: Allocate) -> Result:
        request = self._request(call.request)
        computed = request.num_computed_tokens
        hit, hit_tokens = None, 0
        if request.status is RequestStatus.RUNNING:
            if call.new < 1 or call.external or call.delay_cache:
                raise _wrong(call, "it runs: ask for new tokens, and for nothing external")
            if computed + call.new > self._config.max_model_len:
                raise _wrong(call, f"{computed} computed + {call.new} new tokens exceed max_model_len")
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            raise _wrong(call, "it waits for its load: cache_blocks comes first")
        else:
            if computed == 0 and not call.skip_cache:
                hit, hit_tokens = self.manager.get_computed_blocks(request)
            total = computed + hit_tokens + call.external
            if call.delay_cache != (call.new == 0) or (call.delay_cache and call.external < 1):
                raise _wrong(call, "ask for new tokens, or for none with delay_cache and external ones")
            if total + max(call.new, 1) > request.num_tokens:
                raise _wrong(call, f"{total} computed + {call.new} new of {request.num_tokens} tokens")
        if self._batched and request.status is RequestStatus.RUNNING and call == Allocate(call.request, 1):
            return self._decode(request)
        new_blocks = self.manager.allocate_slots(
            request,
            call.new,
            hit_tokens,
            hit,
            num_lookahead_tokens=call.lookahead,
            num_external_computed_tokens=call.external,
            delay_cache_blocks=call.delay_cache,
            full_sequence_must_fit=call.must_fit,
            reserved_blocks=call.reserved,
            has_scheduled_reqs=call.has_scheduled,
            skip_zeroing_group_ids=(0,) if call.skip_zeroing else (),
        )
        hits = tuple(hit[0]) if hit else ()
        if new_blocks is None:
            return Result(granted=False, hits=hits)
        request.num_computed_tokens = computed + hit_tokens + call.external + call.new
        request.num_in_flight_tokens += call.new
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS if call.delay_cache else RequestStatus.RUNNING
        return Result(hits=hits, new_blocks=tuple(new_blocks[0]))

    def _decode(self, request: Request) -> Result:
        slots = self.manager.allocate_slots_batch(self.manager.decode_batch([request]))
        if slots.num_granted:
            request.num_computed_tokens += 1
            request.num_in_flight_tokens += 1
        return Result(granted=bool(slots.num_granted), new_blocks=tuple(slots.block_ids))

    def _complete(self, call: Complete) -> Result:
        request = self._running(call)
        computed, in_flight = request.num_computed_tokens, request.num_in_flight_tokens
        if not 1 <= call.processed <= in_flight:
            raise _wrong(call, f"{call.processed} tokens processed, {in_flight} in flight")
        if not 0 <= call.rejected <= call.processed:
            raise _wrong(call, f"{call.rejected} of {call.processed} processed tokens rejected")
        ran = computed - in_flight + call.processed
        if ran - call.rejected < min(ran, request.num_tokens):
            raise _wrong(
                call, f"{call.rejected} rejected: only drafts past {request.num_tokens} tokens can be"
            )
        settled = ran - call.rejected
        if call.sampled:
            limit = min(self._config.max_model_len, settled + 1)
            if request.num_tokens + len(call.sampled) > limit:
                raise _wrong(
                    call, f"{request.num_tokens} + {len(call.sampled)} sampled tokens exceed {limit}"
                )
            request.append_output_token_ids(call.sampled)
        request.num_computed_tokens = computed - call.rejected
        request.num_in_flight_tokens = in_flight - call.processed
        return Result()

    def _cache_blocks(self, call: CacheBlocks) -> Result:
        request = self._request(call.request)
        if call.tokens is not None:
            ran = request.num_computed_tokens - request.num_in_flight_tokens
            if request.status is not RequestStatus.RUNNING:
                raise _wrong(call, "it does not run")
            if not 1 <= call.tokens <= min(ran, request.num_tokens):
                raise _wrong(call, f"{ran} of its {request.num_tokens} tokens have run")
            self.manager.cache_blocks(request, call.tokens)
            return Result()
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            raise _wrong(call, "it waits for no load")
        self.manager.cache_blocks(request, request.num_computed_tokens)
        request.status = RequestStatus.WAITING
        return Result()

    def _remove_skipped(self, call: RemoveSkipped) -> Result:
        request = self._request(call.request)
        if not self.manager.coordinator.has_blocks(request.request_id):
            raise _wrong(call, "it has no block table")
        settled = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self.manager.remove_skipped_blocks(request.request_id, settled)
        return Result()

    def _preempt(self, call: Preempt) -> Result:
        request = self._running(call)
        self.manager.free(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.status = RequestStatus.PREEMPTED
        return Result()

    def _finish(self, call: Finish) -> Result:
        self.manager.free(self._request(call.request))
        del self._requests[call.request]
        return Result()

    def _evict_blocks(self, call: EvictBlocks) -> Result:
        self.manager.evict_blocks(call.blocks)
        return Result()

    def _reset_prefix_cache(self, call: ResetPrefixCache) -> Result:
        return Result(granted=self.manager.reset_prefix_cache())

    def _take_new_block_ids(self, call: TakeNewBlockIds) -> Result:
        return Result(new_blocks=tuple(self.manager.take_new_block_ids()))

    def _running(self, call: Complete | Preempt) -> Request:
        request = self._request(call.request)
        if request.status is not RequestStatus.RUNNING:
            raise _wrong(call, f"it does not run, it is {request.status.name}")
        return request


def _wrong(call: Allocate | Complete | CacheBlocks | RemoveSkipped | Preempt, why: str) -> AllocatorError:
    return AllocatorError(f"{type(call).__name__} of request {call.request}: {why}")


def torch_allocator(config: Config, device: torch.device | str = "cpu") -> TorchAllocator:
    """The factory: our implementation, its block tables on `device`.

    Raises:
        AllocatorError: a size of `config` is too small.
    """
    return TorchAllocator(config, device)


def batched(config: Config) -> TorchAllocator:
    """The factory: our implementation, with every plain decode made as a batch of one.

    Raises:
        AllocatorError: a size of `config` is too small.
    """
    return TorchAllocator(config, batched=True)
