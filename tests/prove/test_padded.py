"""A padded admission is two calls; and what that rests on is what is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotproof.model.language.algebra import Bool
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.prove.obligation import TRIES, answer, is_proved
from slotproof.proofs.prove.obligations import padded as two_calls
from slotproof.proofs.prove.obligations.padded import padded


@pytest.mark.parametrize("kind", [FULL, SLIDING_WINDOW])
def test_the_second_call_is_granted_and_takes_nothing(kind: str) -> None:
    made = {o.name: o for o in padded(kind, Rules())}
    assert all(
        is_proved(made[f"padded: {name}"]) for name in ("second-is-granted", "second-leaves, num_free")
    )


@pytest.mark.parametrize("rule", ["lookahead_gets_slots", "hash_final_tokens_only"])
def test_a_call_that_reads_more_than_the_sum_is_not_the_first_of_two(rule: str) -> None:
    first = next(padded(FULL, Rules().without(rule)))
    assert first.name == "padded: sum-is-all-that-is-read"
    assert not is_proved(first)
    assert is_proved(next(padded(FULL, Rules())))


@pytest.mark.parametrize(
    ("condition", "what"),
    [
        ("counts-the-slots", "second-is-granted"),
        ("has-released", "second-leaves, first"),
        ("has-its-hashes", "second-leaves, num_cached"),
    ],
)
def test_each_thing_that_the_first_call_prepares_is_needed(
    condition: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: Callable[..., dict[str, Bool]] = two_calls._is_ready

    def less(*of: Any) -> dict[str, Bool]:
        return {name: holds for name, holds in ready(*of).items() if name != condition}

    monkeypatch.setattr(two_calls, "_is_ready", less)
    made = {o.name: o for o in padded(SLIDING_WINDOW, Rules())}
    assert not answer(made[f"padded: {what}"], TRIES[:1]).unsat
