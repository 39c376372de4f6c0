"""A sliding window (vLLM's `SlidingWindowManager`): a token looks at itself and the window - 1 before it."""

from __future__ import annotations

from slotproof.model.language.algebra import Int, maximum, minimum
from slotproof.model.language.engine import Engine


def window(engine: Engine) -> Int:
    """Tokens that it spans."""
    assert engine.sliding_window is not None
    return engine.sliding_window


def skipped_tokens(engine: Engine, computed: Int) -> Int:
    """Tokens before the window of token `computed`."""
    return maximum(0, computed - window(engine) + 1)


def admission_cap(engine: Engine) -> Int:
    """The window and what is in flight, which may start inside a block."""
    tokens = minimum(window(engine) - 1 + engine.max_in_flight_tokens, engine.max_model_len)
    return engine.blocks(tokens) + 1


def hit_run(engine: Engine) -> Int:
    """Blocks that span the window of the next token, which looks back from its own slot."""
    reach = window(engine) - 1
    blocks = engine.blocks(reach) if engine.rules.lookup_run_covers_window else engine.full_blocks(reach)
    return maximum(1, blocks)
