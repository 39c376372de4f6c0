"""One attention group (vLLM's `SingleTypeKVCacheManager`): full attention, or a sliding window.

The coordinator will hold several; until then there is one, and it is the engine's.
"""

from __future__ import annotations

from slotproof.model.language.algebra import Int, both, maximum, minimum
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import State
from slotproof.model.system.pool import clear_table, free_blocks, publish, release


def skipped_tokens(engine: Engine, computed: Int) -> Int:
    """Tokens that no attention window from token `computed` on will read."""
    if engine.sliding_window is None:
        return 0
    return maximum(0, computed - engine.sliding_window + 1)


def skipped_blocks(engine: Engine, computed: Int) -> Int:
    """Blocks that lie wholly in the skipped tokens."""
    return engine.full_blocks(skipped_tokens(engine, computed))


def admission_cap(engine: Engine) -> Int | None:
    """The most blocks a request can hold at once: its window and what is in flight, which may start
    inside a block; None if it holds all it ever had."""
    if engine.sliding_window is None:
        return None
    tokens = minimum(engine.sliding_window - 1 + engine.max_in_flight_tokens, engine.max_model_len)
    return engine.blocks(tokens) + 1


def hit_run(engine: Engine) -> Int | None:
    """Blocks in a row that a hit needs so that the next token finds its whole window; None for all."""
    if engine.sliding_window is None:
        return None
    reach = engine.sliding_window - 1
    blocks = engine.blocks(reach) if engine.rules.lookup_run_covers_window else engine.full_blocks(reach)
    return maximum(1, blocks)


def remove_skipped_blocks(s: State, r: Int, processed: Int) -> State:
    """Stage 1: the blocks that fell out of r's window go back to the pool, null blocks in their place."""
    if s.engine.sliding_window is None:
        return s
    high = minimum(skipped_blocks(s.engine, processed), s.length(r))
    return s.engine.read.when(high > s.first(r), lambda: free_blocks(release(s, r, high)), s)


def cache_blocks(s: State, r: Int, num_tokens: Int) -> State:
    """Stage 4: every block that r's first `num_tokens` tokens fill, and that has none yet, gets its hash."""
    engine = s.engine
    full = engine.full_blocks(num_tokens) if engine.rules.hash_full_blocks_only else engine.blocks(num_tokens)
    cached = s.num_cached(r)
    return engine.read.when(
        both(engine.enable_caching, full > cached),
        lambda: engine.read.loop("publish", cached, full, lambda t, i: publish(t, r, i), s, request=r),
        s,
    )


def free(s: State, r: Int) -> State:
    """All of r's blocks go back to the pool, tail first, and its block table is emptied."""
    freed = s.engine.read.when(s.length(r) > s.first(r), lambda: free_blocks(release(s, r, s.length(r))), s)
    return clear_table(freed, r)
