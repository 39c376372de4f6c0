"""Real vLLM's managers, followed by the model while somebody else drives them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Complete, Config, Finish, Group, Preempt
from slotproof.impl.vllm.adapter import VllmAllocator
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, configurations, decode, model_config
from slotproof.proofs.watch.watching import Watching

pytestmark = pytest.mark.vllm
SMALL = Config(num_blocks=8, block_size=2, max_model_len=16)


@pytest.fixture
def watching() -> Iterator[Watching]:
    opened = Watching()
    yield opened
    opened.close()


def drive(config: Config, seed: int, calls: int) -> None:
    """Legal calls, drawn for the model, made of vLLM."""
    allocator, running, random = VllmAllocator(config), Running(**model_config(config)), Random(seed)
    for _ in range(calls):
        call = decode(running, random.getrandbits(8 * NUMBER_BYTES))
        name, fields = call_fields(call)
        running.step(name, **fields)
        allocator.step(call)


def test_whatever_a_caller_may_do_is_followed_and_agrees(watching: Watching) -> None:
    for index, config in enumerate(configurations(2, has_groups=True, has_more=True)):
        drive(config, index, 60)
    watching.close()
    summary = watching.summary
    assert [line for violation in watching.violations for line in violation.lines] == []
    assert (summary.managers, summary.several_groups) == (32, 8)
    assert not summary.never
    assert not summary.not_followed
    assert not summary.outside
    assert summary.calls > 1000
    assert summary.lookups > 100


def freed_from_the_front(manager: Any) -> None:
    pool = manager.block_pool
    original = pool.free_blocks
    pool.free_blocks = lambda blocks: original(list(blocks)[::-1])


def one_block_too_many(manager: Any) -> None:
    group = manager.coordinator.single_type_managers[0]
    original = group.allocate_new_blocks
    group.allocate_new_blocks = lambda name, n, main: original(name, n + 2, main)


def a_key_outlives_its_block(manager: Any) -> None:
    manager.block_pool._maybe_evict_cached_block = lambda block: False


@pytest.mark.parametrize("fault", [freed_from_the_front, one_block_too_many, a_key_outlives_its_block])
def test_a_planted_fault_is_a_violation_with_its_story(
    fault: Callable[[Any], None], watching: Watching
) -> None:
    allocator = VllmAllocator(SMALL)
    fault(allocator._manager)
    for r in range(3):
        allocator.step(AddRequest(r, tuple(range(10 * r, 10 * r + 7))))
        try:
            allocator.step(Allocate(r, 7))
        except AssertionError:
            break
        allocator.step(Finish(r))
    (violation,) = watching.violations
    story = list(violation.lines)
    assert any("the call:" in line for line in story)
    assert any("expected" in line and "got" in line for line in story)
    assert watching.summary.violations == 1


def test_what_others_write_is_told_and_no_violation(watching: Watching) -> None:
    allocator = VllmAllocator(SMALL)
    allocator.step(AddRequest(0, (1, 2, 3, 4, 5)))
    allocator.step(Allocate(0, 5))
    allocator._manager.block_pool.blocks[1].ref_cnt += 1
    allocator.step(Complete(0, 5))
    allocator.step(Allocate(0, 1))
    other = VllmAllocator(SMALL)
    other._manager.block_pool.get_new_blocks(1)
    watching.close()
    assert watching.violations == []
    assert dict(watching.summary.not_followed) == {
        "its pool or tables were written behind its back": 1,
        "BlockPool.get_new_blocks was called by none of the manager's methods": 1,
    }


def test_a_call_outside_the_contract_is_told_and_followed(watching: Watching) -> None:
    allocator = VllmAllocator(SMALL)
    allocator.step(AddRequest(0, (1, 2, 3)))
    request = allocator.ledger.entries[0].own
    manager = allocator._manager
    assert manager.allocate_slots(request, 5) is not None  # past its tokens, at once
    request.num_computed_tokens = 5
    request.append_output_token_ids([7, 8, 9])
    assert manager.allocate_slots(request, 1) is not None  # still WAITING, and has blocks: it runs
    manager.free(request)
    watching.close()
    assert watching.violations == []
    assert dict(watching.summary.outside) == {"prefill-stays-in-the-prompt": 1}
    assert watching.summary.calls == 3


def test_frees_that_wait_are_followed(watching: Watching) -> None:
    config = Config(
        num_blocks=16, block_size=2, max_model_len=16, groups=(Group(block_size=2, sliding_window=3),)
    )
    allocator = VllmAllocator(config)
    manager = allocator._manager
    for r in range(2):
        allocator.step(AddRequest(r, tuple(range(5 * r, 5 * r + 5))))
        allocator.step(Allocate(r, 5))
    request = allocator._request(allocator.ledger.entries[0])
    blocks = manager.pop_blocks_for_free(request)
    allocator.step(Complete(1, 5))
    allocator.step(Allocate(1, 1))
    manager.block_pool.free_blocks(reversed(blocks))
    allocator.step(Preempt(1))
    allocator.step(Allocate(1, 1))  # behind a hit of four tokens of its five
    watching.close()
    assert [line for violation in watching.violations for line in violation.lines] == []
    assert not watching.summary.not_followed
    assert watching.summary.calls == 10


def test_what_the_model_has_not_is_named(watching: Watching) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from slotproof.impl.vllm.parts import kv_cache_config

    KVCacheManager(kv_cache_config(SMALL), 16, 4, 4, dcp_world_size=2)
    assert dict(watching.summary.never) == {
        "a block is spread over several workers (context parallelism)": 1,
    }


@pytest.mark.slow
def test_a_call_costs_under_a_millisecond_in_a_pool_of_100_000_blocks(watching: Watching) -> None:
    config = Config(num_blocks=100_000, block_size=16, max_model_len=4096)
    allocator = VllmAllocator(config)
    for r in range(64):
        allocator.step(AddRequest(r, tuple(range(r * 1000, r * 1000 + 200))))
        allocator.step(Allocate(r, 200))
    calls, spent = 2000, 0.0
    for i in range(calls):
        allocator.step(Complete(i % 64, 200 if i < 64 else 1, sampled=(3,)))
        began = time.process_time()
        allocator.step(Allocate(i % 64, 1))
        spent += time.process_time() - began
    assert watching.violations == []
    assert watching.summary.calls >= calls
    print(f"{spent / calls * 1e3:.3f} ms a call")
    assert spent / calls < 1e-3
