"""The prefix cache's lookup (vLLM's `get_computed_blocks`, `find_longest_cache_hit`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from slotproof.model.language.algebra import Bool, Function, Int, both, either, ite, negate
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import NULL_BLOCK, PREEMPTED, WAITING, State
from slotproof.model.system.attention.group import hit_start


@dataclass(frozen=True)
class Hits:
    """What a lookup found: `tokens` tokens, which are `num(g)` table entries of group g; `at(g, i)` is the
    block of its entry i (null before a window)."""

    tokens: Int
    num: Function
    at: Function


NO_HITS = Hits(0, lambda g: 0, lambda g, i: NULL_BLOCK)


def get_computed_blocks(s: State, r: Int) -> Hits:
    """The longest hit of at most num_tokens - 1 tokens on which all groups agree: at least one token is left
    to compute.

    It ends where a block of every group ends. A group of full attention needs every block from the first; a
    window the blocks that span it, or a prefix shorter than that. Of several blocks with one key the
    earliest hashed is the hit. (vLLM looks at the groups in turn, each up to what the one before found, until
    none finds less; that comes to the same.)
    """
    engine, rules, read = s.engine, s.engine.rules, s.read
    groups = engine.groups
    unit = engine.scheduler_block_size if rules.lookup_is_aligned else 1
    limit = read.floor_div(s.num_tokens(r) - (1 if rules.lookup_leaves_a_token else 0), unit)

    @read.once
    def key(g: Int, i: Int) -> Int:
        return block_key(engine, engine.row(r, g), i)

    @read.once
    def block(g: Int, i: Int) -> Int:
        return read.earliest(s, key(g, i))

    @read.once
    def found(g: Int, i: Int) -> Bool:
        return s.block_hash(block(g, i)) == key(g, i)

    def blocks(g: Int, n: Int) -> Int:
        """The blocks of group g that n units are."""
        return n if groups.is_one else engine.full_blocks(read.times(n, unit), g)

    def hit(g: Int, n: Int) -> Bool:
        end = blocks(g, n)
        if not rules.lookup_stops_at_miss:
            return either(end == 0, found(g, end - 1))
        return read.every(hit_start(engine, g, end), end, partial(found, g))

    def agree(n: Int) -> Bool:
        asked = groups.num if rules.lookup_agrees_on_a_length else 1
        return read.every(0, asked, lambda g: hit(g, n))

    units = read.largest(limit, agree)

    def at(g: Int, i: Int) -> Int:
        needed = both(i >= hit_start(engine, g, blocks(g, units)), i < blocks(g, units))
        return ite(needed, block(g, i), NULL_BLOCK)

    return Hits(read.times(units, unit), lambda g: blocks(g, units), at)


def hits_for(s: State, r: Int, skip_cache: Bool) -> Hits:
    """The lookup a scheduler makes: for a request that waits and has nothing computed yet."""
    waits = either(s.status(r) == WAITING, s.status(r) == PREEMPTED)
    looks = both(s.engine.enable_caching, negate(skip_cache), waits, s.computed(r) == 0)
    if looks is False:
        return NO_HITS
    hits = get_computed_blocks(s, r)
    return Hits(ite(looks, hits.tokens, 0), lambda g: ite(looks, hits.num(g), 0), hits.at)
