"""Hits adopted group by group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from slotproof.model.language.algebra import Bool, Int, both, implies, ite, maximum, minimum, within
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import NULL_BLOCK, State
from slotproof.model.system.allocate_slots import Ask, adopt_row, is_idle_hit
from slotproof.model.system.attention.group import null_blocks
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.obligations.group_loops.group_loop import (
    QUEUE,
    REFERENCES,
    GroupLoop,
    Of,
    any_request,
    is_mine,
    no_facts,
    of_groups,
)
from slotproof.proofs.prove.obligations.steps import any_hits
from slotproof.proofs.prove.symbols import Symbols


def _hits_of(read: Symbols) -> Of:
    return {"request": any_request(read), "hits": any_hits(read), "total": read.names.integer("total")}


def hit_range(s: State, hits: Hits, g: Int, total: Int) -> tuple[Int, Int]:
    num = hits.num(g)
    return minimum(adopted_from(s, hits, g, total), num), num


def adopted_from(s: State, hits: Hits, g: Int, total: Int) -> Int:
    """The first hit that is adopted: those before are null blocks."""
    return null_blocks(s.engine, g, hits.num(g), total)


def idle_of(s: State, hits: Hits, total: Int) -> Callable[[Int], Int]:
    """The hits of group g that are idle."""

    def idle(g: Int) -> Int:
        low, high = hit_range(s, hits, g, total)
        return s.read.count(low, high, partial(is_idle_hit, s, hits), g)

    return idle


def _adopt_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r, hits, total, engine = of["request"], of["hits"], of["total"], s.engine
    idle = read.summed(idle_of(s, hits, total))

    def skip(q: Int) -> Int:
        return adopted_from(s, hits, engine.group(q), total)

    def num(q: Int) -> Int:
        return hits.num(engine.group(q))

    def fresh(q: Int) -> Bool:
        return both(is_mine(s, r, q, k), s.length(q) == 0)

    def adopted(b: Int) -> Bool:
        g, i = engine.group(s.writer_row(b)), s.writer_index(b)
        q = engine.row(r, g)
        return both(within(0, g, k), s.length(q) == 0, within(skip(q), i, num(q)), hits.at(g, i) == b)

    def table(q: Int, i: Int) -> Int:
        hit = ite(within(skip(q), i, num(q)), hits.at(engine.group(q), i), s.table(q, i))
        return ite(fresh(q), ite(both(skip(q) > 0, i < skip(q)), NULL_BLOCK, hit), s.table(q, i))

    def entries(q: Int) -> Int:
        return maximum(skip(q), num(q))

    return {
        "num_free": s.num_free - idle(k),
        "ref_cnt": lambda b: s.ref_cnt(b) + ite(adopted(b), 1, 0),
        "table": table,
        "length": lambda q: ite(fresh(q), entries(q), s.length(q)),
        "first": lambda q: ite(both(fresh(q), skip(q) > 0), skip(q), s.first(q)),
        "num_cached": lambda q: ite(both(fresh(q), entries(q) > 0), entries(q), s.num_cached(q)),
    }


def _adopt_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    r, hits, total, engine = of["request"], of["hits"], of["total"], s.engine

    def found(g: Int, i: Int) -> Bool:
        b = hits.at(g, i)
        needed = both(
            within(0, g, engine.groups.num), within(adopted_from(s, hits, g, total), i, hits.num(g))
        )
        is_key = s.block_hash(b) == block_key(engine, engine.row(r, g), i)
        return implies(needed, both(s.is_block(b), is_key))

    def empty(g: Int, row: Int) -> Bool:
        is_empty = both(s.length(row) == 0, s.num_cached(row) == 0)
        return both(
            hits.num(g) >= 0,
            implies(hits.num(g) > 0, is_empty),
            implies(s.length(row) == 0, s.num_cached(row) == 0),
        )

    return [
        Claim("request-is-one", "ref-count", 0, lambda: r >= 0),
        of_groups(s, r, "hits-are-for-empty-tables", "ref-count", empty),
        Claim("hits-have-the-askers-key", "hash-soundness", 2, found, (hits.at,)),
    ]


ADOPT = GroupLoop(
    "adopt-groups",
    "idle-hits-cost",
    "stage 3",
    "step touch",
    lambda s, row, of: adopt_row(s, row, Ask(new=0, hits=of["hits"]), of["total"]),
    _hits_of,
    (*QUEUE, *REFERENCES, "slot"),
    _adopt_known,
    _adopt_needs,
    no_facts,
    lambda read, s, of: [idle_of(s, of["hits"], of["total"])],
)
