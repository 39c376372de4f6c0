"""Changes of a state field: the field as it was, but at some places.

A step could say of a field what it is anywhere; that is all a proof wants to know. Whoever runs the model
also wants to know where to look, so that a call costs by what it changes and not by the size of the pool. So
a step says where, and what is there: one text for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from slotproof.model.language.algebra import Bool, Function, Int, both, ite, within
from slotproof.model.language.state import State


class Where(NamedTuple):
    """Some places of a field."""

    has: Function
    """place -> it is one of them."""
    places: Callable[[], Iterable[Any]]
    """Those of them at which the field may change; asked only where all numbers are Python's."""


@dataclass(frozen=True, eq=False)
class Change:
    """A field that is `value` (given the place, if it is a function) at some places, and elsewhere as it was.

    It is called as the field is.
    """

    base: Function
    where: Where
    value: Any

    def __call__(self, *place: Int) -> Any:
        return ite(self.where.has(*place), self.at(*place), self.base(*place))

    def at(self, *place: Int) -> Any:
        """What is at a place where it changes."""
        return self.value(*place) if callable(self.value) else self.value


def one(x: Int) -> Where:
    """One block, row, request or group."""
    return Where(lambda y: y == x, lambda: (x,))


def these(named: Any) -> Where:
    """A set of places, given as what tells whether a place is in it; a Python set can be gone through."""
    return named if isinstance(named, Where) else Where(named, lambda: named.__self__)


def queued(s: State, low: Int, n: Int) -> Where:
    """The n blocks of the free queue from position `low` on."""
    return Where(
        lambda b: within(low, s.rank(b), low + n),
        lambda: [s.at(i) for i in range(low, low + n)],
    )


def entry(row: Int, i: Int) -> Where:
    """One entry of a block table."""
    return Where(lambda q, j: both(q == row, j == i), lambda: ((row, i),))


def entries(row: Int, low: Int, high: Int) -> Where:
    """The entries low .. high - 1 of a block table."""
    return Where(
        lambda q, i: both(q == row, within(low, i, high)), lambda: [(row, i) for i in range(low, high)]
    )


def entries_below(row: Int, high: Int, first: Int = 0) -> Where:
    """The entries below `high` of a block table; those below `first` are what they will be already."""
    return Where(lambda q, i: both(q == row, i < high), lambda: [(row, i) for i in range(first, high)])


def whole(row: Int, length: Int) -> Where:
    """All of a block table, which has `length` entries."""
    return Where(lambda q, i: q == row, lambda: [(row, i) for i in range(length)])


def from_on(g: Int, low: Int, n: Int) -> Where:
    """The places of group g's list from `low` on, of which n will mean something."""
    return Where(lambda h, j: both(h == g, j >= low), lambda: [(g, j) for j in range(low, low + n)])


def if_so(condition: Bool, where: Where) -> Where:
    """These places, if the condition holds; else none."""
    return Where(
        lambda *place: both(condition, where.has(*place)), lambda: filter(lambda _: condition, where.places())
    )


@dataclass(frozen=True, eq=False)
class Splice:
    """The free queue with `removed` of its blocks from position `low` on taken out, and `block` put there.

    `at` and `rank` are the queue afterwards, as `State` has them. That they come to the same as taking out
    and putting in is what the invariants of the queue say.
    """

    base: State
    at: Function
    rank: Function
    low: Int
    removed: Int = 0
    block: Int | None = None

    @property
    def fields(self) -> dict[str, Function]:
        """The changed fields of a state."""
        return {"at": Spliced(self, "at"), "rank": Spliced(self, "rank")}


@dataclass(frozen=True, eq=False)
class Spliced:
    """One of the two functions of a spliced queue. It is called as the field is."""

    splice: Splice
    field: str

    def __call__(self, x: Int) -> Any:
        function: Function = getattr(self.splice, self.field)
        return function(x)
