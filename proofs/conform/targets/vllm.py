"""vLLM 0.32.0: `KVCacheManager.allocate_slots`, its coordinator and its group's manager, as they are.

The objects are made by vLLM's own constructors; then every count on them is any count. How they keep what the
model speaks of: a request's table is `req_to_blocks`, and `num_cached_block` how many of its entries need no
hash any more. A request is in the first from its first granted slots on (a refusal may leave an empty list
there), and in the second once it has adopted computed tokens or has had a block hashed: before that, none of
its entries is. A block is an object; the null block is the one with id 0.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import z3

from slotproof.impl.protocol import Allocator, Config
from slotproof.impl.vllm.adapter import new_manager, vllm_allocator
from slotproof.impl.vllm.parts import require_vllm
from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.follower import Follower
from slotproof.proofs.conform.numbers import BLOCK_SIZE, Number, Truth
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.conform.sequences import Items
from slotproof.proofs.conform.situation import Case, Situation
from slotproof.proofs.conform.targets.target import AnyRequest, Asked

IN_BOTH, UNHASHED = "", "none counted as hashed"
_CONFIG = Config(num_blocks=2, block_size=1, max_model_len=1)


class _Block:
    """Stands for `KVCacheBlock`."""

    __slots__ = ("_follower", "term")

    def __init__(self, follower: Follower, term: Any) -> None:
        object.__setattr__(self, "_follower", follower)
        object.__setattr__(self, "term", term)

    def like(self, term: Any) -> _Block:
        return _Block(self._follower, term)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Unsupported(f"a block's {name} is set outside the pool")

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"a block's {name} is looked at")

    def __eq__(self, other: object) -> Any:
        return Truth(self.term == other.term) if isinstance(other, _Block) else False

    __hash__ = None  # type: ignore[assignment]

    @property
    def block_id(self) -> Number:
        return Number(self.term)

    @property
    def ref_cnt(self) -> Number:
        return Number(self._follower.ref_cnt(self.term))

    @property
    def is_null(self) -> Truth:
        return Truth(self.term == 0)


class _Pool:
    """Stands for `BlockPool`."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.null_block = _Block(follower, z3.IntVal(0))
        self.hash_block_size = Number(BLOCK_SIZE)

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"the pool's {name} is asked for")

    def get_num_free_blocks(self) -> Number:
        return self._follower.num_free

    def get_new_blocks(self, num_blocks: Any) -> Items:
        taken = self._follower.take(num_blocks)
        return Items(taken.length, taken.at, self.null_block)

    def touch(self, blocks: Any) -> None:
        self._follower.touch(Items.of(blocks))

    def free_blocks(self, ordered_blocks: Any) -> None:
        self._follower.free(Items.of(ordered_blocks))

    def cache_full_blocks(
        self,
        request: Any,
        blocks: Items,
        num_cached_blocks: Any,
        num_full_blocks: Any,
        block_size: Any,
        kv_cache_group_id: int,
        block_mask: Any = None,
    ) -> None:
        follower = self._follower
        low, high = (
            n.term if isinstance(n, Number) else z3.IntVal(n) for n in (num_cached_blocks, num_full_blocks)
        )
        if block_mask is not None:
            follower.agree("blocks are left out that a hit needs", z3.Not(follower.situation.looks_back))
            follower.agree("as many are left out as there are", Items.of(block_mask).length == high - low)
            x = follower.path.integer("x")
            masked = Items.of(block_mask).at(x) == 0
            follower.agree("a block is left out", z3.Implies(z3.And(x >= 0, x < high - low), masked))
            return
        follower.agree("blocks are hashed by the block size", block_size.term == self.hash_block_size.term)
        hashes = request.block_hashes
        follower.agree("there are hashes for the blocks", high <= hashes.length)
        follower.publish(low, high, blocks.at, hashes.at)


