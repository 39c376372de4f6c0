"""Blocks taken group by group: in closed form the front of the queue, a piece of it for each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, Function, Int, both, implies, ite, maximum, negate, within
from slotproof.model.language.state import ABSENT, NO_HASH, State
from slotproof.model.system.allocate_slots import take_up_to
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.names import beside
from slotproof.proofs.prove.obligations.group_loops.group_loop import (
    GroupLoop,
    Of,
    any_request,
    is_mine,
    no_facts,
    of_rows,
)
from slotproof.proofs.prove.symbols import Symbols


def _end_of(read: Symbols) -> Of:
    return {
        "request": any_request(read),
        "end": read.names.function("end"),
        "zeroed": read.names.truth("zeroed"),
    }


def taken_by(s: State, end: Function) -> Callable[[Int], Int]:
    """The blocks that a row takes until it has its end."""
    return lambda row: maximum(0, end(row) - s.length(row))


def taker(read: Symbols, s: State, of: Of) -> z3.FuncDeclRef:
    """position -> the group whose piece of the queue it is in."""
    total = read.summed(of_rows(s, of["request"], taken_by(s, of["end"])))
    return beside("taker", total)


def _take_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r, zeroed, engine = of["request"], of["zeroed"], s.engine
    own = taken_by(s, of["end"])
    amount = of_rows(s, r, own)
    total, by = read.summed(amount), taker(read, s, of)
    taken, held = total(k), s.num_held

    def is_taken(b: Int) -> Bool:
        return within(0, s.rank(b), taken)

    def row(b: Int) -> Int:
        return engine.row(r, by(s.rank(b)))

    def index(b: Int) -> Int:
        return s.length(row(b)) + s.rank(b) - total(by(s.rank(b)))

    def grown(q: Int) -> Int:
        return ite(is_mine(s, r, q, k), own(q), 0)

    def new(q: Int, i: Int) -> Bool:
        return within(s.length(q), i, s.length(q) + grown(q))

    def listed(g: Int) -> Bool:
        return both(zeroed, within(0, g, k), amount(g) > 0)

    def to_zero(g: Int, j: Int) -> Int:
        return ite(both(listed(g), j >= s.num_to_zero(g)), block(g, j), s.to_zero(g, j))

    def block(g: Int, j: Int) -> Int:
        i = s.length(engine.row(r, g)) + j - s.num_to_zero(g)
        return ite(
            new(engine.row(r, g), i), s.at(total(g) + j - s.num_to_zero(g)), s.table(engine.row(r, g), i)
        )

    return {
        "num_free": s.num_free - taken,
        "at": lambda i: s.at(ite(i < 0, i, i + taken)),
        "rank": lambda b: ite(is_taken(b), ABSENT, ite(s.rank(b) >= taken, s.rank(b) - taken, s.rank(b))),
        "ref_cnt": lambda b: ite(is_taken(b), 1, s.ref_cnt(b)),
        "block_hash": lambda b: ite(is_taken(b), NO_HASH, s.block_hash(b)),
        "table": lambda q, i: ite(new(q, i), s.at(total(engine.group(q)) + i - s.length(q)), s.table(q, i)),
        "length": lambda q: s.length(q) + grown(q),
        "holder_row": lambda b, j: ite(is_taken(b), row(b), s.holder_row(b, j)),
        "holder_index": lambda b, j: ite(is_taken(b), index(b), s.holder_index(b, j)),
        "slot": lambda q, i: ite(new(q, i), 0, s.slot(q, i)),
        "held": lambda j: ite(within(held, j, held + taken), s.at(j - held), s.held(j)),
        "held_rank": lambda b: ite(is_taken(b), held + s.rank(b), s.held_rank(b)),
        "writer_row": lambda b: ite(is_taken(b), row(b), s.writer_row(b)),
        "writer_index": lambda b: ite(is_taken(b), index(b), s.writer_index(b)),
        "evicted_idle": lambda b: both(negate(is_taken(b)), s.evicted_idle(b)),
        "written": lambda b: ite(is_taken(b), 0, s.written(b)),
        "num_to_zero": lambda g: s.num_to_zero(g) + ite(listed(g), amount(g), 0),
        "to_zero": to_zero,
    }


def _take_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    total = read.summed(of_rows(s, of["request"], taken_by(s, of["end"])))
    enough = both(of["request"] >= 0, total(read.engine.groups.num) <= s.num_free)
    return [Claim("pool-has-the-blocks", "no-rollback", 0, lambda: enough)]


def pieces(read: Symbols, s: State, of: Of) -> Iterator[Claim]:
    """The piece of the queue that a position is in: so `taker` is defined, there is nothing to prove."""
    amount = of_rows(s, of["request"], taken_by(s, of["end"]))
    total, by, num = read.summed(amount), taker(read, s, of), read.engine.groups.num

    def has_taker(j: Int) -> Bool:
        g = by(j)
        piece = both(within(0, g, num), within(total(g), j, total(g) + amount(g)))
        return implies(within(0, j, total(num)), piece)

    def is_taker(g: Int, j: Int) -> Bool:
        return implies(both(within(0, g, num), within(total(g), j, total(g) + amount(g))), by(j) == g)

    yield Claim("pieces-are-taken", "groups", 1, has_taker, (by,))
    yield Claim("takers-are-apart", "groups", 2, is_taker, (lambda g, j: (total(g), by(j)),))


TAKE = GroupLoop(
    "take-groups",
    "queue-order",
    "stage 3",
    "step take",
    lambda s, row, of: take_up_to(s, row, of["end"](row), of["zeroed"]),
    _end_of,
    (),
    _take_known,
    _take_needs,
    no_facts,
    lambda read, s, of: [of_rows(s, of["request"], taken_by(s, of["end"]))],
)
