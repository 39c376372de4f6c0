"""Entries of a request's tables, numbered group after group, so that blocks can be counted by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slotproof.model.language.algebra import Bool, Int, both, implies, maximum, within
from slotproof.model.language.state import State


class Places:
    """The entries low(row) .. high(row) - 1 of a request's rows."""

    def __init__(self, s: State, r: Int, low: Callable[[Int], Int], high: Callable[[Int], Int]) -> None:
        self._engine, self._read, self._request = s.engine, s.read, r
        self._low, self._high = low, high

    def _amount(self, g: Int) -> Int:
        row = self._engine.row(self._request, g)
        return maximum(0, self._high(row) - self._low(row))

    def _before(self, g: Int) -> Int:
        return self._read.total(g, self._amount)

    @property
    def number(self) -> Int:
        """How many there are."""
        return self._before(self._engine.groups.num)

    def of(self, g: Int, i: Int) -> Int:
        """The number of entry i in group g."""
        return self._before(g) + i - self._low(self._engine.row(self._request, g))

    def facts(self, *groups: Int) -> Iterator[Bool]:
        """What the sums at some groups are to each other, as no amount is negative."""
        num = self._engine.groups.num
        if self._engine.groups.is_one:
            return
        for g in groups:
            yield implies(within(0, g, num), self._before(g + 1) == self._before(g) + self._amount(g))
        ends = [num, *groups, *(g + 1 for g in groups)]
        for g in ends:
            for h in ends:
                ordered = both(g >= 0, g <= h, h <= num)
                yield implies(ordered, both(self._before(g) >= 0, self._before(g) <= self._before(h)))
