"""What does not change while an engine runs: its configuration, the rules in force, and the reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slotproof.model.language.algebra import Bool, Function, Int
from slotproof.model.language.rules import Rules

if TYPE_CHECKING:
    from slotproof.model.language.state import State


class Reading(Protocol):
    """What integers, Z3 terms and search tables each do in their own way.

    Everything else in the model is one text for all readings.
    """

    def function(self, field: str, definition: Function) -> Function:
        """A state field given by its definition."""
        ...

    def when(self, condition: Bool, then: Callable[[], State], otherwise: State) -> State:
        """`then()` if the condition holds, else `otherwise`."""
        ...

    def loop(
        self, name: str, low: Int, high: Int, step: Callable[[State, Int], State], state: State, **of: Any
    ) -> State:
        """`step(state, k)` for k = low .. high - 1, in order.

        `of` is what the loop is about, for its invariant.
        """
        ...

    def require(self, step: str, state: State, condition: Bool) -> None:
        """What a step needs of a state so that it cannot fail: an engine would raise."""
        ...

    def expect(self, statement: str, condition: Callable[[], Bool]) -> None:
        """What a step relies on to keep a statement; nothing in an engine looks at it."""
        ...

    def count(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Int:
        """How many integers of `low .. high - 1` satisfy the predicate."""
        ...

    def every(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Bool:
        """All integers of `low .. high - 1` satisfy the predicate."""
        ...

    def largest(self, limit: Int, predicate: Callable[[Int], Bool]) -> Int:
        """The largest integer of `0 .. limit` that satisfies the predicate; 0 if none does."""
        ...

    def earliest(self, state: State, key: Int) -> Int:
        """The block hashed with `key` that was hashed first; the null block if none is."""
        ...

    def floor_div(self, tokens: Int) -> Int:
        """tokens // block_size."""
        ...

    def ceil_div(self, tokens: Int) -> Int:
        """ceil(tokens / block_size)."""
        ...

    def times(self, blocks: Int) -> Int:
        """blocks * block_size."""
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
        """A request's LoRA name, 0 for none."""
        ...


@dataclass(frozen=True)
class Engine:
    """One pool and one attention group. Counts are integers, or Z3 terms in a proof."""

    num_blocks: Int
    max_model_len: Int
    sliding_window: Int | None
    """Tokens an attention window spans; None is full attention."""
    enable_caching: Bool
    watermark_blocks: Int
    max_in_flight_tokens: Int
    rules: Rules
    read: Reading

    @property
    def looks_back(self) -> Bool:
        """A token attends to tokens before it; with a window of one it does not, and nothing is hashed."""
        return True if self.sliding_window is None else self.sliding_window > 1

    def full_blocks(self, tokens: Int) -> Int:
        """Blocks that `tokens` tokens fill completely."""
        return self.read.floor_div(tokens)

    def blocks(self, tokens: Int) -> Int:
        """Blocks that `tokens` tokens need."""
        return self.read.ceil_div(tokens)

    def tokens(self, blocks: Int) -> Int:
        """Tokens that `blocks` blocks hold."""
        return self.read.times(blocks)
