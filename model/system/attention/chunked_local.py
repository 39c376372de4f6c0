"""Chunked local attention (vLLM's `ChunkedLocalAttentionManager`): a token looks at its chunk, up to itself.

A chunk is a whole number of blocks.
"""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Int, maximum, minimum
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import State


def skipped_tokens(engine: Engine, g: Int, computed: Int) -> Int:
    """Tokens before the chunk of token `computed`."""
    chunk = engine.groups.window(g)
    return engine.read.times(engine.read.floor_div(maximum(0, computed), chunk), chunk)


def admission_cap(engine: Engine, g: Int) -> Int:
    """The chunk and what is in flight."""
    tokens = minimum(engine.groups.window(g) + engine.max_in_flight_tokens, engine.max_model_len)
    return engine.blocks(tokens, g)


def hit_start(engine: Engine, g: Int, blocks: Int) -> Int:
    """Where the chunk of the next token starts."""
    return engine.full_blocks(skipped_tokens(engine, g, engine.tokens(blocks, g)), g)


def is_reachable(s: State, row: Int, i: Int) -> Bool:
    """Every block, whatever is retained of windows."""
    return True
