"""The prefix cache's lookup (vLLM's `get_computed_blocks`, `find_longest_cache_hit`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from slotproof.model.language.algebra import Bool, Function, Int, both, either, implies, ite, negate
from slotproof.model.language.engine import DENSE
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
    junction: Int = 0
    """Where the hit of the groups that are looked up first ends, if that is further; else 0."""


NO_HITS = Hits(0, lambda g: 0, lambda g, i: NULL_BLOCK)


def get_computed_blocks(s: State, r: Int) -> Hits:
    """The longest hit of at most num_tokens - 1 tokens on which all groups agree: at least one token is left
    to compute.

    It ends where a block of every group ends. A group of full attention needs every block from the first; a
    window or a chunk the blocks that the next token looks at. A group that drops the last block of a hit
    finds one more than it gives. Of several blocks with one key the earliest hashed is the hit. (vLLM looks
    at the groups in turn, each up to what the one before found, until none finds less. That comes to the
    same, unless several kinds of windows drop: KNOWN.md.)
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

    def is_behind(g: Int, n: Int) -> Bool:
        """The block behind the hit is found too; one group alone looks for no more than it may give."""
        end = blocks(g, n)
        most = s.num_tokens(r) - (1 if groups.is_one and rules.lookup_leaves_a_token else 0)
        return both(engine.tokens(end + 1, g) <= most, found(g, end))

    def finds(g: Int, n: Int) -> Bool:
        if not rules.lookup_drops_last_block:
            return hit(g, n)
        return both(hit(g, n), implies(groups.drops(g), is_behind(g, n)))

    def agree(n: Int) -> Bool:
        asked = groups.num if rules.lookup_agrees_on_a_length else 1
        return read.every(0, asked, lambda g: finds(g, n))

    units = read.largest(limit, agree)

    def junction() -> Int:
        """Where the groups that are looked up first leave the others behind."""

        def lead(n: Int) -> Bool:
            return read.every(0, groups.num, lambda g: implies(groups.leads(g), finds(g, n)))

        first = read.largest(limit, lead)
        return ite(first > units, read.times(first, unit), 0)

    def at(g: Int, i: Int) -> Int:
        needed = both(i >= hit_start(engine, g, blocks(g, units)), i < blocks(g, units))
        return ite(needed, block(g, i), NULL_BLOCK)

    left = 0 if engine.retention_interval is DENSE or groups.is_one else read.opaque("junction", junction, r)
    return Hits(read.times(units, unit), lambda g: blocks(g, units), at, left)


def hits_for(s: State, r: Int, skip_cache: Bool) -> Hits:
    """The lookup a scheduler makes: for a request that waits and has nothing computed yet."""
    waits = either(s.status(r) == WAITING, s.status(r) == PREEMPTED)
    looks = both(s.engine.enable_caching, negate(skip_cache), waits, s.computed(r) == 0)
    if looks is False:
        return NO_HITS
    hits = get_computed_blocks(s, r)
    num, left = (lambda g: ite(looks, hits.num(g), 0)), ite(looks, hits.junction, 0)
    return Hits(ite(looks, hits.tokens, 0), num, hits.at, left)
