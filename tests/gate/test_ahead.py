"""Turns that others play ahead: the same campaign, whoever plays, and whoever dies."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from functools import partial

import pytest

from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.ahead import Played, Processes, Turn
from slotproof.proofs.gate.gate import Report, campaign
from slotproof.proofs.gate.isolation import Factory, Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator


def as_it_is() -> Factory:
    return ModelAllocator


def with_a_fault() -> Factory:
    return partial(ModelAllocator, rules=Rules().without("free_tail_first"))


def run(load: object, jobs: int, calls: int) -> Report:
    assert callable(load)
    with closing(Isolated(load)) as implementation:
        others = partial(Processes, jobs, load, 60.0) if jobs else None
        return campaign(implementation, calls=calls, seed=5, others=others)


def found(report: Report) -> object:
    return report.calls, report.sequences, report.coverage, report.verdict


def test_the_same_seed_finds_the_same_whoever_plays() -> None:
    assert found(run(as_it_is, 2, 700)) == found(run(as_it_is, 0, 700))


@pytest.mark.slow
def test_a_failure_is_found_where_one_alone_finds_it() -> None:
    alone, together = run(with_a_fault, 0, 3000), run(with_a_fault, 2, 3000)
    assert found(alone) == found(together)
    assert alone.failure is not None
    assert together.failure is not None


def test_who_dies_loses_only_its_share() -> None:
    def play(implementation: Isolated, turn: Turn) -> Played:
        if turn.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Played(turn, False, calls=turn.number, sequences=1)

    with Processes(2, as_it_is, 60.0, play) as players:
        played = [players.take(Turn(n)) for n in range(12)]
    assert played[2] is None  # it is played by whoever campaigns
    there = [p for p in played if p is not None]
    assert all(p.calls == p.turn.number for p in there)
    assert len(there) >= 8


def test_what_was_played_without_a_finding_does_not_count_with_it() -> None:
    def play(implementation: Isolated, turn: Turn) -> Played:
        return Played(turn, False, calls=len(turn.missing))

    with Processes(2, as_it_is, 60.0, play) as players:
        first = players.take(Turn(0))
        then = players.take(Turn(1, ("something",)))
    assert first == Played(Turn(0), False, calls=0)
    assert then is None or then.calls == 1
