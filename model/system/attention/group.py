"""One attention group (vLLM's `SingleTypeKVCacheManager`): full attention, or a sliding window.

The coordinator will hold several; until then there is one, and it is the engine's.
"""

from __future__ import annotations

from slotproof.model.language.algebra import Int, both, minimum
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import State
from slotproof.model.system.attention import full_attention, sliding_window
from slotproof.model.system.attention.kind import Kind
from slotproof.model.system.pool import clear_table, free_blocks, publish, release


def kind(engine: Engine) -> Kind:
    """The kind of attention of the engine's group."""
    return full_attention if engine.sliding_window is None else sliding_window


def skipped_tokens(engine: Engine, computed: Int) -> Int:
    """Tokens that nothing attends to any more from token `computed` on."""
    return kind(engine).skipped_tokens(engine, computed)


def admission_cap(engine: Engine) -> Int | None:
    """The most blocks a request can hold at once; None if it holds all it ever had."""
    return kind(engine).admission_cap(engine)


def hit_run(engine: Engine) -> Int | None:
    """Blocks in a row that a hit needs so that the next token finds all it attends to; None for all."""
    return kind(engine).hit_run(engine)


def skipped_blocks(engine: Engine, computed: Int) -> Int:
    """Blocks that lie wholly in the skipped tokens."""
    return engine.full_blocks(skipped_tokens(engine, computed))


def remove_skipped_blocks(s: State, r: Int, processed: Int) -> State:
    """Stage 1: the blocks that fell out of r's window go back to the pool, null blocks in their place."""
    if s.engine.sliding_window is None:
        return s
    high = minimum(skipped_blocks(s.engine, processed), s.length(r))
    return s.read.when(high > s.first(r), lambda: free_blocks(release(s, r, high)), s)


def cache_blocks(s: State, r: Int, num_tokens: Int) -> State:
    """Stage 4: every block that r's first `num_tokens` tokens fill, and that has none yet, gets its hash."""
    engine = s.engine
    full = engine.full_blocks(num_tokens) if engine.rules.hash_full_blocks_only else engine.blocks(num_tokens)
    cached = s.num_cached(r)
    return s.read.when(
        both(engine.enable_caching, full > cached),
        lambda: s.read.loop("publish", cached, full, lambda t, i: publish(t, r, i), s, request=r),
        s,
    )


def free(s: State, r: Int) -> State:
    """All of r's blocks go back to the pool, tail first, and its block table is emptied."""
    freed = s.read.when(s.length(r) > s.first(r), lambda: free_blocks(release(s, r, s.length(r))), s)
    return clear_table(freed, r)
