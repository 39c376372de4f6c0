"""Hashes, group by group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotproof.model.language.algebra import Bool, Int, both, implies, ite, maximum, within
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import State
from slotproof.model.system.attention import group
from slotproof.model.system.attention.group import is_reachable, num_full_blocks
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.obligations.group_loops.group_loop import (
    GroupLoop,
    Of,
    any_request,
    is_mine,
    no_facts,
    of_groups,
    of_rows,
)
from slotproof.proofs.prove.symbols import Symbols


def _tokens_of(read: Symbols) -> Of:
    return {"request": any_request(read), "num_tokens": read.names.integer("num_to_cache")}


def filled(s: State, num_tokens: Int) -> Callable[[Int], Int]:
    """The entries of a row whose hashes are due."""
    engine = s.engine

    def due(row: Int) -> Int:
        full = num_full_blocks(engine, engine.group(row), num_tokens)
        return ite(engine.enable_caching, maximum(0, full - s.num_cached(row)), 0)

    return due


def _cache_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r, engine = of["request"], s.engine
    own = filled(s, of["num_tokens"])
    total = read.summed(of_rows(s, r, own))

    def row(b: Int) -> Int:
        return engine.row(r, engine.group(s.writer_row(b)))

    def published(b: Int) -> Bool:
        q, i = row(b), s.writer_index(b)
        g = engine.group(s.writer_row(b))
        due = within(s.num_cached(q), i, s.num_cached(q) + own(q))
        entry = both(s.is_live(q, i), s.table(q, i) == b)
        return both(within(0, g, k), is_reachable(s, q, i), due, entry)

    def stamp(b: Int) -> Int:
        return s.clock + total(engine.group(s.writer_row(b))) + s.writer_index(b) - s.num_cached(row(b))

    return {
        "block_hash": lambda b: ite(
            published(b), block_key(engine, row(b), s.writer_index(b)), s.block_hash(b)
        ),
        "stamp": lambda b: ite(published(b), stamp(b), s.stamp(b)),
        "num_cached": lambda q: s.num_cached(q) + ite(is_mine(s, r, q, k), own(q), 0),
        "clock": s.clock + total(k),
    }


def _cache_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    r, engine = of["request"], s.engine

    def waits(g: Int, row: Int) -> Bool:
        full = num_full_blocks(engine, g, of["num_tokens"])
        due = both(engine.enable_caching, full > s.num_cached(row))
        return both(s.num_cached(row) >= 0, implies(due, full <= s.length(row)))

    def final(g: Int, row: Int) -> Bool:
        full = num_full_blocks(engine, g, of["num_tokens"])
        due = both(engine.enable_caching, full > s.num_cached(row))
        return implies(due, full <= engine.full_blocks(s.num_tokens(r), g))

    return [
        Claim("request-is-one", "ref-count", 0, lambda: r >= 0),
        of_groups(s, r, "blocks-wait-for-a-hash", "no-aliased-write", waits),
        of_groups(s, r, "tokens-are-final", "drafts-never-hashed", final),
    ]


CACHE = GroupLoop(
    "cache-groups",
    "hash-soundness",
    "stage 4",
    "step publish",
    lambda s, row, of: group.cache_blocks(s, row, of["num_tokens"]),
    _tokens_of,
    (),
    _cache_known,
    _cache_needs,
    no_facts,
    lambda read, s, of: [of_rows(s, of["request"], filled(s, of["num_tokens"]))],
)
