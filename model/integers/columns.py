"""State fields as tables of integers that are changed in place, of which older states keep their own view.

A field of a state is a *version*. One version of a field holds the table; every other knows in what it
differs from a neighbour. Asking a version makes it the one that holds the table (Baker's rerooting): who asks
the newest pays for what changed since, and nothing is ever copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from slotproof.model.integers.queue import Pieces
from slotproof.model.language.state import NO_HASH

_NOTHING: Any = object()

D = TypeVar("D")
"""What a version differs in from its neighbour."""
H = TypeVar("H")
"""What holds the values."""


class Version(Generic[H, D]):
    """One version of a field. `settled` fields are read as they are (`Running`)."""

    __slots__ = ("_difference", "_held", "_neighbour")

    def __init__(self, held: H | None, neighbour: Version[H, D] | None = None, difference: D = _NOTHING):
        self._held = held
        self._neighbour = neighbour
        self._difference = difference

    def held(self) -> H:
        """The values, which this version holds from now on."""
        if self._held is None:
            path: list[Version[H, D]] = [self]
            while path[-1]._held is None:
                neighbour = path[-1]._neighbour
                assert neighbour is not None
                path.append(neighbour)
            for older in reversed(path[:-1]):
                holder = path.pop()
                held = holder._held
                assert held is not None
                holder._difference = self._apply(held, older._difference)
                holder._neighbour, holder._held = older, None
                older._held, older._neighbour, older._difference = held, None, _NOTHING
        held = self._held
        assert held is not None
        return held

    @staticmethod
    def _apply(held: H, difference: D) -> D:
        """Change the values, and say what would change them back."""
        raise NotImplementedError


class Column(dict[Any, Any]):
    """Values by place; a place that has none has the default."""

    def __init__(self, values: Iterable[tuple[Any, Any]], default: Any) -> None:
        super().__init__(values)
        self.default = default

    def __missing__(self, place: Any) -> Any:
        return self.default

    def put(self, place: Any, value: Any) -> Any:
        """Set a value, and say what it was."""
        old = self[place]
        if value == self.default:
            self.pop(place, None)
        else:
            self[place] = value
        return old


class Keys(Column):
    """Keys by block, and the blocks by key."""

    def __init__(self, values: Iterable[tuple[int, int]]) -> None:
        super().__init__(((block, key) for block, key in values if key != NO_HASH), NO_HASH)
        self.blocks: dict[int, set[int]] = {}
        for block, key in self.items():
            self.blocks.setdefault(key, set()).add(block)

    def put(self, place: Any, value: Any) -> Any:
        old = super().put(place, value)
        if old != NO_HASH:
            others = self.blocks[old]
            others.discard(place)
            if not others:
                del self.blocks[old]
        if value != NO_HASH:
            self.blocks.setdefault(value, set()).add(place)
        return old


class ColumnVersion(Version[Column, list[tuple[Any, Any]]]):
    """A field by place."""

    __slots__ = ()

    def get(self, place: Any) -> Any:
        held = self._held
        return (self.held() if held is None else held)[place]

    def get_pair(self, a: Any, b: Any) -> Any:
        held = self._held
        return (self.held() if held is None else held)[a, b]

    def changed(self, changes: list[tuple[Any, Any]]) -> ColumnVersion:
        """The field with other values at some places; of one place the last counts."""
        return ColumnVersion(None, self, changes)

    @staticmethod
    def _apply(held: Column, difference: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        undo = [(place, held.put(place, value)) for place, value in difference]
        undo.reverse()
        return undo


class QueueVersion(Version[Pieces, tuple[int, int, list[int]]]):
    """The free queue: both its functions."""

    __slots__ = ()

    def at(self, position: int) -> int:
        return self.held().at(position)

    def rank(self, block: int) -> int:
        return self.held().rank(block)

    def spliced(self, low: int, removed: int, blocks: list[int]) -> QueueVersion:
        """The queue with some blocks taken out at a position, and others put there."""
        return QueueVersion(None, self, (low, removed, blocks))

    @staticmethod
    def _apply(held: Pieces, difference: tuple[int, int, list[int]]) -> tuple[int, int, list[int]]:
        low, removed, blocks = difference
        taken = held.take(low, removed) if removed else []
        if blocks:
            held.put(low, blocks)
        return low, len(blocks), taken
