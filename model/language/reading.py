"""What the readings of the model do each in their own way: integers, Z3 terms, tables of Z3 terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from slotproof.model.language.algebra import Bool, Function, Int

S = TypeVar("S")
"""The state: a reading is part of the engine that a state belongs to, and needs only a name for it."""


class Reading(Protocol[S]):
    """What integers, Z3 terms and search tables each do in their own way.

    Everything else in the model is one text for all readings.
    """

    def function(self, field: str, definition: Function) -> Function:
        """A state field given by its definition."""
        ...

    def when(self, condition: Bool, then: Callable[[], S], otherwise: S) -> S:
        """`then()` if the condition holds, else `otherwise`."""
        ...

    def loop(self, name: str, low: Int, high: Int, step: Callable[[S, Int], S], state: S, **of: Any) -> S:
        """`step(state, k)` for k = low .. high - 1, in order.

        `of` is what the loop is about, for its invariant.
        """
        ...

    def require(self, step: str, state: S, condition: Bool) -> None:
        """What a step needs of a state so that it cannot fail: an engine would raise."""
        ...

    def expect(self, statement: str, condition: Callable[[], Bool]) -> None:
        """What a step relies on to keep a statement; nothing in an engine looks at it."""
        ...

    def count(self, low: Int, high: Int, predicate: Callable[..., Bool], *of: Int) -> Int:
        """How many integers i of `low .. high - 1` satisfy `predicate(*of, i)`."""
        ...

    def total(self, high: Int, amount: Callable[[Int], Int]) -> Int:
        """The sum of the amounts of `0 .. high - 1`."""
        ...

    def every(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Bool:
        """All integers of `low .. high - 1` satisfy the predicate."""
        ...

    def largest(self, limit: Int, predicate: Callable[[Int], Bool]) -> Int:
        """The largest integer of `0 .. limit` that satisfies the predicate; 0 if none does."""
        ...

    def once(self, function: Function) -> Function:
        """The same function; each of its values is worked out once, if that is worth it. `every` of a
        `partial` of it may rely on what it has seen."""
        ...

    def earliest(self, state: S, key: Int) -> Int:
        """The block hashed with `key` that was hashed first; the null block if none is."""
        ...

    def opaque(self, name: str, definition: Callable[[], Any], *of: Int) -> Any:
        """`definition()`, a number or a truth value, of which no proof about calls needs to know what it
        says, only that it is a function of `of`."""
        ...

    def floor_div(self, tokens: Int, size: Int) -> Int:
        """tokens // size."""
        ...

    def ceil_div(self, tokens: Int, size: Int) -> Int:
        """ceil(tokens / size)."""
        ...

    def times(self, blocks: Int, size: Int) -> Int:
        """blocks * size."""
        ...

    def span(self, request: Int, start: Int, end: Int) -> Int:
        """The identity of a request's tokens `start .. end - 1`: equal exactly for equal tokens."""
        ...

    def digest(self, *parts: Int) -> Int:
        """A key: equal exactly for equal parts, never NO_HASH (SHA-256 taken as free of collisions)."""
        ...

    def salt(self, request: Int) -> Int:
        """A request's cache salt, 0 for none."""
        ...

    def lora(self, request: Int) -> Int:
        """A request's LoRA, 0 for none."""
        ...
