"""What a kind of attention decides; everything else is the same for all kinds."""

from __future__ import annotations

from typing import Protocol

from slotproof.model.language.algebra import Int
from slotproof.model.language.engine import Engine


class Kind(Protocol):
    """A module with these functions is a kind of attention."""

    def skipped_tokens(self, engine: Engine, computed: Int) -> Int:
        """Tokens that nothing attends to any more from token `computed` on."""
        ...

    def admission_cap(self, engine: Engine) -> Int | None:
        """The most blocks a request can hold at once; None if it holds all it ever had."""
        ...

    def hit_run(self, engine: Engine) -> Int | None:
        """Blocks in a row that a hit needs so that the next token finds all it attends to; None for all."""
        ...
