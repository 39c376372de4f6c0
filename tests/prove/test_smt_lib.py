"""A problem has one digest everywhere, and its text says to another solver what it says to Z3."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.prove import cross_check, receipt, stability
from slotproof.proofs.prove.obligation import Obligation, is_proved
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.prover import prove
from slotproof.proofs.prove.receipt import DigestTask, differences, of_report
from slotproof.proofs.prove.smt_lib import Digests, text

RELEASE = next(group for group in groups((FULL,)) if group.name == "release")
a, b, f = z3.Int("a"), z3.Int("b"), z3.Function("f", z3.IntSort(), z3.IntSort())
HOLDS = Obligation("holds", "usage", FULL, "pool", "", (a < b, z3.ForAll([a], f(a) > a)), f(b) > a)
FAILS = replace(HOLDS, name="fails", goal=f(a) > b)


def digests(group: Group, others_first: bool = False) -> list[str]:
    """The digests of a group, in a process that has built other terms before, or not."""
    with multiprocessing.get_context("fork").Pool(1) as workers:
        if others_first:
            workers.apply(DigestTask(next(iter(groups((FULL,)))), Rules()))
        return [digest for digest, _, _ in workers.apply(DigestTask(group, Rules())).values()]


def test_a_digest_is_the_same_whatever_was_built_before() -> None:
    found = digests(RELEASE)
    assert found == digests(RELEASE, others_first=True)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "other",
    [
        FAILS,
        replace(HOLDS, assumptions=HOLDS.assumptions[:1]),
        replace(HOLDS, assumptions=(a <= b, HOLDS.assumptions[1])),
        replace(HOLDS, assumptions=(a < b, z3.ForAll([a], f(a) > a, patterns=[f(a)]))),
        replace(HOLDS, goal=f(b) > a + 1),
    ],
)
def test_another_problem_has_another_digest(other: Obligation) -> None:
    assert Digests().of(other) != Digests().of(HOLDS)
    assert Digests().of(replace(HOLDS, name="another name")) == Digests().of(HOLDS)


@pytest.mark.skipif(not cross_check.is_installed(), reason="needs cvc5 (pip install 'slotproof[cvc5]')")
def test_cvc5_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_proved(HOLDS)
    assert cross_check.ask(text(HOLDS)) == "unsat"
    assert cross_check.ask(text(FAILS)) != "unsat"
    small = Group("small", FULL, lambda rules: iter([HOLDS, FAILS]))
    assert [opinion.agrees for opinion in cross_check.CrossCheck(small, Rules())()] == [True, False]


def test_seeds_tell_luck_from_proof() -> None:
    small = Group("small", FULL, lambda rules: iter([HOLDS, FAILS]))
    tasks = stability.tasks([small], Rules(), 6)
    assert [list(task.seeds) for task in tasks] == [[1, 2, 3, 4], [5, 6]]
    every = stability.together([runs for task in tasks for runs in task()])
    assert [(runs.name, runs.unproved, len(runs.resources)) for runs in every] == [
        ("fails", 6, 6),
        ("holds", 0, 6),
    ]


def test_a_receipt_is_of_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproof.proofs.prove.prover.groups", lambda kinds: [RELEASE])
    proved = of_report(prove(kinds=(FULL,)), (FULL,), ())
    with multiprocessing.get_context("fork").Pool(1) as workers:
        now = workers.apply(DigestTask(RELEASE, Rules()))
        without = workers.apply(DigestTask(RELEASE, Rules().without("free_tail_first")))
    assert differences(proved, now) == []
    other = differences(proved, without)
    assert other
    assert all(line.startswith("another problem: release: ") for line in other)
    (first, *_), kept = now, dict(now)
    del kept[first]
    assert differences(proved, kept) == [f"not in this model: {first[1]} (full)"]
    added = now | {(FULL, "more"): ("0", "usage", False)}
    assert differences(proved, added) == ["not in the receipt: more (full)"]


@pytest.mark.parametrize("content", ["", "{}", '{"format": "x"}'])
def test_what_is_no_receipt_gets_one_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"is no receipt"):
        receipt.read(path)
