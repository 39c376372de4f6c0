"""What a proof leaned on is a hint: it makes a proof quick, and never makes one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.prove import cores
from slotproof.proofs.prove.obligation import CORE, Obligation, answer, check, problem
from slotproof.proofs.prove.obligations import calls
from slotproof.proofs.prove.smt_lib import Digests

GOLDEN = Path(__file__).parent / "obligations.txt"


def kept_computed_is_written() -> Obligation:
    """A proof that takes a few hundred thousand resources with all its assumptions in sight."""
    made = calls.with_care("finish", FULL, Rules())
    return next(o for o in made if o.name == "finish with care: computed-tokens-are-written")


def test_a_core_is_a_few_of_the_assumptions_and_proves_at_little_cost() -> None:
    o, digests = kept_computed_is_written(), Digests()
    core = cores.core(o, digests)
    assert core is not None, "`python -m slotproof.proofs.prove.cores` looks for the cores anew"
    assert len(core) < len(problem(o)) / 2
    found, resources = check(core, CORE, 0)
    assert found == z3.unsat
    assert resources < answer(o).resources / 2


def test_of_an_obligation_that_is_not_known_nothing_is_tried_first() -> None:
    assert cores.core(replace(kept_computed_is_written(), name="another"), Digests()) is None


def test_a_core_that_does_not_do_costs_a_try_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    o = kept_computed_is_written()
    monkeypatch.setattr(cores, "known", lambda: {(o.kind, o.name): frozenset({"000000"})})
    core = cores.core(o, Digests())
    assert core == []
    assert answer(o, core=core).unsat


def test_what_follows_from_nothing_is_not_proved_with_a_core() -> None:
    n = z3.Int("n")
    o = Obligation("more", "usage", FULL, "pool", "", (n > 0,), n > 1)
    assert not answer(o, core=[n > 0]).unsat


def test_each_core_is_of_an_obligation() -> None:
    lines = (line.split(" | ") for line in GOLDEN.read_text().splitlines())
    there = {(kind, name) for kind, _, name, *_ in lines}
    assert cores.known()
    assert set(cores.known()) <= there


def test_a_core_is_found_again_where_it_is_lost() -> None:
    n, m = z3.Ints("n m")
    o = Obligation("between", "usage", FULL, "pool", "", (n > 1, m > 5, m < 7), n > 0)
    digests = Digests()
    found = cores.find(o, digests)
    assert found is not None
    kept = [d[: cores.DIGITS] in found for d in digests.of_facts(o)]
    assert kept == [True, False, False, True]
