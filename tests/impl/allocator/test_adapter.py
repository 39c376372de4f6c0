"""`TorchAllocator`: any calls, legal or not, keep host, device and errors honest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotproof.impl.allocator.adapter import TorchAllocator, torch_allocator
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.ledger import IllegalCall
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)

CONFIG = Config(num_blocks=9, block_size=2, max_model_len=12)

requests = st.integers(0, 3)
small = st.integers(-1, 4)
sampled = st.lists(st.integers(0, 1), max_size=3).map(tuple)
tokens = st.lists(st.integers(0, 1), max_size=9).map(tuple)
calls = st.one_of(
    st.builds(AddRequest, requests, tokens, salt=st.integers(0, 1), lora=st.integers(0, 1)),
    st.builds(
        Allocate,
        requests,
        new=st.integers(-1, 7),
        lookahead=st.sampled_from((0, 0, 3, -1)),
        external=st.sampled_from((0, 0, 0, 2, 5, -1)),
        skip_cache=st.booleans(),
        delay_cache=st.booleans(),
        must_fit=st.booleans(),
        reserved=st.sampled_from((0, 0, 2, -1)),
        has_scheduled=st.booleans(),
        skip_zeroing=st.booleans(),
    ),
    st.builds(Allocate, requests, new=st.integers(1, 5)),
    st.builds(Complete, requests, small, rejected=small, sampled=sampled),
    st.builds(Complete, requests, st.integers(1, 4), sampled=st.just((1,))),
    st.builds(CacheBlocks, requests, st.none() | st.integers(-1, 6)),
    st.builds(RemoveSkipped, requests),
    st.builds(Preempt, requests),
    st.builds(Finish, requests),
    st.builds(EvictBlocks, st.lists(st.integers(-1, 9), max_size=3).map(tuple)),
    st.builds(ResetPrefixCache),
    st.builds(TakeNewBlockIds),
)


def caller_state(allocator: TorchAllocator) -> dict[int, tuple[object, ...]]:
    return {
        number: (e.status, e.computed, e.in_flight, tuple(e.tokens), tuple(e.own.block_hashes))
        for number, e in allocator.ledger.entries.items()
    }


def check_books(seen: Snapshot) -> None:
    references = Counter(block for table in seen.tables.values() for block in table if block)
    assert seen.ref_cnt == tuple(references[block] for block in range(len(seen.ref_cnt)))
    assert sorted(seen.free_queue) == [b for b in range(1, len(seen.ref_cnt)) if not seen.ref_cnt[b]]
    assert seen.hashes[0] is None
    assert seen.usage == pytest.approx(1 - len(seen.free_queue) / (len(seen.ref_cnt) - 1))


def drive(device: str, config: Config, sequence: list[Call]) -> None:
    allocator = torch_allocator(config, device)
    for number in range(2):
        allocator.step(AddRequest(number, (0, 1, 0, 1, 1)))
    for index, call in enumerate(sequence):
        before = allocator.snapshot(), caller_state(allocator)
        try:
            result, error = allocator.step(call), ""
        except IllegalCall as raised:
            result, error = None, str(raised)
        after = allocator.snapshot(), caller_state(allocator)
        if result is None:
            assert after == before, error
            assert "\n" not in error
        elif isinstance(call, Allocate) and not result.granted:
            assert after[1] == before[1]
            assert len(after[0].free_queue) >= len(before[0].free_queue)
        check_books(after[0])
        if index % 3 == 0:
            assert allocator.device_tables() == after[0].tables
    assert allocator.device_tables() == allocator.snapshot().tables


@settings(max_examples=120, deadline=None)
@given(
    window=st.sampled_from((None, 1, 3, 4)),
    caching=st.booleans(),
    watermark=st.integers(0, 1),
    sequence=st.lists(calls, min_size=10, max_size=40),
)
def test_any_calls_keep_the_books(
    window: int | None, caching: bool, watermark: int, sequence: list[Call]
) -> None:
    config = Config(
        num_blocks=9,
        block_size=2,
        max_model_len=12,
        sliding_window=window,
        enable_caching=caching,
        watermark_blocks=watermark,
        max_in_flight_tokens=4,
    )
    drive("cpu", config, sequence)


@pytest.mark.cuda
@settings(max_examples=30, deadline=None)
@given(sequence=st.lists(calls, min_size=10, max_size=40))
def test_any_calls_keep_the_books_on_a_gpu(sequence: list[Call]) -> None:
    drive("cuda", CONFIG, sequence)


def test_a_request_lives_through_all_its_states() -> None:
    allocator = torch_allocator(CONFIG)
    allocator.step(AddRequest(1, (0, 1, 2, 3, 4), salt=1))
    assert allocator.step(Allocate(1, 0, external=4, delay_cache=True, skip_zeroing=True)) == Result()
    assert allocator.snapshot().hashes == (None,) * 9
    allocator.step(CacheBlocks(1))
    assert allocator.step(Allocate(1, 1)) == Result(new_blocks=(3,))
    allocator.step(Complete(1, 1, sampled=(5,)))
    assert allocator.step(Allocate(1, 4)) == Result(new_blocks=(4, 5))  # one final token, three drafts
    allocator.step(Complete(1, 4, rejected=2, sampled=(6, 7)))
    assert allocator.snapshot().tables == {1: (1, 2, 3, 4, 5)}
    assert allocator.step(TakeNewBlockIds()) == Result(new_blocks=(3, 4, 5))
    allocator.step(Preempt(1))
    assert allocator.snapshot().tables == {}
    assert allocator.step(Allocate(1, 2)) == Result(hits=(1, 2, 3), new_blocks=(5,))
    allocator.step(Finish(1))
    assert allocator.step(ResetPrefixCache()) == Result(granted=True)


def test_the_device_sees_window_releases() -> None:
    allocator = torch_allocator(Config(num_blocks=9, block_size=2, max_model_len=12, sliding_window=3))
    allocator.step(AddRequest(1, (0,) * 9))
    allocator.step(Allocate(1, 8))
    assert allocator.device_tables() == {1: (1, 2, 3, 4)}
    allocator.step(Complete(1, 8))
    allocator.step(RemoveSkipped(1))
    assert allocator.device_tables() == {1: (0, 0, 0, 4)} == allocator.snapshot().tables


def test_what_has_run_is_published_before_the_next_allocation() -> None:
    allocator = torch_allocator(CONFIG)
    allocator.step(AddRequest(0, (0, 1, 2)))
    allocator.step(Allocate(0, 3))
    allocator.step(Complete(0, 3, sampled=(3,)))
    allocator.step(Allocate(0, 3))  # a final token, two drafts
    allocator.step(Complete(0, 3, sampled=(4, 5)))
    hashed = [key is not None for key in allocator.snapshot().hashes].count(True)
    allocator.step(CacheBlocks(0, 6))
    assert (
        [key is not None for key in allocator.snapshot().hashes].count(True)
        == 6 // CONFIG.block_size
        > hashed
    )


def test_salts_and_loras_keep_requests_apart() -> None:
    allocator = torch_allocator(CONFIG)
    keys = [(0, 0), (1, 0), (0, 1), (1, 1)]
    for number, (salt, lora) in enumerate(keys):
        allocator.step(AddRequest(number, (0, 1, 2), salt=salt, lora=lora))
        assert allocator.step(Allocate(number, 3)).hits == ()
    for number in range(4):
        allocator.step(Preempt(number))
        assert len(allocator.step(Allocate(number, 1)).hits) == 1


def test_a_token_that_does_not_fit_is_named_and_the_number_is_still_free() -> None:
    allocator = torch_allocator(CONFIG)
    with pytest.raises(AllocatorError, match="request 7: tokens must be integers of 64 bits"):
        allocator.step(AddRequest(7, (1 << 63,)))
    allocator.step(AddRequest(7, (0,)))
