"""A sliding window (vLLM's `SlidingWindowManager`): a token looks at itself and the window - 1 before it."""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Int, either, maximum, minimum
from slotproof.model.language.behaviours import GROUPS_CACHE_ALL, WINDOW_OF_ONE_CACHED
from slotproof.model.language.engine import Engine


def skipped_tokens(engine: Engine, g: Int, computed: Int) -> Int:
    """Tokens before the window of token `computed`."""
    return maximum(0, computed - engine.groups.window(g) + 1)


def admission_cap(engine: Engine, g: Int) -> Int:
    """The window and what is in flight, which may start inside a block."""
    tokens = minimum(engine.groups.window(g) - 1 + engine.max_in_flight_tokens, engine.max_model_len)
    return engine.blocks(tokens, g) + 1


def hit_start(engine: Engine, g: Int, blocks: Int) -> Int:
    """Where the blocks start that span the window of the next token, which looks back from its own slot."""
    return maximum(0, blocks - maximum(1, _run(engine, g)))


def is_reachable(engine: Engine, g: Int, i: Int) -> Bool:
    """The blocks that span a window before a place at which a hit may end; with a window of one, none."""
    if engine.groups.is_one:
        return either(WINDOW_OF_ONE_CACHED in engine.behaviours, engine.groups.window(g) > 1)
    if GROUPS_CACHE_ALL in engine.behaviours:
        return True
    end = engine.tokens(i + 1, g)
    return engine.align_up(end) - end < engine.tokens(engine.blocks(engine.groups.window(g) - 1, g), g)


def _run(engine: Engine, g: Int) -> Int:
    """Blocks in a row that a hit needs so that the next token finds all it attends to."""
    reach = engine.groups.window(g) - 1
    if engine.rules.lookup_run_covers_window:
        return engine.blocks(reach, g)
    return engine.full_blocks(reach, g)
