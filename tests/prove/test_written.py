"""*published-is-written* fails where what it rests on is taken away: in its proofs and in the monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

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
)
from slotproof.model.claims.invariants import WRITTEN
from slotproof.model.language.algebra import both, ite
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling import caller
from slotproof.model.scheduling.caller import ACTIONS, no_contract
from slotproof.model.scheduling.worker import executed, write
from slotproof.proofs.campaign.monitor import Monitor
from slotproof.proofs.prove.obligation import answer
from slotproof.proofs.prove.obligations import calls

HASHED, COMPUTED, NO_MORE = (invariant.name for invariant in WRITTEN)
ONE_TRY = ((3_000_000, 0),)
"""More than each takes that holds; the others take all of it."""
READS = "step-reads-what-is-written"
Patch = Callable[[pytest.MonkeyPatch], None]


def careless(*names: str) -> Patch:
    """The caller takes no care in these calls."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in names:
            monkeypatch.setitem(ACTIONS, name, replace(ACTIONS[name], care=no_contract))

    return patch


def nothing_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said to have run, or to have been loaded, was not written."""
    monkeypatch.setattr(caller, "write_up_to", lambda s, r, end: s)


def without_last_token(s: State) -> State:
    """The step leaves the last scheduled token of each request unwritten."""

    def reach(r: object) -> object:
        scheduled = both(s.status(r) == RUNNING, s.unwritten(r) > 0)
        return ite(scheduled, s.computed(r) - 1, executed(s, r))

    return write(s, reach)


def last_token_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "run_step", without_last_token)


def last_token_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left, is said to have run."""

    def run_step(s: State) -> State:
        claimed = without_last_token(s)
        return claimed.replace(unwritten=lambda r: ite(s.status(r) == RUNNING, 0, s.unwritten(r)))

    monkeypatch.setattr(caller, "run_step", run_step)


@pytest.mark.parametrize(
    ("patch", "call", "falls"),
    [
        (careless("preempt"), "preempt", {HASHED, COMPUTED}),
        (careless("finish"), "finish", {HASHED, COMPUTED}),
        (nothing_arrives, "cache_blocks", {HASHED}),
        (last_token_is_left, "execute", {READS}),
        (last_token_is_claimed, "execute", {READS, COMPUTED}),
    ],
)
def test_a_proof_fails_without_what_it_rests_on(
    patch: Patch, call: str, falls: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unproved() -> set[str]:
        made = [(o, o.name.split(": ")[-1]) for o in calls.with_care(call, "full", Rules())]
        return {claim for o, claim in made if claim in falls and not answer(o, ONE_TRY).unsat}

    assert unproved() == set()
    patch(monkeypatch)
    assert unproved() == falls


ENGINE = Config(num_blocks=6, block_size=2, max_model_len=16)
SCHEDULED = (AddRequest(0, (1, 1, 2, 2, 3)), Allocate(0, 4))
"""Blocks 1 and 2 are published, and the step is still to run that writes them."""


def broken(taken: Iterable[Call], rules: Rules | None = None) -> list[str]:
    """The claims that the last call breaks; those before it break none."""
    monitor = Monitor(ENGINE, rules)
    *before, last = taken
    for call in before:
        assert monitor.step(call) == [], call
    return [violation.claim for violation in monitor.step(last)]


@pytest.mark.parametrize("leaves", [Preempt(0), Finish(0)])
def test_a_request_that_leaves_before_the_step_ran_breaks_it(
    leaves: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once the monitor takes it for care."""
    assert broken((*SCHEDULED, leaves)) == []
    careless("preempt", "finish")(monkeypatch)
    assert HASHED in broken((*SCHEDULED, leaves))
    assert broken((*SCHEDULED, Execute(), leaves)) == []
    assert broken((*SCHEDULED, EvictBlocks((1, 2)), leaves)) == []


@pytest.mark.parametrize(("leaves", "name"), [(Preempt(0), "preempt"), (Finish(0), "finish")])
def test_a_request_whose_blocks_are_evicted_leaves_with_care(leaves: Call, name: str) -> None:
    monitor = Monitor(ENGINE)
    for call in (*SCHEDULED, EvictBlocks((1, 2)), leaves):
        assert monitor.step(call) == []
    assert f"care {name}" in monitor.reached


def test_what_a_careless_caller_left_is_not_held_against_later_calls() -> None:
    monitor = Monitor(ENGINE)
    for call in (*SCHEDULED, Preempt(0), Allocate(0, 1), Execute()):
        assert monitor.step(call) == []
    assert "care preempt" not in monitor.reached
    assert "care execute" not in monitor.reached
    assert f"check {READS}" not in monitor.reached


@pytest.mark.parametrize("patch", [last_token_is_left, last_token_is_claimed])
def test_a_step_that_leaves_a_token_unwritten_breaks_it(
    patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken((*SCHEDULED, Execute())) == []
    patch(monkeypatch)
    assert READS in broken((*SCHEDULED, Execute()))


def test_a_result_without_a_step_behind_it_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that says that tokens have run, or have been loaded, says that they are written."""
    loads = (AddRequest(0, (1, 1, 2)), Allocate(0, 0, external=2, delay_cache=True), CacheBlocks(0))
    assert broken((*SCHEDULED, Complete(0, 4))) == []
    assert broken(loads) == []
    nothing_arrives(monkeypatch)
    assert HASHED in broken(loads)


def test_a_delayed_load_that_is_published_at_once_breaks_it() -> None:
    loads = (AddRequest(0, (1, 1, 2)), Allocate(0, 0, external=2, delay_cache=True))
    rules = Rules().without("delay_cache_blocks")
    assert broken(loads) == []
    assert broken(loads, rules) == [HASHED, "load-is-unpublished"]
