"""Real vLLM 0.32.0 with a fault of the catalogue patched in: what a test of a fault must fail on.

Each patch changes what vLLM's classes do at one place, for as long as its context lasts, and is named after
the rule that it takes away. vLLM is imported when a patch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from slotproof.proofs.faults.catalogue import NAMED
from slotproof.proofs.faults.vllm_patches import (
    allocation,
    always,
    counting,
    extra_keys,
    freeing,
    hashing,
    held,
    pool,
    replaced,
    with_manager,
    with_request,
)


@contextmanager
def patched(name: str) -> Iterator[None]:
    """vLLM has the fault of this name or alias while the context lasts, in this process.

    Raises:
        KeyError: there is no such fault.
        ImportError: vLLM is not installed.
    """
    with ExitStack() as stack:
        for rule in NAMED[name].rules:
            stack.enter_context(PATCHES[rule]())
        yield


def _capped(capped: bool) -> Any:
    return counting(lambda original, self, asked: original(self, **{**asked, "apply_admission_cap": capped}))


@contextmanager
def _whole_prompt_pays_watermark() -> Iterator[None]:
    due = [0]

    def make(original: Any) -> Any:
        def allocate_slots(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            admission = request.status.name in ("WAITING", "PREEMPTED")
            pays = admission and options.get("has_scheduled_reqs", True)
            due[0] = self.watermark_blocks if pays else 0
            return original(self, request, *args, **options)

        return allocate_slots

    def count(original: Any, self: Any, asked: dict[str, Any]) -> int:
        needed: int = original(self, **asked)
        return needed - due[0] if asked.get("apply_admission_cap") else needed

    with allocation(make), counting(count):
        yield


def _watermark_spares_running() -> Any:
    from vllm.v1.request import RequestStatus

    return with_request(status=RequestStatus.WAITING)


def _release_before_count() -> Any:
    def make(original: Any) -> Any:
        def allocate_slots(self: Any, *args: Any, **options: Any) -> Any:
            later: list[Any] = []
            release = self.coordinator.remove_skipped_blocks
            with held(self.coordinator, remove_skipped_blocks=lambda *a, **o: later.append((a, o))):
                granted = original(self, *args, **options)
            if granted is not None:
                for positional, named in later:
                    release(*positional, **named)
            return granted

        return allocate_slots

    return allocation(make)


def _count_idle_hits() -> Any:
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

    return replaced(SingleTypeKVCacheManager, "_get_num_evictable_blocks", lambda _: lambda *blocks: 0)


def _count_hits_in_window_only() -> Any:
    def count(original: Any, self: Any, asked: dict[str, Any]) -> int:
        skipped = self.get_num_skipped_tokens(asked["total_computed_tokens"]) // self.block_size
        outside = asked["new_computed_blocks"][:skipped]
        needed: int = original(self, **asked)
        return needed + sum(1 for block in outside if block.ref_cnt == 0 and not block.is_null)

    return counting(count)


def _check_before_commit() -> Any:
    """Hits are adopted first. (Stage 0 then counts without them; external tokens are left out.)"""

    def make(original: Any) -> Any:
        def allocate_slots(
            self: Any, request: Any, new: int, hit_tokens: int = 0, hit: Any = None, **options: Any
        ) -> Any:
            hit_tokens = options.pop("num_new_computed_tokens", hit_tokens)
            hit = options.pop("new_computed_blocks", hit)
            if not hit_tokens:
                return original(self, request, new, **options)
            computed = request.num_computed_tokens + hit_tokens
            self.coordinator.allocate_new_computed_blocks(request.request_id, hit.blocks, computed, 0)
            with held(request, num_computed_tokens=computed):
                return original(self, request, new, **options)

        return allocate_slots

    return allocation(make)


def _adopt_all_before_external() -> Any:
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    def allocate_new_computed_blocks(self: Any, request_id: str, new_computed_blocks: Any, **of: Any) -> None:
        managers = self.single_type_managers
        if any(request_id in manager.num_cached_block for manager in managers):
            return
        tokens = of["num_local_computed_tokens"], of["num_external_computed_tokens"]
        for g, manager in enumerate(managers):
            manager.add_local_computed_blocks(request_id, new_computed_blocks[g], *tokens)
            if tokens[1] > 0:
                zeroed = g not in of["skip_zeroing_group_ids"]
                manager.allocate_external_computed_blocks(request_id, *tokens, zeroed)

    return replaced(
        KVCacheCoordinator, "allocate_new_computed_blocks", lambda _: allocate_new_computed_blocks
    )


def _touch_references() -> Any:
    def make(original: Any) -> Any:
        def touch(self: Any, blocks: Any) -> None:
            original(self, blocks)
            for block in blocks:
                block.ref_cnt -= 1

        return touch

    return pool("touch", make)


def _touch_leaves_queue() -> Any:
    def touch(self: Any, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    return pool("touch", lambda _: touch)


def _new_from_front() -> Any:
    def make(original: Any) -> Any:
        def get_new_blocks(self: Any, num_blocks: int) -> Any:
            queue = self.free_block_queue
            older = queue.popleft_n(max(0, queue.num_free_blocks - num_blocks))
            try:
                return original(self, num_blocks)
            finally:
                queue.prepend_n(older)

        return get_new_blocks

    return pool("get_new_blocks", make)


def _popping_evicts() -> Any:
    def make(original: Any) -> Any:
        def get_new_blocks(self: Any, num_blocks: int) -> Any:
            with held(self, enable_caching=False):
                return original(self, num_blocks)

        return get_new_blocks

    return pool("get_new_blocks", make)


def _hash_final_tokens_only() -> Any:
    return hashing(lambda self, request, scheduled, num_tokens: scheduled)


def _hash_full_blocks_only() -> Any:
    def reach(self: Any, request: Any, scheduled: int, num_tokens: int) -> int:
        size: int = self.scheduler_block_size
        return -(-num_tokens // size) * size

    return hashing(reach)


def _null_block_set_aside() -> Any:
    def make(original: Any) -> Any:
        def __init__(self: Any, *args: Any, **options: Any) -> None:
            original(self, *args, **options)
            self.free_block_queue.prepend_n([self.null_block])

        return __init__

    return pool("__init__", make)


def _free_tail_first() -> Any:
    return freeing(lambda original, self, blocks: original(self, reversed(blocks)))


def _unhashed_to_front() -> Any:
    def free(original: Any, self: Any, blocks: list[Any]) -> None:
        queue = self.free_block_queue
        with held(queue, prepend_n=queue.append_n):
            for block in blocks:
                original(self, [block])

    return freeing(free)


def _free_unreferenced_only() -> Any:
    def free(original: Any, self: Any, blocks: list[Any]) -> None:
        original(self, blocks)
        shared = [block for block in blocks if block.ref_cnt > 0 and not block.is_null]
        self.free_block_queue.append_n(shared)

    return freeing(free)


def _lookup_leaves_a_token() -> Any:
    from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator

    def make(original: Any) -> Any:
        return lambda self, block_hashes, limit: original(self, block_hashes, limit + 1)

    return replaced(UnitaryKVCacheCoordinator, "find_longest_cache_hit", make)


def _lookup_stops_at_miss() -> Any:
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    def find_longest_cache_hit(
        cls: Any, /, block_hashes: Any, max_length: int, block_pool: Any, **options: Any
    ) -> Any:
        size, groups = options["kv_cache_spec"].block_size, options["kv_cache_group_ids"]
        keys = islice(block_hashes, max_length // size)
        found = [block_pool.get_cached_block(key, groups) for key in keys]
        while found and not found[-1]:
            found.pop()
        hit = [blocks[0] if blocks else block_pool.null_block for blocks in found]
        return (hit,), len(hit) * size

    return replaced(
        FullAttentionManager, "find_longest_cache_hit", lambda _: classmethod(find_longest_cache_hit)
    )


def _lookup_run_covers_window() -> Any:
    from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

    def blocks(cls: Any, /, window_size: int, block_size: int, use_eagle: bool) -> int:
        return max(1, (window_size - 1) // block_size)

    return replaced(SlidingWindowManager, "_contiguous_blocks_for_hit", lambda _: classmethod(blocks))


def _retention_keeps_resumed() -> Any:
    from vllm.v1.core import kv_cache_coordinator

    return replaced(kv_cache_coordinator, "replay_boundaries", lambda _: lambda *args, **more: ())


def _lookup_drops_last_block() -> Any:
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

    def make(original: Any) -> Any:
        def find_longest_cache_hit(self: Any, *args: Any) -> Any:
            groups = self.attention_groups
            self.attention_groups = [group._replace(use_eagle=False) for group in groups]
            try:
                return original(self, *args)
            finally:
                self.attention_groups = groups

        return find_longest_cache_hit

    return replaced(HybridKVCacheCoordinator, "find_longest_cache_hit", make)


def _lookup_agrees_on_a_length() -> Any:
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

    def find_longest_cache_hit(self: Any, block_hashes: Any, max_cache_hit_length: int) -> Any:
        alone = [kind._replace(group_ids=[g]) for kind in self.attention_groups for g in kind.group_ids]
        with held(self, attention_groups=alone):  # groups of one kind are looked up together
            blocks, lengths = self.find_longest_cache_hit_per_group(block_hashes, max_cache_hit_length)
        return blocks, lengths[0], 0

    return replaced(HybridKVCacheCoordinator, "find_longest_cache_hit", lambda _: find_longest_cache_hit)


def _lookup_is_aligned() -> Any:
    from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator

    unit = property(lambda self: self.hash_block_size)
    return replaced(HybridKVCacheCoordinator, "_cache_hit_alignment_tokens", lambda _: unit)


def _key_covers_prefix() -> Any:
    from vllm.v1.core import kv_cache_utils

    def make(original: Any) -> Any:
        return lambda function, parent, tokens, extra=None: original(function, None, tokens, extra)

    return replaced(kv_cache_utils, "hash_block_tokens", make)


def _key_covers_salt() -> Any:
    return extra_keys(lambda keys: [key for key in keys if key[0] != "cache_salt"])


def _key_covers_group() -> Any:
    from vllm.v1.core import block_pool

    def make(original: Any) -> Any:
        return lambda block_hash, group_id: original(block_hash, 0)

    return replaced(block_pool, "make_block_hash_with_group_id", make)


def _key_tags_kinds() -> Any:
    return extra_keys(lambda keys: [key[-1] for key in keys])


def _key_covers_lora_path() -> Any:
    return extra_keys(lambda keys: [key[:2] if key[0] == "lora" else key for key in keys])


PATCHES: dict[str, Callable[[], Any]] = {
    "whole_prompt_must_fit": lambda: always(full_sequence_must_fit=False),
    "whole_prompt_pays_watermark": _whole_prompt_pays_watermark,
    "whole_prompt_caps_window": lambda: _capped(False),
    "watermark_on_admission": lambda: with_manager(watermark_blocks=0),
    "watermark_spares_running": _watermark_spares_running,
    "watermark_spares_lone_admission": lambda: always(has_scheduled_reqs=True),
    "release_before_count": _release_before_count,
    "release_processed_only": lambda: with_request(num_in_flight_tokens=0),
    "count_idle_hits": _count_idle_hits,
    "count_hits_in_window_only": _count_hits_in_window_only,
    "count_step_uncapped": lambda: _capped(True),
    "keep_reserved": lambda: always(reserved_blocks=0),
    "lookahead_gets_slots": lambda: always(num_lookahead_tokens=0),
    "slots_end_at_max_model_len": lambda: with_manager(max_model_len=1 << 30),
    "check_before_commit": _check_before_commit,
    "adopt_all_before_external": _adopt_all_before_external,
    "touch_references": _touch_references,
    "touch_leaves_queue": _touch_leaves_queue,
    "new_from_front": _new_from_front,
    "popping_evicts": _popping_evicts,
    "hash_final_tokens_only": _hash_final_tokens_only,
    "hash_full_blocks_only": _hash_full_blocks_only,
    "delay_cache_blocks": lambda: always(delay_cache_blocks=False),
    "retention_keeps_resumed": _retention_keeps_resumed,
    "null_block_set_aside": _null_block_set_aside,
    "free_tail_first": _free_tail_first,
    "unhashed_to_front": _unhashed_to_front,
    "free_unreferenced_only": _free_unreferenced_only,
    "lookup_leaves_a_token": _lookup_leaves_a_token,
    "lookup_stops_at_miss": _lookup_stops_at_miss,
    "lookup_run_covers_window": _lookup_run_covers_window,
    "lookup_drops_last_block": _lookup_drops_last_block,
    "lookup_agrees_on_a_length": _lookup_agrees_on_a_length,
    "lookup_is_aligned": _lookup_is_aligned,
    "key_covers_prefix": _key_covers_prefix,
    "key_covers_salt": _key_covers_salt,
    "key_covers_group": _key_covers_group,
    "key_tags_kinds": _key_tags_kinds,
    "key_covers_lora_path": _key_covers_lora_path,
}
"""By rule, the patch that takes it away."""
