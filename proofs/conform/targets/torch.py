"""Ours: `KVCacheManager.allocate_slots` of `impl/allocator`, with everything below it but the pool.

Its constructors are followed too. Of a request, a table is what `RequestBlocks` holds, and `RowCounts` knows
how many of its entries are hashed; it is there from the first granted slots on. The device's tables are not
looked at.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import z3

from slotproof.impl.allocator import block_pool, kv_cache_coordinator, kv_cache_manager
from slotproof.impl.allocator.adapter import torch_allocator
from slotproof.impl.allocator.managers import full_attention, single_type, sliding_window
from slotproof.impl.allocator.request import RequestStatus
from slotproof.impl.protocol import Allocator, Config
from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.follower import Follower
from slotproof.proofs.conform.numbers import BLOCK_SIZE, Number
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.conform.sequences import Items
from slotproof.proofs.conform.situation import Case, Situation
from slotproof.proofs.conform.targets.target import AnyRequest, Asked
from slotproof.proofs.faults.vllm_patches import held

_STATUSES = (RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.RUNNING)
_NEVER_FREE = 1 << 60


class _Pool:
    """Stands for `BlockPool`."""

    def __init__(self, follower: Follower, path: Path) -> None:
        self._follower, self._path = follower, path
        self.ref_cnt = _References(follower)

    def get_num_free_blocks(self) -> Number:
        return self._follower.num_free

    def get_new_blocks(self, num_blocks: Any) -> Items:
        return self._follower.take(num_blocks)

    def touch(self, blocks: Any) -> None:
        self._follower.touch(Items.of(blocks))

    def release(self, ordered_blocks: Any) -> None:
        self._follower.free(Items.of(ordered_blocks))

    def cache_full_blocks(self, blocks: Items, block_hashes: Items) -> None:
        answer, r = self._follower.answer, self._follower.situation.request
        low = answer.committed.num_cached(r)
        self._follower.agree("blocks and hashes run parallel", blocks.length == block_hashes.length)
        self._follower.publish(
            low, low + blocks.length, lambda i: blocks.at(i - low), lambda i: block_hashes.at(i - low)
        )

    def uncached(self, blocks: Any) -> Items:
        """Those of a hit that are not in the cache: null blocks alone, as a lookup found it."""
        blocks = Items.of(blocks)
        x = self._path.integer("x")
        inside = z3.And(x >= 0, x < blocks.length)
        block = blocks.at(x)
        hashed = self._follower.situation.before.is_hashed(block)
        if self._path.entails(z3.Implies(inside, hashed)):
            return Items.empty()
        if not self._path.entails(z3.Implies(inside, z3.Or(block == block_pool.NULL_BLOCK, hashed))):
            raise Unsupported("hits that are neither hashed nor the null block")
        count = self._path.integer("uncached")
        self._path.assume(count >= 0)
        return Items(count, lambda i: z3.IntVal(0), Number(0))

    def check_ids(self, blocks: Any) -> None:
        pass


class _References:
    """Stands for the list of reference counts, by block."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def __getitem__(self, block: Number) -> Number:
        count = self._follower.ref_cnt(block.term)
        return Number(z3.If(block.term == block_pool.NULL_BLOCK, _NEVER_FREE, count))


class _RequestBlocks:
    """Stands for `RequestBlocks`, with a table of any length."""

    def __init__(self, blocks: Any, row: int) -> None:
        self.blocks, self.row = Items.of(blocks), row


class _Counts:
    """Stands for `RowCounts`: how many entries of the one table need no hash any more."""

    def __init__(self, num_cached: Any) -> None:
        self.num_cached_of_row = [num_cached]

    def add(self, row: int, num_blocks: Any, num_cached_blocks: Any) -> None:
        self.set_num_cached_blocks(row, num_cached_blocks)

    def set_num_blocks(self, row: int, num_blocks: Any) -> None:
        pass

    def set_num_cached_blocks(self, row: int, num_blocks: Any) -> None:
        self.num_cached_of_row[row] = num_blocks

    def set_gives_at(self, row: int, num_computed_tokens: Any) -> None:
        pass


