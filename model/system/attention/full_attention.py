"""Full attention (vLLM's `FullAttentionManager`): every token looks at all before it."""

from __future__ import annotations

from slotproof.model.language.algebra import Int
from slotproof.model.language.engine import Engine


def skipped_tokens(engine: Engine, computed: Int) -> Int:
    """None."""
    return 0


def admission_cap(engine: Engine) -> None:
    """A request holds all it ever had."""
    return None


def hit_run(engine: Engine) -> None:
    """A hit is a prefix: it needs every block from the first."""
    return None
