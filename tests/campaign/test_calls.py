"""Numbers stand for legal calls, and the configurations cover what there is to cover."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotproof.impl.protocol import Allocate, Call, Execute, TakeNewBlockIds
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, configurations, decode, model_config
from slotproof.proofs.gate.compare import expected_snapshot
from slotproof.proofs.gate.oracle import expect


def drive(seed: int, calls: int) -> list[Call]:
    made = []
    for config in configurations(seed):
        running, random = Running(**model_config(config)), Random(seed)
        for _ in range(calls):
            made.append(decode(running, random.getrandbits(8 * NUMBER_BYTES)))
            expect(running, made[-1])  # raises if the caller's contract forbids it
    return made


def test_every_number_is_a_legal_call() -> None:
    assert len(drive(seed=5, calls=60)) == 24 * 60


def test_the_same_numbers_make_the_same_calls() -> None:
    assert drive(seed=6, calls=20) == drive(seed=6, calls=20)


def test_only_who_keeps_the_ghosts_draws_the_worker() -> None:
    for ghosts in (False, True):
        running, random = Running(**model_config(configurations(1)[0]), ghosts=ghosts), Random(1)
        drawn = set()
        for _ in range(150):
            call = decode(running, random.getrandbits(8 * NUMBER_BYTES))
            expect(running, call)
            drawn.add(type(call))
        assert (Execute in drawn) is ghosts


@given(st.lists(st.integers(0, 1 << 8 * NUMBER_BYTES), max_size=20))
def test_decoding_changes_nothing(numbers: list[int]) -> None:
    running = Running(**model_config(configurations(1)[0]))
    for number in numbers:
        before = expected_snapshot(running)
        call = decode(running, number)
        assert decode(running, number) == call
        assert expected_snapshot(running) == before
        expect(running, call)


def test_zero_is_the_simplest_call() -> None:
    assert decode(Running(**model_config(configurations(1)[0])), 0) == TakeNewBlockIds()


def test_a_negative_number_is_no_call() -> None:
    with pytest.raises(ValueError, match="-1 stands for no call"):
        decode(Running(**model_config(configurations(1)[0])), -1)


def test_call_fields_are_the_names_of_the_protocol() -> None:
    name, fields = call_fields(Allocate(request=3, new=2))
    assert name == "allocate"
    assert (fields["request"], fields["new"], fields["has_scheduled"]) == (3, 2, True)


@pytest.mark.parametrize("seed", range(5))
def test_configurations_are_a_spread(seed: int) -> None:
    configs = configurations(seed)
    assert configs == configurations(seed)
    windows = {config.sliding_window is None for config in configs}
    assert windows == {config.enable_caching for config in configs} == {True, False}
    for kind in (True, False):
        assert any(config.enable_caching == kind and config.sliding_window is None for config in configs)
        assert any(config.enable_caching == kind and config.sliding_window is not None for config in configs)
    assert any(config.watermark_blocks for config in configs)
    assert all(4 <= config.num_blocks <= 32 for config in configs)
