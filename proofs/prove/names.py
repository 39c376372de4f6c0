"""Names of unknowns, each of which is given once.

Two unknowns with one name would be one, and what is assumed of the first would hold of the second unasked. So
unknowns are made here, and the names of what else is in a problem differ by a mark:

- `name!n`: a fresh unknown, of which nothing is said where it is made (`Names.fresh`);
- `name?n`: a value that a goal is about (`claimed`); of it nothing is assumed but what holds of every value;
- `name#n`: a bound variable (`bound`).
"""

from __future__ import annotations

from collections import Counter

import z3

MARKS = "!?#"
INT = z3.IntSort()


class Names:
    """The names given in one reading. Raises ValueError where one is given twice, or has a mark."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self.made: Counter[str] = Counter()
        """Fresh names made so far, each name counted by itself: one more of another renames nothing."""

    def integer(self, name: str) -> z3.ArithRef:
        """An unknown integer."""
        return z3.Int(self._give(name))

    def integers(self, names: str) -> list[z3.ArithRef]:
        """Unknown integers, by names that are words."""
        return [self.integer(name) for name in names.split()]

    def truth(self, name: str) -> z3.BoolRef:
        """An unknown truth value."""
        return z3.Bool(self._give(name))

    def function(self, name: str, arity: int = 1, result: z3.SortRef = INT) -> z3.FuncDeclRef:
        """An unknown function of integers."""
        return z3.Function(self._give(name), *[INT] * arity, result)

    def fresh(self, name: str) -> str:
        """A name that nothing else has."""
        self.made[name] += 1
        return f"{name}!{self.made[name]}"

    def _give(self, name: str) -> str:
        if name in self._given:
            raise ValueError(f"{name}: there is an unknown of that name")
        if any(mark in name for mark in MARKS):
            raise ValueError(f"{name}: the marks {MARKS} are kept for others")
        self._given.add(name)
        return name


def beside(name: str, other: z3.FuncDeclRef) -> z3.FuncDeclRef:
    """An unknown function that goes with another, always the same."""
    return z3.Function(f"{name}!{other.name()}", *map(other.domain, range(other.arity())), other.range())


def claimed(name: str, n: int) -> z3.ArithRef:
    """The n-th value that a goal is about."""
    return z3.Int(f"{name}?{n}")


def bound(name: str, n: int) -> z3.ArithRef:
    """The n-th bound variable of a claim."""
    return z3.Int(f"{name}#{n}")
