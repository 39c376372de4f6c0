"""The prefix cache's lookup (vLLM's `get_computed_blocks`, `find_longest_cache_hit`)."""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.model.language.algebra import Bool, Function, Int, both, either, ite, maximum, negate
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import NULL_BLOCK, PREEMPTED, WAITING, State
from slotproof.model.system.attention.group import hit_run


@dataclass(frozen=True)
class Hits:
    """What a lookup found: `num` table entries, `at(i)` the block of entry i (null before a window)."""

    num: Int
    at: Function


NO_HITS = Hits(0, lambda i: NULL_BLOCK)


def get_computed_blocks(s: State, r: Int) -> Hits:
    """The longest hit of at most num_tokens - 1 tokens: at least one token is left to compute.

    For full attention every block from the first; for a window the rightmost run of blocks that spans
    it, or a prefix shorter than that. Of several blocks with one key the earliest hashed is the hit.
    """
    engine, rules, read = s.engine, s.engine.rules, s.read
    limit = engine.full_blocks(s.num_tokens(r) - (1 if rules.lookup_leaves_a_token else 0))

    def block(i: Int) -> Int:
        return read.earliest(s, block_key(engine, r, i))

    def found(i: Int) -> Bool:
        return s.block_hash(block(i)) == block_key(engine, r, i)

    def start(n: Int) -> Int:
        run = hit_run(engine)
        return 0 if run is None else maximum(0, n - run)

    def hit(n: Int) -> Bool:
        if not rules.lookup_stops_at_miss:
            return either(n == 0, found(n - 1))
        return read.every(start(n), n, found)

    num = read.largest(limit, hit)
    first = start(num)
    return Hits(num, lambda i: ite(i >= first, block(i), NULL_BLOCK))


def hits_for(s: State, r: Int, skip_cache: Bool) -> Hits:
    """The lookup a scheduler makes: for a request that waits and has nothing computed yet."""
    waits = either(s.status(r) == WAITING, s.status(r) == PREEMPTED)
    looks = both(s.engine.enable_caching, negate(skip_cache), waits, s.computed(r) == 0)
    if looks is False:
        return NO_HITS
    hits = get_computed_blocks(s, r)
    return Hits(ite(looks, hits.num, 0), hits.at)
