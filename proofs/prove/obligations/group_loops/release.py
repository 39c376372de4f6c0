"""Blocks released group by group, and a request's all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import z3

from slotproof.model.language.algebra import (
    Bool,
    Int,
    both,
    either,
    iff,
    implies,
    ite,
    maximum,
    minimum,
    within,
)
from slotproof.model.language.state import HAND, NULL_BLOCK, State
from slotproof.model.system.attention import group
from slotproof.model.system.attention.group import skipped_blocks
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.obligations.group_loops.group_loop import (
    QUEUE,
    REFERENCES,
    GroupLoop,
    Of,
    any_request,
    is_mine,
    no_sums,
    of_rows,
)
from slotproof.proofs.prove.symbols import Symbols

_FREED = ("num_free", "front", "ref_cnt", "evicted_idle", *QUEUE, *REFERENCES)


def _processed_of(read: Symbols) -> Of:
    return {"request": any_request(read), "processed": read.names.integer("processed")}


def released_to(s: State, q: Int, processed: Int) -> Int:
    """Where the live entries of a row begin once it has released."""
    passed = minimum(skipped_blocks(s.engine, s.engine.group(q), processed), s.length(q))
    return maximum(passed, s.first(q))


def released(s: State, processed: Int) -> Callable[[Int], Int]:
    """The blocks that a row gives back."""
    return lambda row: released_to(s, row, processed) - s.first(row)


def _release_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r = of["request"]

    def start(q: Int) -> Int:
        return released_to(s, q, of["processed"])

    def gone(q: Int, i: Int) -> Bool:
        return both(is_mine(s, r, q, k), start(q) > s.first(q), i < start(q))

    return {
        "first": lambda q: ite(is_mine(s, r, q, k), start(q), s.first(q)),
        "table": lambda q, i: ite(gone(q, i), NULL_BLOCK, s.table(q, i)),
        "num_cached": s.num_cached,
    }


def _release_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    return [
        Claim("hand-is-empty", "ref-count", 0, lambda: both(s.length(HAND) == 0, s.first(HAND) == 0)),
        Claim("request-is-one", "ref-count", 0, lambda: of["request"] >= 0),
        *_unshared(read, s, of),
    ]


def _unshared(read: Symbols, s: State, of: Of) -> list[Claim]:
    def alone(q: Int, i: Int) -> Bool:
        own = both(read.alone, q >= 0, s.engine.owner(q) == of["request"], s.is_live(q, i))
        return implies(own, s.ref_cnt(s.table(q, i)) == 1)

    return [Claim("blocks-are-not-shared", "admission-suffices", 2, alone, (s.table,))]


def _freeing(read: Symbols, s: State, k: Int, t: State, of: Of) -> list[Claim]:
    def block(b: Int) -> Bool:
        return both(t.ref_cnt(b) <= s.ref_cnt(b), implies(s.is_free(b), t.is_free(b)))

    return [
        Claim("free-stay-free", "free-count", 1, block, (t.ref_cnt, t.rank)),
        Claim("no-fewer-are-free", "free-count", 0, lambda: t.num_free >= s.num_free),
    ]


def _release_facts(read: Symbols, s: State, k: Int, t: State, of: Of) -> list[Claim]:
    amount = of_rows(s, of["request"], released(s, of["processed"]))
    total, engine = read.summed(amount), s.engine
    i = read.integer("unreleased")
    unreleased = z3.ForAll(
        [i],
        implies(within(0, i, k), amount(i) == 0),
        patterns=[engine.row(of["request"], i)],
        qid="unreleased",
    )

    def untouched(b: Int) -> Bool:
        same = both(t.rank(b) == s.rank(b), t.ref_cnt(b) == s.ref_cnt(b), t.num_free == s.num_free)
        return implies(unreleased, same)

    return [
        *_freeing(read, s, k, t, of),
        Claim(
            "unshared-blocks-are-freed",
            "free-count",
            0,
            lambda: implies(read.alone, t.num_free == s.num_free + total(k)),
        ),
        Claim(
            "without-release-nothing-changes", "refusal-leaves-no-trace", 1, untouched, (t.ref_cnt, t.rank)
        ),
    ]


RELEASE = GroupLoop(
    "release-groups",
    "ref-count",
    "stage 1",
    "step release",
    lambda s, row, of: group.remove_skipped_blocks(s, row, of["processed"]),
    _processed_of,
    (*_FREED, "slot"),
    _release_known,
    _release_needs,
    _release_facts,
    lambda read, s, of: [of_rows(s, of["request"], released(s, of["processed"]))],
)


def _free_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r = of["request"]

    def gone(q: Int, i: Int) -> Bool:
        return both(is_mine(s, r, q, k), s.length(q) > s.first(q), i < s.length(q))

    return {
        "table": lambda q, i: ite(gone(q, i), NULL_BLOCK, s.table(q, i)),
        "length": lambda q: ite(is_mine(s, r, q, k), 0, s.length(q)),
        "first": lambda q: ite(is_mine(s, r, q, k), 0, s.first(q)),
        "num_cached": lambda q: ite(is_mine(s, r, q, k), 0, s.num_cached(q)),
    }


def _free_facts(read: Symbols, s: State, k: Int, t: State, of: Of) -> list[Claim]:
    r, engine = of["request"], s.engine

    def entry(g: Int, i: Int) -> Int:
        return s.table(engine.row(r, g), i)

    def is_live(g: Int, i: Int) -> Bool:
        return both(within(0, g, k), s.is_live(engine.row(r, g), i))

    def tail_first(g: Int, i: Int, j: Int) -> Bool:
        a, b = entry(g, i), entry(g, j)
        alike = iff(t.is_hashed(a), t.is_hashed(b))
        both_free = both(is_live(g, i), is_live(g, j), i < j, t.is_free(a), t.is_free(b), alike)
        return implies(both_free, t.rank(b) < t.rank(a))

    def place(g: Int, i: Int, c: Int) -> Bool:
        b = entry(g, i)
        behind = ite(t.is_hashed(b), t.rank(b) > t.rank(c), t.rank(b) < t.rank(c))
        return implies(both(is_live(g, i), t.is_free(b), s.is_free(c)), behind)

    def only_own(b: Int) -> Bool:
        g, i = engine.group(s.writer_row(b)), s.writer_index(b)
        return implies(t.is_free(b), either(s.is_free(b), both(is_live(g, i), entry(g, i) == b)))

    return [
        *_freeing(read, s, k, t, of),
        Claim("only-own-blocks-are-freed", "free-count", 1, only_own, (t.rank,)),
        Claim(
            "tail-before-head", "queue-order", 3, tail_first, (lambda g, i, j: (entry(g, i), entry(g, j)),)
        ),
        Claim("freed-take-their-place", "queue-order", 3, place, (lambda g, i, c: (entry(g, i), s.rank(c)),)),
    ]


FREE = GroupLoop(
    "free-groups",
    "ref-count",
    "pool",
    "step release",
    lambda s, row, of: group.free(s, row),
    lambda read: {"request": any_request(read)},
    (*_FREED, "slot"),
    _free_known,
    _release_needs,
    _free_facts,
    no_sums,
)
