"""Paths: every one is taken, also where a line of code that had one way to go has two of a sudden."""

from __future__ import annotations

import z3

from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.numbers import Number
from slotproof.proofs.conform.paths import Exploration, Path

N = z3.Int("n")


def is_at_least(n: Number, k: int) -> bool:
    return bool(n >= k)  # one line for all of the questions


def test_a_wrong_guess_is_found_out() -> None:
    found: list[tuple[bool, ...]] = []

    def run(path: Path) -> None:
        n = Number(N)
        found.append(tuple(is_at_least(n, k) for k in (-1, 0, 5, 9)))

    for _ in Exploration([N >= 0]).runs(run):
        pass
    assert sorted(found) == [
        (True, True, False, False),
        (True, True, True, False),
        (True, True, True, True),
    ]


def test_what_is_claimed_after_a_wrong_guess_is_not_shown_by_it() -> None:
    shown: list[bool] = []

    def run(path: Path) -> None:
        n = Number(N)
        is_at_least(n, 0)
        if is_at_least(n, 5):
            path.assume(N >= 5)
        shown.append(path.settle(N >= 5))

    for _ in Exploration([N >= 0]).runs(run):
        pass
    assert shown.count(False) == 1


def test_what_is_unsupported_after_a_wrong_guess_is_no_matter() -> None:
    ends: list[str] = []

    def run(path: Path) -> None:
        n = Number(N)
        is_at_least(n, 0)
        if is_at_least(n, 5) and not is_at_least(n, 4):
            raise Unsupported("nothing leads here")
        ends.append("end")

    for _ in Exploration([N >= 0]).runs(run):
        pass
    assert len(ends) >= 2
