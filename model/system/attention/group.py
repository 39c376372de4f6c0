"""One attention group (vLLM's `SingleTypeKVCacheManager`), and one request's row in it."""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Int, both, ite, maximum, minimum
from slotproof.model.language.behaviours import GROUPS_CACHE_ALL
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import FULL
from slotproof.model.language.state import State
from slotproof.model.system.attention.kind import Kind, by_kind
from slotproof.model.system.pool import clear_table, free_blocks, publish, release


def skipped_tokens(engine: Engine, g: Int, computed: Int) -> Int:
    """Tokens that nothing in group g attends to any more from token `computed` on."""
    return by_kind(engine, g, lambda kind: kind.skipped_tokens(engine, g, computed))


def skipped_blocks(engine: Engine, g: Int, computed: Int) -> Int:
    """Blocks that lie wholly in the skipped tokens."""
    return engine.full_blocks(skipped_tokens(engine, g, computed), g)


def admission_cap(engine: Engine, g: Int) -> Int | None:
    """The most blocks of group g that a request can hold at once; None if it holds all it ever had."""
    return by_kind(engine, g, lambda kind: kind.admission_cap(engine, g))


def at_once(engine: Engine, g: Int, blocks: Int) -> Int:
    """Of so many blocks, those that a request can hold at once."""

    def capped(kind: Kind) -> Int:
        cap = kind.admission_cap(engine, g)
        return blocks if cap is None else minimum(blocks, cap)

    return by_kind(engine, g, capped)


def hit_start(engine: Engine, g: Int, blocks: Int) -> Int:
    """The first of `blocks` blocks that a hit of them needs."""
    return by_kind(engine, g, lambda kind: kind.hit_start(engine, g, blocks))


def keeps(s: State, row: Int, i: Int) -> Bool:
    """A hit may need entry i of a row."""
    return by_kind(s.engine, s.engine.group(row), lambda kind: kind.is_reachable(s, row, i))


def is_reachable(s: State, row: Int, i: Int) -> Bool:
    """`keeps`, where it only matters that it is one way or the other."""
    return s.read.opaque("reachable", lambda: keeps(s, row, i), row, i)


def null_blocks(engine: Engine, g: Int, num_hits: Int, total: Int) -> Int:
    """The null blocks that a row starts with when it adopts a hit: what is skipped, and what the hit has none
    for (with tokens retained before the window, that is more)."""
    return maximum(skipped_blocks(engine, g, total), hit_start(engine, g, num_hits))


def cacheable_tokens(engine: Engine, g: Int, num_tokens: Int) -> Int:
    """Of so many tokens, those whose blocks may get a hash in group g: up to a place that groups can agree
    on, and where a hit drops its last block, up to that one."""
    final = maximum(0, num_tokens - engine.num_reprefillable)
    if engine.groups.is_one or GROUPS_CACHE_ALL in engine.behaviours:
        return final
    aligned = engine.align_down(num_tokens)
    behind = minimum(final, engine.align_down(final) + engine.groups.block_size(g))
    return ite(both(engine.groups.drops(g), aligned > 0), behind, aligned)


def remove_skipped_blocks(s: State, row: Int, processed: Int) -> State:
    """Stage 1: the blocks that fell out of the window go back to the pool, null blocks in their place."""
    engine, g = s.engine, s.engine.group(row)
    if engine.groups.kind(g) is FULL:
        return s
    high = minimum(skipped_blocks(engine, g, processed), s.length(row))
    return s.read.when(high > s.first(row), lambda: free_blocks(release(s, row, high), g), s)


def cache_blocks(s: State, row: Int, num_tokens: Int) -> State:
    """Stage 4: every block that the first `num_tokens` tokens fill, and that has none yet, gets its hash."""
    engine, g = s.engine, s.engine.group(row)
    full, cached = num_full_blocks(engine, g, num_tokens), s.num_cached(row)

    def step(t: State, i: Int) -> State:
        return publish(t, row, i, is_reachable(t, row, i))

    return s.read.when(
        both(engine.enable_caching, full > cached),
        lambda: s.read.loop("publish", cached, full, step, s, row=row),
        s,
    )


def num_full_blocks(engine: Engine, g: Int, num_tokens: Int) -> Int:
    """The blocks of group g whose hashes are due when its first `num_tokens` tokens are computed."""
    count = engine.full_blocks if engine.rules.hash_full_blocks_only else engine.blocks
    return count(cacheable_tokens(engine, g, num_tokens), g)


def free(s: State, row: Int) -> State:
    """All of the row's blocks go back to the pool, tail first, and it is emptied."""
    g, high = s.engine.group(row), s.length(row)
    freed = s.read.when(high > s.first(row), lambda: free_blocks(release(s, row, high), g), s)
    return clear_table(freed, row)
