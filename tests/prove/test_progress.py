"""*progress* fails where what it rests on is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import z3

from slotproof.model.language.algebra import implies
from slotproof.model.language.rules import Rules
from slotproof.model.scheduling.caller import Outcome
from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.prove import arithmetic, obligation
from slotproof.proofs.prove.claims import as_term
from slotproof.proofs.prove.obligation import Obligation, is_proved
from slotproof.proofs.prove.obligations import calls, line


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obligation, "TRIES", obligation.TRIES[:2])


def unproved(obligations: Iterator[Obligation], *names: str) -> set[str]:
    """Which of the named obligations are not proved."""
    of_name = {o.name: o for o in obligations}
    return {name for name in names if not is_proved(of_name[name])}


@pytest.mark.parametrize(
    ("rule", "kind", "check"),
    [
        ("keep_reserved", FULL, "allocate: load-leaves-the-reserve"),
        ("whole_prompt_caps_window", SLIDING_WINDOW, "allocate: empty-pool-admits"),
        ("watermark_spares_lone_admission", FULL, "allocate: empty-pool-admits"),
    ],
)
def test_a_check_falls_without_its_rule(rule: str, kind: str, check: str) -> None:
    assert unproved(calls.call("allocate", kind, Rules().without(rule)), check) == {check}


def test_a_lone_request_needs_the_pool_to_count_right() -> None:
    check = "later-chunk: lone-request-is-granted"
    assert unproved(calls.later_chunk(FULL, Rules()), check) == set()
    no_watermark = Rules().without("watermark_spares_running")
    assert unproved(calls.later_chunk(FULL, no_watermark), check) == {check}


def test_a_victim_that_keeps_its_blocks_stays_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter = "line: line-is-shorter"
    assert unproved(line.line(FULL, Rules()), shorter) == set()
    monkeypatch.setattr(line, "preempt", lambda s, request: Outcome(s))
    assert unproved(line.line(FULL, Rules()), shorter) == {shorter}


@pytest.mark.parametrize(
    ("name", "assumption"),
    [
        ("line: no-fewer-are-free", "others-only-wait"),
        ("line: first-holds-alone", "line-is-shorter"),
        ("line: no-fewer-are-free", "counted-blocks-are-held"),
    ],
)
def test_a_line_needs_what_is_assumed_of_it(name: str, assumption: str) -> None:
    (whole,) = (o for o in line.line(FULL, Rules()) if o.name == name)
    kept = tuple(a for a in whole.assumptions if not (z3.is_quantifier(a) and a.qid() == assumption))
    assert len(kept) < len(whole.assumptions)
    assert is_proved(whole)
    assert not is_proved(replace(whole, assumptions=kept))


def test_pigeons_may_have_a_hole_each() -> None:
    f, n = z3.Function("f", z3.IntSort(), z3.IntSort()), z3.Int("n")
    start, step = arithmetic.pigeonhole_by_induction()
    one = Obligation("pigeons", "arithmetic", FULL, "arithmetic", "", (), start.goal())
    assert is_proved(one)
    assert is_proved(replace(one, goal=step.goal()))
    a, b = arithmetic.PIGEONS
    as_many = implies(n > 0, z3.Or(a != b, f(a) < 0, f(a) >= n))
    assert not is_proved(replace(one, goal=as_term(as_many)))
