"""The reading over Python's integers: each field worked out in full after each call.

Any rule may be off, and ghosts are kept where they are asked for. What runs with all rules and without ghosts
costs less with `sparse.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from slotproof.model.integers.columns import Column
from slotproof.model.integers.text import NOBODY, Text
from slotproof.model.language.algebra import Function
from slotproof.model.language.state import FUNCTIONS, GHOSTS, HAND, NULL_BLOCK, State


class Stuck(RuntimeError):
    """A step could not be carried out: a pop, touch, free or hash failed (`what`) half way through a call."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} failed half way through a call")
        self.what = what


class _Lazy(dict[Any, Any]):
    """A function's values, worked out when first asked."""

    def __init__(self, definition: Function) -> None:
        self.definition = definition

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self.definition(key)
        return value


def absent(*place: int) -> int:
    """A field that is not kept."""
    return 0


_BY_BLOCK = {
    "rank",
    "ref_cnt",
    "block_hash",
    "stamp",
    "held_rank",
    "writer_row",
    "writer_index",
    "evicted_idle",
    "written",
}
_BY_ROW = {"length", "first", "num_cached"}
_BY_REQUEST = {"status", "num_tokens", "computed", "in_flight", "prompt", "junction", "unwritten", "slots"}
OUTSIDE: dict[str, Any] = {"rank": -1, "held_rank": -1, "evicted_idle": False}


class Dense:
    """The reading over Python integers (see `model.language.reading`).

    `watch`, if given, sees the state in which each step begins.
    """

    def __init__(self, num_blocks: int, ghosts: bool) -> None:
        self.num_blocks = num_blocks
        self.ghosts = ghosts
        self.texts: dict[int, Text] = {}
        self.watch: Callable[[str, State], None] | None = None
        self._ids: dict[Any, int] = {}
        self._last_id = 0

    def function(self, field: str, definition: Function) -> Function:
        if field in GHOSTS and not self.ghosts:
            return absent
        if FUNCTIONS[field] == 1:
            return _Lazy(definition).__getitem__
        pairs = _Lazy(lambda pair: definition(*pair))
        return lambda a, b: pairs[a, b]

    def when(self, condition: bool, then: Callable[[], State], otherwise: State) -> State:
        return then() if condition else otherwise

    def loop(
        self, name: str, low: int, high: int, step: Callable[[State, int], State], state: State, **of: Any
    ) -> State:
        for k in range(low, high):
            state = step(state, k)
        return state

    def require(self, step: str, state: State, condition: bool) -> None:
        if self.watch is not None:
            self.watch(step, state)
        if not condition:
            raise Stuck(step)

    def expect(self, statement: str, condition: Callable[[], bool]) -> None:
        pass

    def count(self, low: int, high: int, predicate: Callable[..., bool], *of: int) -> int:
        return sum(1 for i in range(low, high) if predicate(*of, i))

    def total(self, high: int, amount: Callable[[int], int]) -> int:
        return sum(amount(i) for i in range(high))

    def every(self, low: int, high: int, predicate: Callable[[int], bool]) -> bool:
        return all(predicate(i) for i in range(low, high))

    def largest(self, limit: int, predicate: Callable[[int], bool]) -> int:
        return next((n for n in range(limit, 0, -1) if predicate(n)), 0)

    def once(self, function: Function) -> Function:
        return function

    def earliest(self, state: State, key: int) -> int:
        found = (b for b in range(1, self.num_blocks) if state.block_hash(b) == key)
        return min(found, key=state.stamp, default=NULL_BLOCK)

    def opaque(self, name: str, definition: Callable[[], Any], *of: int) -> Any:
        return definition()

    def floor_div(self, tokens: int, size: int) -> int:
        return tokens // size

    def ceil_div(self, tokens: int, size: int) -> int:
        return -(-tokens // size)

    def times(self, blocks: int, size: int) -> int:
        return blocks * size

    def span(self, request: int, start: int, end: int) -> int:
        tokens = self.texts.get(request, NOBODY).tokens
        known: Any = tuple(tokens[start:end])
        if end > len(tokens):  # a guess, equal to nobody else's
            known = (known, request, start, end)
        return self._id(known)

    def digest(self, *parts: int) -> int:
        return self._id(parts)

    def salt(self, request: int) -> int:
        return self.texts.get(request, NOBODY).salt

    def lora(self, request: int) -> int:
        return self.texts.get(request, NOBODY).lora

    def _id(self, value: Any) -> int:
        known = self._ids.get(value)
        if known is None:
            self._last_id += 1
            known = self._ids[value] = self._last_id
        return known

    def settle(self, s: State) -> State:
        """The same state, its functions worked out into tables."""
        changes: dict[str, Function] = {}
        for field in FUNCTIONS:
            function = getattr(s, field)
            if function is not absent and not self._is_settled(function):
                changes[field] = self._tabulated(s, field, function)
        if not changes:
            return s
        settled = object.__new__(State)
        settled.__dict__.update(s.__dict__)
        settled.__dict__.update(changes)
        return settled

    def forget(self, request: int) -> None:
        """Nobody will ask about the request any more."""
        del self.texts[request]

    def _is_settled(self, function: Function) -> bool:
        return isinstance(getattr(function, "__self__", None), Column) or hasattr(function, "settled")

    def _tabulated(self, s: State, field: str, function: Function) -> Function:
        column = Column(self._values(s, field, function), OUTSIDE.get(field, 0))
        if FUNCTIONS[field] == 1:
            return column.__getitem__

        def look_up(a: int, b: int) -> Any:
            return column[a, b]

        look_up.settled = True  # type: ignore[attr-defined]
        return look_up

    def _values(self, s: State, field: str, function: Function) -> Iterable[tuple[Any, Any]]:
        """A field at every place where it means something."""
        if FUNCTIONS[field] == 1:
            return ((x, function(x)) for x in self._domain(s, field))
        return ((pair, function(*pair)) for pair in self._pairs(s, field))

    def _rows(self, s: State) -> list[int]:
        return [s.engine.row(r, g) for r in self.texts for g in range(s.engine.groups.num)]

    def _domain(self, s: State, field: str) -> Iterable[int]:
        if field in _BY_BLOCK:
            return range(self.num_blocks)
        if field in _BY_ROW:
            return (HAND, *self._rows(s))
        if field in _BY_REQUEST:
            return (HAND, *self.texts)
        if field == "num_to_zero":
            return range(s.engine.groups.num)
        sizes = {"at": s.num_free, "held": s.num_held}
        return range(max(0, sizes[field]))

    def _pairs(self, s: State, field: str) -> Iterable[tuple[int, int]]:
        if field in ("table", "slot"):
            return ((row, i) for row in self._rows(s) for i in range(s.length(row)))
        if field == "to_zero":
            return ((g, j) for g in range(s.engine.groups.num) for j in range(s.num_to_zero(g)))
        return ((b, k) for b in range(self.num_blocks) for k in range(s.ref_cnt(b)))
