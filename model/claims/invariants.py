"""The invariants: what holds between any two steps, each about one block, entry or request at a time.

They are kept by every single step of the pool (`STEPWISE`), or by every whole call of a caller within
its contract (`LEDGER`). Counting is done by bijection: `rank` and `at` pair the free blocks with
0 .. num_free - 1, `held_rank` and `held` the others with 0 .. num_held - 1, `slot` and `holder` a
block's references with 0 .. ref_cnt - 1. That the pairing exists *is* that the counters are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotproof.model.language.algebra import (
    Bool,
    Int,
    both,
    either,
    iff,
    implies,
    maximum,
    minimum,
    negate,
    within,
)
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import (
    ABSENT,
    HAND,
    LOADING,
    NULL_BLOCK,
    PREEMPTED,
    RUNNING,
    UNKNOWN,
    WAITING,
    State,
)
from slotproof.model.scheduling.caller import settled
from slotproof.model.scheduling.worker import arrives, end_of, executed, is_written, writer_holds
from slotproof.model.system.attention.group import skipped_blocks


@dataclass(frozen=True)
class Invariant:
    """For all values of the variables, `holds(state, *values)`.

    A variable is a "block", a "position" in a queue, a "request", a "group", a "row" of the block tables (the
    hand too), an "index" into a row, or a "reference" of a block. `triggers` are the terms at which a proof
    instantiates it.
    """

    name: str
    statement: str
    """The statement that it is part of."""
    variables: tuple[str, ...]
    holds: Callable[..., Bool]
    triggers: tuple[Callable[..., Any], ...] = ()


def _counter(s: State) -> Bool:
    return both(s.num_free >= 0, s.num_held >= 0)


def _queued(s: State, i: Int) -> Bool:
    return implies(within(0, i, s.num_free), both(s.is_block(s.at(i)), s.rank(s.at(i)) == i))


def _ranked(s: State, b: Int) -> Bool:
    rank = s.rank(b)
    return either(rank == ABSENT, both(within(0, rank, s.num_free), s.at(rank) == b))


def _free_if_unreferenced(s: State, b: Int) -> Bool:
    return implies(s.is_block(b), both(s.ref_cnt(b) >= 0, iff(s.ref_cnt(b) == 0, s.rank(b) >= 0)))


def _held(s: State, j: Int) -> Bool:
    return implies(within(0, j, s.num_held), both(s.is_block(s.held(j)), s.held_rank(s.held(j)) == j))


def _held_ranked(s: State, b: Int) -> Bool:
    rank = s.held_rank(b)
    return both(
        either(rank == ABSENT, both(within(0, rank, s.num_held), s.held(rank) == b)),
        implies(s.is_block(b), iff(s.ref_cnt(b) > 0, rank >= 0)),
    )


def _null(s: State) -> Bool:
    b = NULL_BLOCK
    return both(s.rank(b) == ABSENT, s.held_rank(b) == ABSENT, s.ref_cnt(b) == 0, negate(s.is_hashed(b)))


def _null_entries(s: State, r: Int, i: Int) -> Bool:
    return implies(both(r >= 0, within(0, i, s.first(r))), s.table(r, i) == NULL_BLOCK)


def _rows(s: State, r: Int) -> Bool:
    return both(s.first(r) >= 0, s.first(r) <= s.length(r))


def _entries(s: State, r: Int, i: Int) -> Bool:
    b, k = s.table(r, i), s.slot(r, i)
    named = both(s.holder_row(b, k) == r, s.holder_index(b, k) == i)
    return implies(both(r >= HAND, s.is_live(r, i)), both(s.is_block(b), within(0, k, s.ref_cnt(b)), named))


def _references(s: State, b: Int, k: Int) -> Bool:
    r, i = s.holder_row(b, k), s.holder_index(b, k)
    return implies(
        both(s.is_block(b), within(0, k, s.ref_cnt(b))),
        both(r >= HAND, s.is_live(r, i), s.table(r, i) == b, s.slot(r, i) == k),
    )


def _private(s: State, r: Int, i: Int) -> Bool:
    b = s.table(r, i)
    return implies(
        both(r >= 0, s.is_live(r, i), i >= s.num_cached(r)),
        both(s.is_private(b), s.writer_row(b) == r),
    )


def _key(s: State, b: Int) -> Bool:
    row, i = s.writer_row(b), s.writer_index(b)
    return implies(s.is_hashed(b), both(i >= 0, s.block_hash(b) == block_key(s.engine, row, i)))


def _final(s: State, b: Int) -> Bool:
    reach, group = s.writer_index(b) + 1, s.engine.group(s.writer_row(b))
    return implies(s.is_hashed(b), reach <= s.engine.full_blocks(s.num_tokens(s.writer(b)), group))


def _same_prefix(s: State, r: Int, i: Int) -> Bool:
    b = s.table(r, i)
    writer = s.writer_row(b)
    same = block_key(s.engine, writer, i) == block_key(s.engine, r, i)
    return implies(both(r >= 0, s.is_live(r, i)), both(s.writer_index(b) == i, either(writer == r, same)))


def _one_group(s: State, b: Int, k: Int) -> Bool:
    row, engine = s.holder_row(b, k), s.engine
    held = both(s.is_block(b), within(0, k, s.ref_cnt(b)), row >= 0)
    return implies(held, engine.group(row) == engine.group(s.writer_row(b)))


def _order(s: State, b: Int, c: Int) -> Bool:
    return implies(
        both(s.is_free(b), s.is_free(c), s.is_hashed(b), negate(s.is_hashed(c)), negate(s.evicted_idle(c))),
        s.rank(c) < s.rank(b),
    )


_BLOCK = (lambda s, b: s.ref_cnt(b), lambda s, b: s.rank(b))
_ENTRY = (lambda s, r, i: s.table(r, i),)
_HASH = (lambda s, b: s.block_hash(b),)
_ROW = (lambda s, r: s.first(r), lambda s, r: s.length(r))
_HOLDER = (lambda s, b, k: s.holder_row(b, k), lambda s, b, k: s.holder_index(b, k))

STEPWISE = (
    Invariant("counters-are-not-negative", "free-count", (), _counter),
    Invariant("queue-holds-each-block-once", "free-count", ("position",), _queued, (lambda s, i: s.at(i),)),
    Invariant("ranked-blocks-are-queued", "free-count", ("block",), _ranked, (lambda s, b: s.rank(b),)),
    Invariant("free-if-unreferenced", "free-count", ("block",), _free_if_unreferenced, _BLOCK),
    Invariant("held-blocks-are-counted", "usage", ("position",), _held, (lambda s, j: s.held(j),)),
    Invariant(
        "counted-blocks-are-held", "usage", ("block",), _held_ranked, (lambda s, b: s.held_rank(b), *_BLOCK)
    ),
    Invariant("null-block-is-out-of-the-pool", "null-block", (), _null),
    Invariant("null-block-fills-the-gap", "null-block", ("row", "index"), _null_entries, _ENTRY),
    Invariant("live-entries-are-a-range", "ref-count", ("row",), _rows, _ROW),
    Invariant("entries-are-references", "ref-count", ("row", "index"), _entries, _ENTRY),
    Invariant("references-are-entries", "ref-count", ("block", "reference"), _references, _HOLDER),
    Invariant("holders-are-of-the-writers-group", "one-group", ("block", "reference"), _one_group, _HOLDER),
    Invariant("unpublished-blocks-are-private", "no-aliased-write", ("row", "index"), _private, _ENTRY),
    Invariant("hash-is-the-writers", "hash-soundness", ("block",), _key, _HASH),
    Invariant("hashed-tokens-are-final", "drafts-never-hashed", ("block",), _final, _HASH),
    Invariant("entry-holds-its-prefix", "hash-soundness", ("row", "index"), _same_prefix, _ENTRY),
    Invariant(
        "unhashed-before-hashed",
        "queue-order",
        ("block", "block"),
        _order,
        (lambda s, b, c: (s.rank(b), s.rank(c)),),
    ),
)
"""Kept by every step of the pool."""


def _status(s: State, r: Int) -> Bool:
    status = s.status(r)
    return both(
        within(UNKNOWN, status, PREEMPTED + 1),
        implies(either(status == UNKNOWN, status == PREEMPTED), s.computed(r) == 0),
        implies(status != RUNNING, s.in_flight(r) == 0),
        implies(both(status != RUNNING, status != LOADING), s.unwritten(r) == 0),
        implies(status == LOADING, within(1, s.computed(r), s.num_tokens(r))),
    )


def _idle(s: State, row: Int) -> Bool:
    r = s.engine.owner(row)
    away = either(s.status(r) == UNKNOWN, s.status(r) == PREEMPTED)
    new = both(s.status(r) == WAITING, s.computed(r) == 0)
    return implies(either(away, new), s.length(row) == 0)


def _tokens(s: State, r: Int) -> Bool:
    limit = s.engine.max_model_len
    return both(
        s.in_flight(r) >= 0,
        s.in_flight(r) <= s.computed(r),
        within(0, s.unwritten(r), s.computed(r) + 1),
        s.computed(r) <= limit,
        within(0, s.num_tokens(r), limit + 1),
        implies(s.status(r) != UNKNOWN, s.num_tokens(r) > 0),
    )


def _covered(s: State, row: Int) -> Bool:
    r, g = s.engine.owner(row), s.engine.group(row)
    in_bounds = both(s.computed(r) <= s.slots(r), s.slots(r) <= s.engine.max_model_len)
    return both(s.length(row) == s.engine.blocks(s.slots(r), g), in_bounds)


def _published(s: State, row: Int) -> Bool:
    r, g = s.engine.owner(row), s.engine.group(row)
    final = s.engine.full_blocks(minimum(s.computed(r), s.num_tokens(r)), g)
    return within(0, s.num_cached(row), final + 1)


def out_of_sight(engine: Engine, g: Int, blocks: Int, token: Int) -> Bool:
    """No token from `token` on attends to one in the first `blocks` blocks of group g: their last is a window
    behind, or in a chunk before."""
    kind = engine.groups.kind(g)
    if kind is FULL:
        return blocks <= 0
    end, window = engine.tokens(blocks, g), engine.groups.window(g)
    in_window = both(kind == SLIDING_WINDOW, end - 1 + window <= token)
    if CHUNKED_LOCAL not in engine.groups.kinds or kind is SLIDING_WINDOW:
        return either(blocks <= 0, in_window)
    read = engine.read
    in_chunk = both(kind == CHUNKED_LOCAL, end <= read.times(read.floor_div(token, window), window))
    return either(blocks <= 0, in_window, in_chunk)


def _window(s: State, row: Int) -> Bool:
    engine = s.engine
    return out_of_sight(engine, engine.group(row), s.first(row), settled(s, engine.owner(row)))


def _load_in_window(s: State, row: Int) -> Bool:
    r, g = s.engine.owner(row), s.engine.group(row)
    loading = s.unwritten(r) > s.in_flight(r)
    return implies(loading, s.first(row) >= skipped_blocks(s.engine, g, settled(s, r)))


def _own_slots(s: State, row: Int, i: Int) -> Bool:
    r, g = s.engine.owner(row), s.engine.group(row)
    open_tokens = maximum(s.in_flight(r), s.unwritten(r))
    unsettled = s.engine.tokens(i + 1, g) > s.computed(r) - open_tokens
    return implies(both(row >= 0, s.is_live(row, i), unsettled), s.writer_row(s.table(row, i)) == row)


def _hand_is_empty(s: State) -> Bool:
    return both(s.length(HAND) == 0, s.first(HAND) == 0)


def _of_requests(holds: Callable[[State, Int], Bool]) -> Callable[[State, Int], Bool]:
    return lambda s, r: implies(r >= 0, holds(s, r))


_ANY = tuple(
    (lambda s, r, field=field: getattr(s, field)(r))
    for field in ("status", "num_tokens", "computed", "in_flight", "unwritten")
)
_ANY_ROW = tuple(
    (lambda s, row, field=field: getattr(s, field)(row)) for field in ("length", "first", "num_cached")
)

LEDGER = (
    Invariant("status-fits-the-tokens", "enough-slots", ("request",), _of_requests(_status), _ANY),
    Invariant("status-fits-the-table", "enough-slots", ("row",), _of_requests(_idle), _ANY_ROW),
    Invariant("tokens-are-counted", "enough-slots", ("request",), _of_requests(_tokens), _ANY),
    Invariant("table-covers-computed", "enough-slots", ("row",), _of_requests(_covered), _ANY_ROW),
    Invariant("published-is-computed", "no-aliased-write", ("row",), _of_requests(_published), _ANY_ROW),
    Invariant("window-is-kept", "window-kept", ("row",), _of_requests(_window), _ANY_ROW),
    Invariant("loads-are-in-the-window", "window-kept", ("row",), _of_requests(_load_in_window), _ANY_ROW),
    Invariant("open-tokens-have-own-blocks", "no-aliased-write", ("row", "index"), _own_slots, _ENTRY),
    Invariant("hand-is-empty", "ref-count", (), _hand_is_empty),
)
"""Kept by every call within the contract."""


def _hashed_is_written(s: State, b: Int) -> Bool:
    return implies(s.is_hashed(b), either(is_written(s, b), arrives(s, b)))


def _computed_is_written(s: State, row: Int, i: Int) -> Bool:
    r, g = s.engine.owner(row), s.engine.group(row)
    b, end = s.table(row, i), minimum(s.engine.tokens(i + 1, g), executed(s, r))
    begun = s.engine.tokens(i, g) < executed(s, r)
    return implies(both(row >= 0, s.is_live(row, i), begun), either(s.written(b) >= end, arrives(s, b)))


def _no_more(s: State, b: Int) -> Bool:
    done = implies(writer_holds(s, b), s.written(b) <= executed(s, s.writer(b)))
    return both(s.written(b) <= maximum(0, end_of(s, b)), done)


WRITTEN = (
    Invariant("hashed-blocks-are-written", "published-is-written", ("block",), _hashed_is_written, _HASH),
    Invariant(
        "computed-tokens-are-written",
        "published-is-written",
        ("row", "index"),
        _computed_is_written,
        _ENTRY,
    ),
    Invariant(
        "no-more-is-written", "published-is-written", ("block",), _no_more, (lambda s, b: s.written(b),)
    ),
)
"""Kept by every call within the contract of a caller with care (`Action.care`): what is hashed, and what is
computed, is written, or will be in the step that is being made up; and nothing else counts as written."""
