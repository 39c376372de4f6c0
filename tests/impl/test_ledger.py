"""The caller's ledger allows what the model's contract allows, and a refused call changes nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotproof.impl.ledger import IllegalCall
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
    TakeNewBlockIds,
)
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import call_fields, model_config
from slotproof.proofs.gate.compare import expected_snapshot
from slotproof.proofs.gate.model_allocator import ModelAllocator

CONFIG = Config(num_blocks=9, block_size=2, max_model_len=12, max_in_flight_tokens=8)

requests = st.integers(-1, 3)
small = st.integers(-1, 4)
calls = st.one_of(
    st.builds(
        AddRequest,
        requests,
        st.lists(st.integers(0, 1), max_size=14).map(tuple),
        salt=st.integers(0, 1),
        lora=st.integers(0, 1),
    ),
    st.builds(
        Allocate,
        requests,
        new=st.integers(-1, 9),
        lookahead=st.sampled_from((0, 0, 3, -1)),
        external=st.sampled_from((0, 0, 0, 2, 5, -1)),
        skip_cache=st.booleans(),
        delay_cache=st.booleans(),
        must_fit=st.booleans(),
        reserved=st.sampled_from((0, 0, 2, -1)),
        has_scheduled=st.booleans(),
    ),
    st.builds(Allocate, requests, new=st.integers(1, 5)),
    st.builds(Complete, requests, small, rejected=small, sampled=st.sampled_from(((), (1,), (0, 1)))),
    st.builds(Complete, requests, st.integers(1, 4), sampled=st.just((1,))),
    st.builds(CacheBlocks, requests, st.none() | st.integers(-1, 6)),
    st.builds(RemoveSkipped, requests),
    st.builds(Preempt, requests),
    st.builds(Finish, requests),
    st.builds(EvictBlocks, st.lists(st.integers(0, 8), max_size=3).map(tuple)),
    st.builds(Execute),
    st.builds(ResetPrefixCache),
    st.builds(TakeNewBlockIds),
)


def books(allocator: ModelAllocator) -> dict[int, tuple[Any, ...]]:
    return {
        number: (e.status, e.computed, e.in_flight, tuple(e.tokens))
        for number, e in allocator.ledger.entries.items()
    }


@settings(max_examples=150, deadline=None)
@given(window=st.sampled_from((None, 3)), sequence=st.lists(calls, min_size=10, max_size=40))
def test_it_allows_what_the_models_contract_allows(window: int | None, sequence: list[Call]) -> None:
    config = Config(num_blocks=9, block_size=2, max_model_len=12, sliding_window=window)
    allocator, running = ModelAllocator(config), Running(**model_config(config))
    for call in (AddRequest(0, (0, 1, 0, 1, 1)), AddRequest(1, (0, 1, 0, 1, 1)), *sequence):
        before = allocator.snapshot(), books(allocator)
        name, fields = call_fields(call)
        try:
            running.step(name, **fields)
        except (ContractError, KeyError):  # KeyError: a lookup for a request that never came
            with pytest.raises(IllegalCall):
                allocator.step(call)
            assert (allocator.snapshot(), books(allocator)) == before
        else:
            allocator.step(call)
        assert allocator.snapshot() == expected_snapshot(running)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (AddRequest(-1, (0,)), "a request's number is not negative"),
        (AddRequest(1, (0,)), "AddRequest of request 1: it was added before: ids are never reused"),
        (AddRequest(9, (0,)), "AddRequest of request 9: it was added before"),
        (AddRequest(7, ()), "it has 0 tokens: 1 to max_model_len 12 are possible"),
        (AddRequest(7, (0,) * 13), "it has 13 tokens"),
        (AddRequest(7, (0,), salt=-1), "salt -1 and lora 0 must not be negative"),
        (Allocate(8, 1), "Allocate of request 8: it is unknown: add it first"),
        (Allocate(9, 1), "Allocate of request 9: it is unknown"),
        (Allocate(1, 9), "4 computed + 9 new tokens exceed max_model_len"),
        (Allocate(1, 5), "4 in flight + 5 new exceed max_in_flight_tokens"),
        (Allocate(1, 0), "it runs: ask for new tokens, and for nothing external"),
        (Allocate(1, 1, external=2), "it runs: ask for new tokens, and for nothing external"),
        (Allocate(1, 1, delay_cache=True), "it runs"),
        (Allocate(2, 1), "it waits for its load: cache_blocks comes first"),
        (Allocate(3, 0), "ask for new tokens, or for none with delay_cache and external ones"),
        (Allocate(3, 0, delay_cache=True), "ask for new tokens, or for none with delay_cache"),
        (Allocate(3, 1, external=1, delay_cache=True), "ask for new tokens, or for none with delay_cache"),
        (Allocate(3, 6), "0 computed + 6 new of 5 tokens"),
        (Allocate(3, 0, external=5, delay_cache=True), "5 computed + 0 new of 5 tokens"),
        (Allocate(4, 1, external=1), "it has 2 computed tokens: no external ones on top"),
        (Allocate(3, -1), "new is -1: counts must not be negative"),
        (Allocate(3, 1, reserved=-1), "reserved is -1: counts must not be negative"),
        (Complete(1, 0), "0 tokens processed, 4 in flight"),
        (Complete(1, 5), "5 tokens processed, 4 in flight"),
        (Complete(1, 1, rejected=2), "2 of 1 processed tokens rejected"),
        (Complete(1, 4, rejected=1), "1 rejected: only drafts past 5 tokens can be"),
        (Complete(1, 4, sampled=(0,)), "5 + 1 sampled tokens exceed 5"),
        (Complete(3, 1), "it does not run, it is WAITING"),
        (CacheBlocks(1), "it waits for no load"),
        (CacheBlocks(3, 1), "it does not run, it is WAITING"),
        (CacheBlocks(1, 1), "0 of its 5 tokens have run"),
        (RemoveSkipped(3), "it has no block table"),
        (Preempt(2), "it does not run, it is LOADING"),
        (Finish(8), "it is unknown"),
        (EvictBlocks((1, 9)), "EvictBlocks: block 9 is out of range: the pool has 0 to 8"),
        (EvictBlocks((-1,)), "EvictBlocks: block -1 is out of range"),
    ],
    ids=repr,
)
def test_misuse_is_named_and_changes_nothing(call: Call, message: str) -> None:
    """1 runs, 2 loads, 3 waits, 4 waits with computed tokens, 9 is gone."""
    allocator = ModelAllocator(CONFIG)
    for number in (1, 2, 3, 4, 9):
        allocator.step(AddRequest(number, (number,) * 5))
    allocator.step(Allocate(1, 4))
    for number in (2, 4):
        allocator.step(Allocate(number, 0, external=2, delay_cache=True))
    allocator.step(CacheBlocks(4))
    allocator.step(Finish(9))
    before = allocator.snapshot(), books(allocator)
    with pytest.raises(IllegalCall, match=re.escape(message)) as error:
        allocator.step(call)
    assert "\n" not in str(error.value)
    assert (allocator.snapshot(), books(allocator)) == before
