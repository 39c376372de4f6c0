"""Elements of lists as terms, and runs of any length of them in Python's own lists.

An element is an object with a `term`, and `like(term)` to make another of its kind: `Number`, `Truth`, or
what a target stands blocks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.numbers import Number, Truth, number


def element_term(value: Any) -> Any:
    """An element as a term.

    Raises:
        Unsupported: it is none of ours, and no integer.
    """
    if isinstance(value, Truth):
        return number(value)
    if hasattr(value, "term"):
        return value.term
    return number(value)


def element_kind(value: Any) -> Any:
    """What an element makes others like itself by."""
    return value if hasattr(value, "like") else Truth(False) if isinstance(value, bool) else Number(0)


class Run:
    """What a loop of any length has appended to a list that the code made as `[]`: `at(j)` for j < `length`.

    It lies in the list as two elements, its ends, so that a list that was turned around shows it.
    """

    def __init__(self, length: Any, at: Callable[[Any], Any], kind: Any) -> None:
        self.length, self.at, self.kind = length, at, kind
        self.ends = (_End(self, True), _End(self, False))


class _End:
    def __init__(self, run: Run, is_first: bool) -> None:
        self._run, self._is_first = run, is_first

    def __getattr__(self, name: str) -> Any:
        raise Unsupported("an element is taken from a list that a loop of any length has made")


def pieces(values: Iterable[Any]) -> Iterator[Any]:
    """The elements, and the runs among them.

    Raises:
        Unsupported: a run has been taken apart, or turned around.
    """
    run = None
    for value in values:
        if not isinstance(value, _End):
            if run is not None:
                raise Unsupported("a list that a loop of any length has made is taken apart")
            yield value
        elif value._is_first and run is None:
            run = value._run
        elif not value._is_first and value._run is run:
            yield run
            run = None
        else:
            raise Unsupported("a list that a loop of any length has made is turned around")
    if run is not None:
        raise Unsupported("a list that a loop of any length has made is taken apart")
