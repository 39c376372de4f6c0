"""A pool's methods on any contents of small pools; and broken ones, which are told in numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotproof.impl.allocator.block_pool import BlockPool
from slotproof.impl.allocator.free_queue import FreeQueue
from slotproof.proofs.conform.pool_conform import (
    CONFORMS,
    DIFFERS,
    METHODS,
    UNKNOWN,
    UNSUPPORTED,
    conform_method,
)
from slotproof.proofs.conform.pools import calls, contents
from slotproof.proofs.conform.targets.torch_pool import TorchPool

SECONDS = 60


def prepend_turned(self: FreeQueue, blocks: Any) -> None:
    self._front.extend(blocks)
    self.num_free_blocks += len(blocks)


def evict_hit_only(self: BlockPool, blocks: Any) -> None:
    for block in blocks:
        if (block_hash := self.block_hash[block]) is not None:
            self.block_hash[block] = None
            self._cached.pop(block_hash, None)


def release_at_one(self: BlockPool, ordered_blocks: Any) -> None:
    for block in ordered_blocks:
        left = self.ref_cnt[block] - 1
        self.ref_cnt[block] = left
        if left <= 1:
            self.free_queue.append_n([block])


def touch_leaves_queued(self: BlockPool, blocks: Any) -> None:
    for block in blocks:
        self.ref_cnt[block] += 1


def reset_always(self: BlockPool) -> bool:
    self.block_hash = [None] * self.num_blocks
    self._cached.clear()
    self._duplicates.clear()
    return True


def uncounted_take(self: BlockPool, num_blocks: int) -> list[int]:
    return self.free_queue.popleft_n(num_blocks)


def latest_is_hit(self: BlockPool, blocks: Any, block_hashes: Any) -> None:
    for block, block_hash in zip(blocks, block_hashes, strict=True):
        self.block_hash[block] = block_hash
        self._cached[block_hash] = block


BROKEN = [
    (FreeQueue, "prepend_n", prepend_turned, "free_blocks"),
    (BlockPool, "_evict", evict_hit_only, "evict_blocks"),
    (BlockPool, "release", release_at_one, "free_blocks"),
    (BlockPool, "touch", touch_leaves_queued, "touch"),
    (BlockPool, "reset_prefix_cache", reset_always, "reset_prefix_cache"),
    (BlockPool, "get_new_blocks", uncounted_take, "get_new_blocks"),
    (BlockPool, "cache_full_blocks", latest_is_hit, "cache_full_blocks"),
]


@pytest.mark.parametrize("method", METHODS)
def test_ours_conforms(method: str) -> None:
    finding = conform_method(TorchPool(), method, 1, SECONDS)
    assert (finding.verdict, finding.what) == (CONFORMS, "")
    assert finding.paths >= finding.pools > 3


@pytest.mark.parametrize(("owner", "name", "other", "method"), BROKEN, ids=[name for _, name, _, _ in BROKEN])
def test_a_broken_method_differs_in_numbers(
    owner: type, name: str, other: Callable[..., Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, other)
    finding = conform_method(TorchPool(), method, 2, SECONDS)
    assert finding.verdict == DIFFERS
    assert f": {method}(" in finding.what


def test_every_pool_is_looked_at_once() -> None:
    for size, lists in ((0, 1), (1, 2), (2, 6), (3, 26)):
        found = list(contents(size))
        assert len(found) == len(set(found)) == lists * (size + 1)


def test_every_method_is_called() -> None:
    assert {call.name for held in contents(2) for call in calls(held)} == set(METHODS)


def test_what_is_not_followed_and_a_budget_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conform_method(TorchPool(), "touch", 2, 0.0).verdict == UNKNOWN
    monkeypatch.setattr(BlockPool, "release", lambda self, blocks: [range(self.ref_cnt[b]) for b in blocks])
    assert conform_method(TorchPool(), "free_blocks", 1, SECONDS).verdict == UNSUPPORTED


@pytest.mark.vllm
@pytest.mark.parametrize("method", METHODS)
def test_vllm_conforms(method: str) -> None:
    from slotproof.proofs.conform.targets.vllm_pool import VllmPool

    finding = conform_method(VllmPool(), method, 2, SECONDS)
    assert (finding.verdict, finding.what) == (CONFORMS, "")


@pytest.mark.vllm
def test_vllm_without_its_order_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

    from slotproof.proofs.conform.targets.vllm_pool import VllmPool

    monkeypatch.setattr(FreeKVCacheBlockQueue, "prepend_n", FreeKVCacheBlockQueue.append_n)
    finding = conform_method(VllmPool(), "free_blocks", 2, SECONDS)
    assert finding.verdict == DIFFERS
