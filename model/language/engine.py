"""What does not change while an engine runs: its configuration, the rules in force, and the reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotproof.model.language.algebra import Bool, Int
from slotproof.model.language.reading import Reading
from slotproof.model.language.rules import Rules


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
    read: Reading[Any]

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