class _BlockTable:
    """Stands for the device's tables: one row."""

    def __init__(self, *sizes: Any) -> None:
        pass

    def add_row(self, blocks: Any) -> int:
        return 0

    def mark(self, row: int, start: Any, end: Any) -> None:
        pass


class TorchTarget:
    """See `Target`."""

    name = "KVCacheManager.allocate_slots"
    modules = (kv_cache_manager, kv_cache_coordinator, single_type, full_attention, sliding_window)
    cases = tuple(
        Case(kind, caching, holds)
        for kind in (FULL, SLIDING_WINDOW)
        for caching in (True, False)
        for holds in (False, True)
    )

    def run(self, situation: Situation, path: Path, follower: Follower) -> None:
        s, r, case = situation.before, situation.request, situation.case
        pool = _Pool(follower, path)
        manager = self._manager(situation, pool)
        manager.empty_kv_cache_blocks = (Items.empty(),)
        group: Any = manager.coordinator.single_type_managers[0]
        counts: Any = _Counts(Number(s.num_cached(r)))
        group.counts = counts
        group.new_block_ids = Items(s.num_to_zero(0), lambda j: s.to_zero(0, j), Number(0))
        request: Any = AnyRequest(situation, path, _STATUSES, follower)
        request.block_keys = (request.block_hashes,)
        table = Items(s.length(r), lambda i: situation.table(path, i), Number(0))
        if case.holds:
            group.req_to_blocks[request.request_id] = _RequestBlocks(table, 0)
        asked = Asked(situation, path)
        with held(single_type, RequestBlocks=_RequestBlocks):
            answer = self._allocate(manager, request, asked)
        held_blocks: Any = group.req_to_blocks.get(request.request_id)
        after = Items.of(held_blocks.blocks if held_blocks else ())
        if answer is None:
            follower.refused(after)
        else:
            cached = counts.num_cached_of_row[0]
            num_cached = cached.term if isinstance(cached, Number) else z3.IntVal(cached)
            new: Any = group.new_block_ids
            follower.granted(after, num_cached, new, Items.of(answer[0]))

    @staticmethod
    def _allocate(manager: Any, request: Any, asked: Asked) -> Any:
        return manager.allocate_slots(
            request,
            asked.new,
            asked.hit_tokens,
            (asked.hits,) if asked.has_hits else None,
            num_lookahead_tokens=asked.lookahead,
            num_external_computed_tokens=asked.external,
            delay_cache_blocks=asked.delay_cache,
            full_sequence_must_fit=asked.must_fit,
            reserved_blocks=asked.reserved,
            has_scheduled_reqs=asked.has_scheduled,
            skip_zeroing_group_ids=asked.skipped_groups,
        )

    @staticmethod
    def _manager(situation: Situation, pool: _Pool) -> Any:
        engine, case = situation.engine, situation.case
        group = SimpleNamespace(
            block_size=Number(BLOCK_SIZE),
            sliding_window=Number(engine.groups.window(0)) if case.kind == SLIDING_WINDOW else None,
        )
        config: Any = SimpleNamespace(
            **vars(group),
            groups=(),
            all_groups=(group,),
            scheduler_block_size=group.block_size,
            num_blocks=Number(engine.num_blocks),
            max_model_len=Number(engine.max_model_len),
            enable_caching=case.caching,
            watermark_blocks=Number(engine.watermark_blocks),
            max_in_flight_tokens=Number(engine.max_in_flight_tokens),
        )
        with held(kv_cache_manager, BlockPool=lambda *sizes: pool, BlockTable=_BlockTable):
            return kv_cache_manager.KVCacheManager(config)

    def allocator(self, config: Config) -> Allocator:
        return torch_allocator(config)
