"""Lists of any length, and ranges, whose elements are terms.

An element is an object with a `term`, and `like(term)` to make another of its kind: `Number`, `Truth`, or
what a target stands blocks for. Python's own `len` cannot answer with a term: `builtins.py` replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import z3

from slotproof.proofs.conform.elements import Run, element_kind, element_term, pieces
from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.loops import Loop, count
from slotproof.proofs.conform.numbers import Number, number
from slotproof.proofs.conform.paths import Path

At = Callable[[Any], Any]
"""index -> element, as terms."""


class Items:
    """A list. `at(i)` is element i, for `0 <= i < length`; `kind` makes elements of terms."""

    def __init__(self, length: Any, at: At, kind: Any, origin: tuple[At, Any] | None = None) -> None:
        path = Path.current()
        self.length: z3.ArithRef = z3.simplify(number(length) if isinstance(length, int) else length)
        self.at = at
        self.kind = kind
        self._origin = origin
        self.number = len(path.lists)
        path.lists.append(self)

    @classmethod
    def empty(cls) -> Items:
        """No element yet."""
        return cls(0, lambda i: z3.IntVal(0), None)

    @classmethod
    def of(cls, values: Iterable[Any]) -> Items:
        """A list of these values."""
        if isinstance(values, Items):
            return values
        made = cls.empty()
        for piece in pieces(values):
            if isinstance(piece, Run):
                made.extend(cls(piece.length, piece.at, piece.kind))
            else:
                made.append(piece)
        return made

    def element(self, term: Any) -> Any:
        """A term, as the code sees an element."""
        return (self.kind or Number(0)).like(term)

    # What the code under test does with a list.

    def __len__(self) -> int:
        return Number(self.length).__index__()

    def __bool__(self) -> bool:
        return Path.current().decide(self.length > 0)

    def __iter__(self) -> Iterator[Any]:
        at, low = self._start
        return Loop(low, z3.simplify(low + self.length), lambda i: self.element(at(i)), over=self)

    def __reversed__(self) -> Iterator[Any]:
        return iter(self[::-1])

    def __contains__(self, value: object) -> bool:
        for item in self:  # noqa: SIM110 (the loop is what is followed)
            if item == value:
                return True
        return False

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._slice(index)
        return self.element(self.at(self._place(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._set_slice(index, Items.of(value))
            return
        place, term, at = self._place(index), element_term(value), self.at
        self.kind = self.kind or element_kind(value)
        self._changed("set", (place, term))
        self.at = lambda i: z3.If(i == place, term, at(i))

    def append(self, value: Any) -> None:
        term, end, at = element_term(value), self.length, self.at
        self.kind = self.kind or element_kind(value)
        self._changed("append", term)
        self.at = lambda i: term if end.eq(z3.IntVal(0)) else z3.If(i == end, term, at(i))
        self.length = z3.simplify(end + 1)

    def extend(self, values: Iterable[Any]) -> None:
        if not isinstance(values, Items):
            for value in values:
                self.append(value)
            return
        self._changed("extend", None)
        joined = self + values
        self.length, self.at, self.kind = joined.length, joined.at, joined.kind

    def __iadd__(self, values: Iterable[Any]) -> Items:  # type: ignore[misc]
        self.extend(values)
        return self

    def __add__(self, other: Any) -> Items:
        other = Items.of(other)
        mine, theirs, end = self.at, other.at, self.length
        if end.eq(z3.IntVal(0)):
            return Items(other.length, theirs, other.kind)
        if other.length.eq(z3.IntVal(0)):
            return Items(end, mine, self.kind)
        return Items(
            end + other.length, lambda i: z3.If(i < end, mine(i), theirs(i - end)), self.kind or other.kind
        )

    def __radd__(self, other: Any) -> Items:
        return Items.of(other) + self

    def copy(self) -> Items:
        return Items(self.length, self.at, self.kind)

    def count(self, value: Any) -> Any:
        (at, low), wanted = self._start, element_term(value)
        return Number(count(Path.current(), lambda i: at(i) == wanted, low, z3.simplify(low + self.length)))

    def mapped(self, function: Callable[[Any], Any]) -> Items:
        """The function's values: it is called once, for an element that is any, and must not branch on it.

        Raises:
            Branches: it does.
        """
        path, (at, low) = Path.current(), self._start
        i = path.integer("i")
        with path.unbranched():
            value = function(self.element(at(i)))
        term = element_term(value)

        def value_at(j: Any) -> Any:
            at(j)  # for what is known of the element
            return z3.substitute(term, (i, j))

        return Items(self.length, lambda j: value_at(low + j), element_kind(value), origin=(value_at, low))

    @property
    def _start(self) -> tuple[At, Any]:
        """The list that this is a slice of, and where it begins there."""
        return self._origin or (self.at, z3.IntVal(0))

    def _place(self, index: Any) -> z3.ArithRef:
        path, i = Path.current(), number(index)
        if path.decide(i < 0):
            i = i + self.length
        if path.decide(z3.Or(i < 0, i >= self.length)):
            raise IndexError("list index out of range")
        return i

    def _bounds(self, index: slice) -> tuple[z3.ArithRef, z3.ArithRef]:
        low = self._clamped(index.start, z3.IntVal(0))
        high = self._clamped(index.stop, self.length)
        return low, z3.simplify(_larger(low, high))

    def _clamped(self, bound: Any, default: z3.ArithRef) -> z3.ArithRef:
        if bound is None:
            return default
        path, value, end = Path.current(), number(bound), self.length
        if not path.knows(value >= 0):
            value = z3.If(value < 0, _larger(value + end, z3.IntVal(0)), value)
        return value if path.knows(value <= end) else z3.If(value <= end, value, end)

    def _slice(self, index: slice) -> Items:
        if index.step == -1 and index.start is None and index.stop is None:
            at, end = self.at, self.length
            return Items(end, lambda i: at(end - 1 - i), self.kind)
        if index.step not in (None, 1):
            raise Unsupported("a slice with a step")
        low, high = self._bounds(index)
        at, start = self._start
        start = z3.simplify(start + low)
        return Items(high - low, lambda i: at(start + i), self.kind, origin=(at, start))

    def _set_slice(self, index: slice, values: Items) -> None:
        if index.step not in (None, 1):
            raise Unsupported("a slice with a step")
        low, high = self._bounds(index)
        if not Path.current().entails(high - low == values.length):
            raise Unsupported("a slice is replaced by one of another length")
        self._changed("slice", None)
        at, new = self.at, values.at
        self.at = lambda i: z3.If(z3.And(low <= i, i < high), new(i - low), at(i))

    def _changed(self, how: str, what: Any) -> None:
        self._origin = None
        iteration = Path.current().iteration
        if iteration is not None:
            iteration.changed(self, how, what)


class Total:
    """A sum that a loop adds to."""

    def __init__(self, start: Any = 0) -> None:
        path = Path.current()
        self.term = number(start)
        self.kind = None
        self.number = len(path.lists)
        path.lists.append(self)

    def add(self, value: Any) -> None:
        term = number(value)
        iteration = Path.current().iteration
        if iteration is not None:
            iteration.changed(self, "add", term)
        self.term = z3.simplify(self.term + term)

    def value(self) -> Any:
        """What it is now: a Python integer if it is one."""
        return int(self.term.as_long()) if z3.is_int_value(self.term) else Number(self.term)


def repeated(values: list[Any], times: Number) -> Items:
    """`values * times`, of one value."""
    if len(values) != 1:
        raise Unsupported("a list of more than one element is repeated")
    term = element_term(values[0])
    return Items(_larger(times.term, z3.IntVal(0)), lambda i: term, element_kind(values[0]))


def _larger(a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    return z3.If(a >= b, a, b)


class Range:
    """`range` with bounds that are terms, by steps of 1 or -1."""

    def __init__(self, start: Any, stop: Any, step: int = 1) -> None:
        if step not in (1, -1):
            raise Unsupported("a range with a step")
        self.start, self.stop, self.step = number(start), number(stop), step

    def __iter__(self) -> Iterator[Any]:
        if self.step == 1:
            return Loop(self.start, self.stop, Number, over=None)
        start = self.start
        return Loop(z3.IntVal(0), z3.simplify(start - self.stop), lambda k: Number(start - k), over=None)

    def __reversed__(self) -> Iterator[Any]:
        if self.step == 1:
            return iter(Range(Number(self.stop - 1), Number(self.start - 1), -1))
        return iter(Range(Number(self.stop + 1), Number(self.start + 1)))