class VllmTarget:
    """See `Target`. Raises ImportError if vLLM is not installed, or does not import."""

    name = "KVCacheManager.allocate_slots"
    cases: Sequence[Case] = tuple(
        Case(kind, caching, holds, name)
        for kind in (FULL, SLIDING_WINDOW)
        for caching in (True, False)
        for holds, name in ((False, ""), (True, IN_BOTH), (True, UNHASHED))
    )

    def __init__(self) -> None:
        require_vllm("vllm.v1.core.kv_cache_manager", "vllm.v1.request")
        from vllm.utils import math_utils
        from vllm.v1 import kv_cache_interface
        from vllm.v1.core import kv_cache_coordinator, kv_cache_manager, single_type_kv_cache_manager
        from vllm.v1.request import RequestStatus

        self.modules: Sequence[ModuleType] = (
            kv_cache_manager,
            kv_cache_coordinator,
            single_type_kv_cache_manager,
            kv_cache_interface,
            math_utils,
        )
        self._statuses = (RequestStatus.WAITING, RequestStatus.PREEMPTED, RequestStatus.RUNNING)
        self._managers = {
            (kind, caching): new_manager(
                Config(
                    num_blocks=2,
                    block_size=1,
                    max_model_len=1,
                    sliding_window=1 if kind == SLIDING_WINDOW else None,
                    enable_caching=caching,
                )
            )
            for kind in (FULL, SLIDING_WINDOW)
            for caching in (True, False)
        }

    def run(self, situation: Situation, path: Path, follower: Follower) -> None:
        s, r, case = situation.before, situation.request, situation.case
        pool = _Pool(follower)
        manager = self._manager(situation, pool)
        (group,) = manager.coordinator.single_type_managers
        request: Any = AnyRequest(situation, path, self._statuses, follower)
        request.shared_prefix_boundary = 0
        request.num_prompt_tokens = Number(z3.Int("num_prompt_tokens"))
        path.assume(request.num_prompt_tokens.term >= 1, request.num_prompt_tokens.term <= s.num_tokens(r))
        group.new_block_ids = Items(s.num_to_zero(0), lambda j: s.to_zero(0, j), Number(0))
        group.req_to_blocks = defaultdict(Items.empty)
        group.num_cached_block = {}
        if case.holds:
            table = Items(s.length(r), lambda i: situation.table(path, i), pool.null_block)
            group.req_to_blocks[request.request_id] = table
            if case.name == UNHASHED:
                path.assume(s.num_cached(r) == 0)
            else:
                group.num_cached_block[request.request_id] = Number(s.num_cached(r))
        asked = Asked(situation, path)
        hits = Items(asked.hits.length, asked.hits.at, pool.null_block)
        answer = manager.allocate_slots(
            request,
            asked.new,
            num_new_computed_tokens=asked.hit_tokens,
            new_computed_blocks=type(manager.empty_kv_cache_blocks)((hits,)) if asked.has_hits else None,
            num_lookahead_tokens=asked.lookahead,
            num_external_computed_tokens=asked.external,
            delay_cache_blocks=asked.delay_cache,
            full_sequence_must_fit=asked.must_fit,
            reserved_blocks=asked.reserved,
            has_scheduled_reqs=asked.has_scheduled,
            skip_zeroing_group_ids=asked.skipped_groups,
        )
        after = Items.of(group.req_to_blocks.get(request.request_id, ()))
        if answer is None:
            follower.refused(after)
            return
        cached = group.num_cached_block.get(request.request_id, 0)
        num_cached = cached.term if isinstance(cached, Number) else z3.IntVal(cached)
        follower.granted(after, num_cached, group.new_block_ids, Items.of(answer.blocks[0]))

    def _manager(self, situation: Situation, pool: _Pool) -> Any:
        """vLLM's manager, with counts that are any."""
        engine, case = situation.engine, situation.case
        manager = copy.copy(self._managers[case.kind, case.caching])
        manager.coordinator = coordinator = copy.copy(manager.coordinator)
        group = copy.copy(coordinator.single_type_managers[0])
        coordinator.single_type_managers = (group,)
        size = Number(BLOCK_SIZE)
        manager.block_pool = coordinator.block_pool = group.block_pool = pool
        manager.max_model_len = Number(engine.max_model_len)
        manager.watermark_blocks = Number(engine.watermark_blocks)
        manager.empty_kv_cache_blocks = type(manager.empty_kv_cache_blocks)((Items.empty(),))
        coordinator.scheduler_block_size = group.scheduler_block_size = size
        group.block_size = group.cache_hit_alignment_tokens = size
        group._null_block = pool.null_block
        group.kv_cache_spec = spec = copy.copy(group.kv_cache_spec)
        object.__setattr__(spec, "block_size", size)  # a frozen dataclass
        if case.kind == SLIDING_WINDOW:
            group.sliding_window = Number(engine.groups.window(0))
            object.__setattr__(spec, "sliding_window", group.sliding_window)
            group.max_admission_blocks_per_request = spec.max_admission_blocks_per_request(
                max_in_flight_tokens=Number(engine.max_in_flight_tokens), max_model_len=manager.max_model_len
            )
        return manager

    def allocator(self, config: Config) -> Allocator:
        return vllm_allocator(config)
