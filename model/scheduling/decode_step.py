"""A decode step as one call: every running request of a batch gets a slot for one token (one group of full
attention, so that a row is a request).

In closed form, so that nothing is looped over: a row takes a block where its table is full, and the i-th
block that is taken is the i-th of the free queue. That this is what the calls make, one after the other, is
the statement *batch-in-order*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slotproof.model.language.algebra import (
    Bool,
    Function,
    Int,
    both,
    implies,
    ite,
    maximum,
    minimum,
    negate,
    within,
)
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import ABSENT, NO_HASH, RUNNING, State


@dataclass(frozen=True)
class Batch:
    """Rows `0 .. n - 1`, each a request of its own."""

    n: Int
    request: Function
    """row -> request."""
    row: Function
    """request -> its row, if it has one."""
    taker: Function
    """i -> the row that takes the i-th block."""

    def has(self, q: Int) -> Bool:
        """The request is in the batch."""
        return both(within(0, self.row(q), self.n), self.request(self.row(q)) == q)

    def first(self, k: Int) -> Batch:
        """The first k rows alone."""
        return Batch(k, self.request, self.row, self.taker)


def is_full(s: State, r: Int) -> Bool:
    """Every slot of r's table is used: one token more takes a block."""
    return s.computed(r) == s.engine.tokens(s.length(r))


def fills(s: State, r: Int) -> Bool:
    """One token more fills a block whose tokens are final: it gets its hash."""
    full = s.engine.full_blocks(minimum(s.computed(r) + 1, s.num_tokens(r)))
    return both(s.engine.enable_caching, full > s.num_cached(r))


def num_taken(s: State, batch: Batch) -> Int:
    """Blocks that the batch takes."""
    return s.read.count(0, batch.n, lambda j: is_full(s, batch.request(j)))


def num_filled(s: State, batch: Batch) -> Int:
    """Blocks that the batch hashes."""
    return s.read.count(0, batch.n, lambda j: fills(s, batch.request(j)))


def row_contract(s: State, batch: Batch, j: Int) -> Bool:
    """Row j is a running request of its own, has room for a token, and its full blocks are hashed."""
    r, engine = batch.request(j), s.engine
    hashed = engine.full_blocks(minimum(s.computed(r), s.num_tokens(r)))
    return both(
        r >= 0,
        s.status(r) == RUNNING,
        batch.row(r) == j,
        s.computed(r) + 1 <= engine.max_model_len,
        s.in_flight(r) + 1 <= engine.max_in_flight_tokens,
        implies(engine.enable_caching, s.num_cached(r) == hashed),
    )


def decode_step(s: State, batch: Batch) -> State:
    """One token more for every row. The pool must have the blocks (`num_taken`)."""
    taken, filled, end, held = num_taken(s, batch), num_filled(s, batch), s.num_to_zero(0), s.num_held

    def is_taken(b: Int) -> Bool:
        return within(0, s.rank(b), taken)

    def grows(q: Int) -> Bool:
        return both(batch.has(q), is_full(s, q))

    def is_new(q: Int, i: Int) -> Bool:
        return both(grows(q), i == s.length(q))

    def block(q: Int) -> Int:
        """The block that q takes."""
        return s.at(num_taken(s, batch.first(batch.row(q))))

    def owner(b: Int) -> Int:
        return ite(is_taken(b), batch.request(batch.taker(s.rank(b))), s.writer_row(b))

    def is_filled(b: Int) -> Bool:
        r = owner(b)
        i = s.num_cached(r)
        entry = ite(is_new(r, i), block(r), s.table(r, i))
        live = both(s.first(r) <= i, i < s.length(r) + ite(grows(r), 1, 0))
        return both(batch.has(r), fills(s, r), live, entry == b)

    def one_more(field: Function) -> Function:
        return lambda q: field(q) + ite(batch.has(q), 1, 0)

    return s.replace(
        num_free=s.num_free - taken,
        at=lambda i: s.at(i + taken),
        rank=lambda b: ite(is_taken(b), ABSENT, ite(s.is_free(b), s.rank(b) - taken, s.rank(b))),
        ref_cnt=lambda b: ite(is_taken(b), 1, s.ref_cnt(b)),
        block_hash=lambda b: ite(
            is_filled(b),
            block_key(s.engine, owner(b), s.num_cached(owner(b))),
            ite(is_taken(b), NO_HASH, s.block_hash(b)),
        ),
        stamp=lambda b: ite(
            is_filled(b), s.clock + num_filled(s, batch.first(batch.row(owner(b)))), s.stamp(b)
        ),
        clock=s.clock + filled,
        table=lambda q, i: ite(is_new(q, i), block(q), s.table(q, i)),
        length=lambda q: s.length(q) + ite(grows(q), 1, 0),
        num_cached=lambda q: s.num_cached(q) + ite(both(batch.has(q), fills(s, q)), 1, 0),
        computed=one_more(s.computed),
        in_flight=one_more(s.in_flight),
        unwritten=one_more(s.unwritten),
        num_to_zero=lambda g: ite(g == 0, end + taken, s.num_to_zero(g)),
        to_zero=lambda g, j: ite(both(g == 0, j >= end), s.at(j - end), s.to_zero(g, j)),
        holder_row=lambda b, k: ite(is_taken(b), owner(b), s.holder_row(b, k)),
        holder_index=lambda b, k: ite(is_taken(b), s.length(owner(b)), s.holder_index(b, k)),
        slot=lambda q, i: ite(is_new(q, i), 0, s.slot(q, i)),
        held=lambda j: ite(j >= held, s.at(j - held), s.held(j)),
        held_rank=lambda b: ite(is_taken(b), held + s.rank(b), s.held_rank(b)),
        writer_row=owner,
        writer_index=lambda b: ite(is_taken(b), s.length(owner(b)), s.writer_index(b)),
        evicted_idle=lambda b: both(negate(is_taken(b)), s.evicted_idle(b)),
        written=lambda b: ite(is_taken(b), 0, s.written(b)),
        slots=lambda q: ite(batch.has(q), maximum(s.slots(q), s.computed(q) + 1), s.slots(q)),
    )


_WHERE: dict[str, Callable[..., Bool]] = {
    "at": lambda s, i: within(0, i, s.num_free),
    "held": lambda s, j: within(0, j, s.num_held),
    "to_zero": lambda s, g, j: within(0, j, s.num_to_zero(g)),
    "table": lambda s, q, i: s.is_live(q, i),
    "slot": lambda s, q, i: s.is_live(q, i),
    "holder_row": lambda s, b, k: within(0, k, s.ref_cnt(b)),
    "holder_index": lambda s, b, k: within(0, k, s.ref_cnt(b)),
}
"""Where a field means something, if not everywhere."""


def alike(s: State, t: State, field: str, *place: Int) -> Bool:
    """The two states agree on a field at a place, if it means something there."""
    mine, other = getattr(s, field), getattr(t, field)
    if not place:
        return mine == other
    meant = _WHERE[field](s, *place) if field in _WHERE else True
    return implies(meant, mine(*place) == other(*place))
