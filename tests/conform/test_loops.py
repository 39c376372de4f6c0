"""Loops of any length: what is followed as a whole, and what is refused rather than followed wrongly."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import z3

from slotproof.proofs.conform.builtins import installed
from slotproof.proofs.conform.ends import Exhausted, Unsupported
from slotproof.proofs.conform.numbers import Number
from slotproof.proofs.conform.paths import Exploration, Path
from slotproof.proofs.conform.sequences import Items

N = z3.Int("n")
A = z3.Function("a", z3.IntSort(), z3.IntSort())


def outcomes(function: Callable[[Any], Any], check: Callable[[Path, Any], Any]) -> list[bool]:
    """Whether the answer satisfies the check, path by path; the function is given a list of any numbers."""
    found = []

    def run(path: Path) -> None:
        with installed([sys.modules[__name__]]):
            answer = function(Items(N, A, Number(0)))
        if not path.is_trial:
            found.append(path.entails(check(path, answer)))

    for _ in Exploration([N >= 0]).runs(run):
        pass
    return found


def term(value: Any) -> Any:
    return value.term if isinstance(value, Number) else z3.IntVal(value)


def doubled(values: Any) -> Any:
    made = []
    for value in values:
        made.append(value + value)
    return Items.of(made)


def first_zero(values: Any) -> Any:
    for i in range(len(values)):
        if values[i] == 0:
            return i
    return -1


def all_nulled(values: Any) -> Any:
    for i in range(len(values) - 1, -1, -1):
        values[i] = 0
    return values


def test_a_list_is_made() -> None:
    x = z3.Int("x")

    def check(path: Path, made: Items) -> Any:
        return z3.And(made.length == N, z3.Implies(z3.And(x >= 0, x < N), made.at(x) == 2 * A(x)))

    found = outcomes(doubled, check)
    assert found
    assert all(found)


def test_a_loop_is_left_where_its_condition_holds() -> None:
    found = outcomes(first_zero, lambda path, i: z3.Or(term(i) == -1, A(term(i)) == 0))
    assert len(found) >= 3
    assert all(found)


def test_a_wrong_claim_about_a_loop_is_not_shown() -> None:
    assert not all(outcomes(first_zero, lambda path, i: term(i) == -1))
    assert not all(outcomes(doubled, lambda path, made: made.length == N + 1))


def test_elements_are_set() -> None:
    x = z3.Int("x")

    def check(path: Path, made: Items) -> Any:
        return z3.Implies(z3.And(x >= 0, x < N), made.at(x) == 0)

    found = outcomes(all_nulled, check)
    assert found
    assert all(found)


def carries(values: Any) -> Any:
    last = 0
    for value in values:
        last = value
    return last


def comprehends(values: Any) -> Any:
    return [value for value in values]  # noqa: C416


def piles_up_in_c(values: Any) -> Any:
    return tuple(value for value in values)


def turns_around(values: Any) -> Any:
    made = []
    for value in values:
        made.append(value)
    return Items.of(made[::-1])


def fills_a_dictionary(values: Any) -> Any:
    made: dict[int, Any] = {}
    for value in values:
        made[len(made)] = value
    return made


@pytest.mark.parametrize("function", [carries, comprehends, piles_up_in_c, turns_around, fills_a_dictionary])
def test_what_cannot_be_followed_is_refused(function: Callable[[Any], Any]) -> None:
    with pytest.raises(Unsupported):
        outcomes(function, lambda path, made: True)


def counts_up(values: Any) -> Any:
    i = 0
    while i < len(values):
        i += 1
    return i


def test_a_while_loop_ends_at_the_budget() -> None:
    with pytest.raises(Exhausted, match="decisions"):
        outcomes(counts_up, lambda path, i: True)
