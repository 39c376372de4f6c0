"""Full attention (vLLM's `FullAttentionManager`): every token looks at all before it."""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Int
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import State


def skipped_tokens(engine: Engine, g: Int, computed: Int) -> Int:
    """None."""
    return 0


def admission_cap(engine: Engine, g: Int) -> None:
    """A request holds all it ever had."""
    return None


def hit_start(engine: Engine, g: Int, blocks: Int) -> Int:
    """A hit is a prefix: it needs every block from the first."""
    return 0


def is_reachable(s: State, row: Int, i: Int) -> Bool:
    """Every block, whatever is retained of windows."""
    return True
