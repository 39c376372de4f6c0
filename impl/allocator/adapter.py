"""The PyTorch implementation behind the gate's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch

from slotproof.impl.adapter import Adapter, Hit
from slotproof.impl.allocator.kv_cache_manager import KVCacheManager
from slotproof.impl.allocator.managers.single_type import RequestBlocks
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.ledger import Entry, Status
from slotproof.impl.protocol import Allocate, Config, Snapshot, lora_name

_STATUS = {
    Status.WAITING: RequestStatus.WAITING,
    Status.LOADING: RequestStatus.WAITING_FOR_REMOTE_KVS,
    Status.RUNNING: RequestStatus.RUNNING,
    Status.PREEMPTED: RequestStatus.PREEMPTED,
}


class TorchAllocator(Adapter):
    """`Allocator` over our `KVCacheManager`.

    Args:
        config: Sizes and policy.
        device: Where the block tables live: "cpu" or "cuda".
        batched: Make a plain decode a batch of one.

    Raises:
        AllocatorError: a size of `config` is too small.
    """

    def __init__(self, config: Config, device: torch.device | str = "cpu", *, batched: bool = False) -> None:
        super().__init__(config)
        self.manager = KVCacheManager(config, device)
        self._groups = self.manager.coordinator.single_type_managers
        self._block_sizes = [group.block_size for group in self._groups]
        self._batched = batched

    def add(self, entry: Entry) -> None:
        """Raises AllocatorError for a token that is not an integer of 64 bits."""
        entry.own = Request(
            str(entry.number),
            entry.tokens,
            block_size=self._block_sizes if self.config.enable_caching else None,
            cache_salt=str(entry.salt) if entry.salt else None,
            lora=(lora_name(entry.lora), str(entry.lora)) if entry.lora else None,
        )

    def find(self, entry: Entry) -> Hit:
        hit, num_tokens = self.manager.get_computed_blocks(_request(entry))
        return Hit(tuple(chain.from_iterable(hit)), num_tokens, hit)

    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        request = _request(entry)
        if self._batched and entry.status is Status.RUNNING and call == Allocate(call.request, 1):
            slots = self.manager.allocate_slots_batch(self.manager.decode_batch([request]))
            return tuple(slots.block_ids) if slots.num_granted else None
        new_blocks = self.manager.allocate_slots(
            request,
            call.new,
            hit.num_tokens,
            hit.own,
            num_lookahead_tokens=call.lookahead,
            num_external_computed_tokens=call.external,
            delay_cache_blocks=call.delay_cache,
            full_sequence_must_fit=call.must_fit,
            reserved_blocks=call.reserved,
            has_scheduled_reqs=call.has_scheduled,
            skip_zeroing_group_ids=range(len(self._groups)) if call.skip_zeroing else (),
        )
        return None if new_blocks is None else tuple(chain.from_iterable(new_blocks))

    def publish(self, entry: Entry, num_tokens: int) -> None:
        self.manager.cache_blocks(_request(entry), num_tokens)

    def release(self, entry: Entry) -> None:
        self.manager.remove_skipped_blocks(str(entry.number), entry.settled)

    def free(self, entry: Entry) -> None:
        self.manager.free(_request(entry))

    def evict(self, blocks: tuple[int, ...]) -> None:
        self.manager.evict_blocks(blocks)

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def take_new_block_ids(self) -> tuple[int, ...]:
        return tuple(self.manager.take_new_block_ids())

    def snapshot(self) -> Snapshot:
        """The state now, from the host: the pool, and the block tables that it is the authority on."""
        pool = self.manager.block_pool
        return Snapshot(
            free_queue=tuple(pool.free_queue),
            ref_cnt=(0, *pool.ref_cnt[1:]),
            hashes=tuple(pool.block_hash),
            tables={row: tuple(held.blocks) for _, row, held in self._tables() if held.blocks},
            usage=self.manager.usage,
            to_zero=tuple([block for group in self._groups for block in group.new_block_ids]),
            copies=pool.copies(),
        )

    def _tables(self) -> Iterator[tuple[int, int, RequestBlocks]]:
        """Every block table: its group, its row as the protocol has it, and what it holds."""
        for g, group in enumerate(self._groups):
            for request, held in group.req_to_blocks.items():
                yield g, int(request) * len(self._groups) + g, held

    def lookup(self, request: int) -> int:
        """Tokens that the request would find in the prefix cache; nothing changes."""
        return self.find(self.ledger.entries[request]).num_tokens

    def block_ids(self, request: int) -> tuple[tuple[int, ...], ...]:
        """The request's block table in each group, empty if it holds no blocks."""
        return tuple([tuple(blocks) for blocks in self.manager.get_block_ids(str(request))])

    def remaining_blocks(self, request: int, num_extra_tokens: int) -> int:
        """Blocks that the request still needs for all its tokens and `num_extra_tokens` more slots, as
        admission counts them."""
        known = _request(self.ledger.entries[request])
        return self.manager.coordinator.get_num_blocks_to_allocate(
            known.request_id,
            min(known.num_tokens, self.config.max_model_len) + num_extra_tokens,
            self.manager.empty_kv_cache_blocks,
            known.num_computed_tokens,
            apply_admission_cap=True,
        )

    def device_tables(self) -> dict[int, tuple[int, ...]]:
        """Commit, then read `Snapshot.tables` from the device instead. Waits for the device: for tests."""
        tensors = [tensor.cpu() for tensor in self.manager.commit()]
        return {
            row: tuple(tensors[g][held.row, : len(held.blocks)].tolist())
            for g, row, held in self._tables()
            if held.blocks
        }


def _request(entry: Entry) -> Request:
    """The manager's request, as the ledger has it now."""
    request: Request = entry.own
    if request.num_tokens < len(entry.tokens):
        request.append_output_token_ids(entry.tokens[request.num_tokens :])
    request.status = _STATUS[entry.status]
    request.num_computed_tokens = entry.computed
    request.num_in_flight_tokens = entry.in_flight
    return request


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


for _factory in (torch_allocator, batched):
    _factory.has_groups = True  # type: ignore[attr-defined]
