"""*batch-in-order*: a decode step in closed form is its requests' calls, one after the other.

By induction over the rows: the first k rows as a batch, and then the call of row k, are the first k + 1 rows
as a batch, in every field of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import z3

from slotproof.model.claims.invariants import LEDGER, STEPWISE
from slotproof.model.language.algebra import both, implies, ite, minimum, within
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, RUNNING, State
from slotproof.model.scheduling.caller import allocate, allocate_contract
from slotproof.model.scheduling.decode_step import (
    Batch,
    alike,
    decode_step,
    fills,
    is_full,
    num_taken,
    row_contract,
)
from slotproof.model.system.allocate_slots import Answer, Ask
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, of_state
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.group_loops.ends import end_of_loop
from slotproof.proofs.prove.symbols import Symbols

STATEMENT = "batch-in-order"
OUT_OF_IT = ("queue-order", "usage")
"""Statements whose invariants have no say in a step: the order of the queue, and who is counted as held."""
ROW = ("status", "computed", "num_tokens", "length", "num_cached")


def batch(kind: str, rules: Rules) -> Iterator[Obligation]:
    """No rows change nothing; one row more is one call more, which is granted."""
    read = Symbols(kind, rules, end_of_loop, arithmetic.LEAN)
    s, k = read.state(), read.names.integer("k")
    names = ("request_of", "row_of", "taker")
    rows = Batch(read.names.integer("rows"), *map(read.names.function, names))
    r = rows.request(k)
    read.assume(within(0, k, rows.n), *invariants(s))
    for claim in (*_rows(s, rows, k), *counting(read, s, rows)):
        read.assume_claim(claim)
    for claim in _same(s, decode_step(s, rows.first(0))):
        yield _obligation("no rows", claim, kind, read)

    before = decode_step(s, rows.first(k))
    legal = tuple(invariants(before))
    read.assume(*_arithmetic(s, r))
    yield _obligation("one row", _asks_no_more(s, rows), kind, read)
    for name, holds in allocate_contract(before, r, Ask(new=1)).items():
        claim = Claim(name, STATEMENT, 0, lambda holds=holds: holds)
        yield _obligation("one row more", claim, kind, read, *legal)
    outcome = allocate(before, r, Ask(new=1))
    assert outcome.answer is not None
    for name, holds in _one_row(s, before, outcome.answer, r).items():
        claim = Claim(name, STATEMENT, 0, lambda holds=holds: holds)
        yield _obligation("one row more", claim, kind, read, *legal)
        read.assume(holds)
    granted = Claim("call-is-granted", STATEMENT, 0, lambda: outcome.granted)
    yield _obligation("one row more", granted, kind, read, *legal)
    read.assume(outcome.granted)
    for claim in _same(outcome.state, decode_step(s, rows.first(k + 1))):
        if claim.name not in ("block_hash", "stamp"):
            yield _obligation("one row more", claim, kind, read)
            continue
        (b,) = claim.values()
        known = _where_hashed(outcome.answer, r, b)
        yield _obligation("one row more, block kept", claim, kind, read, z3.Not(s.is_free(b)), *known)
        yield _obligation("one row more, block free", claim, kind, read, s.is_free(b), *known)


def _asks_no_more(s: State, rows: Batch) -> Claim:
    """A row asks of its request what a call asks that is made for it alone, and that its full blocks are
    hashed; no more."""

    def enough(j: Any) -> Any:
        r = rows.request(j)
        call = both(s.status(r) == RUNNING, *allocate_contract(s, r, Ask(new=1)).values())
        final = s.engine.full_blocks(minimum(s.computed(r), s.num_tokens(r)))
        hashed = implies(s.engine.enable_caching, s.num_cached(r) == final)
        return implies(both(call, hashed, rows.row(r) == j), row_contract(s, rows, j))

    return Claim("contract-asks-no-more", STATEMENT, 1, enough)


def _one_row(s: State, before: State, answer: Answer, r: Any) -> dict[str, Any]:
    """What a call comes down to, step by step: its row is as at the start, adopts nothing, takes one block at
    most and fills one at most."""
    adopted = answer.adopted
    length, cached = s.length(r), s.num_cached(r)
    blocks = s.engine.blocks(s.computed(r) + 1)
    filled = s.engine.full_blocks(minimum(s.computed(r) + 1, s.num_tokens(r)))
    return {
        "row-is-as-it-was": both(
            length >= 0, *(getattr(before, field)(r) == getattr(s, field)(r) for field in ROW)
        ),
        "adopts-nothing": both(adopted.num_free == before.num_free, adopted.length(r) == s.length(r)),
        "takes-one-if-full": ite(is_full(s, r), blocks == length + 1, blocks <= length),
        "fills-one-at-most": implies(s.engine.enable_caching, filled <= cached + 1),
    }


def _where_hashed(answer: Answer, r: Any, b: Any) -> list[z3.BoolRef]:
    """What is known of the entry that a block was taken for, and of the next that the row fills: its own."""
    s, known = answer.committed, []
    for invariant in STEPWISE:
        if invariant.name in ("unpublished-blocks-are-private", "entry-holds-its-prefix"):
            for i in (s.writer_index(b), s.num_cached(r)):
                known.append(as_term(invariant.holds(s, r, i)))
    return known


def invariants(s: State) -> Iterator[z3.BoolRef]:
    """What the step relies on."""
    relied = (i for i in (*STEPWISE, *LEDGER) if i.statement not in OUT_OF_IT)
    return (of_state(invariant, s).assumed() for invariant in relied)


def _rows(s: State, rows: Batch, k: Any) -> Iterator[Claim]:
    """The batch is as a caller makes it up, the pool has the blocks, and `taker` is what it says."""
    yield from legal_rows(s, rows)

    def takes(i: Any) -> Any:
        j = rows.taker(i)
        ith = both(within(0, j, rows.n), is_full(s, rows.request(j)), num_taken(s, rows.first(j)) == i)
        return implies(within(0, i, num_taken(s, rows)), ith)

    def is_taker(j: Any) -> Any:
        full = both(within(0, j, rows.n), is_full(s, rows.request(j)))
        return implies(full, rows.taker(num_taken(s, rows.first(j))) == j)

    yield Claim("taker-takes", STATEMENT, 1, takes, (rows.taker,))
    yield Claim("row-takes-if-full", STATEMENT, 0, lambda: is_taker(k))


def legal_rows(s: State, rows: Batch) -> Iterator[Claim]:
    """The batch is as a caller makes it up, and the pool has the blocks."""

    def is_row(j: Any) -> Any:
        return implies(within(0, j, rows.n), row_contract(s, rows, j))

    yield Claim("rows-are-running-requests", STATEMENT, 1, is_row, (rows.request,))
    yield Claim("pool-has-the-blocks", STATEMENT, 0, lambda: num_taken(s, rows) <= s.num_free)


def counting(read: Symbols, s: State, rows: Batch) -> Iterator[Claim]:
    """What a count is: one more with each row that is counted, and so never less with more rows."""
    yield from counts(read, "full", lambda j: is_full(s, rows.request(j)), rows)
    yield from counts(read, "filling", lambda j: fills(s, rows.request(j)), rows)


def counts(read: Symbols, name: str, predicate: Callable[[Any], Any], rows: Batch) -> Iterator[Claim]:
    counted = read.counted(predicate)

    def grows(j: Any) -> Any:
        return counted(j + 1) == counted(j) + ite(predicate(j), 1, 0)

    def is_monotone(i: Any, j: Any) -> Any:
        return implies(i <= j, counted(i) <= counted(j))

    def pair(i: Any, j: Any) -> Any:
        return counted(i), counted(j)

    yield Claim(f"{name}-rows-are-counted", STATEMENT, 1, grows, (rows.request,))
    yield Claim(
        f"{name}-count-is-monotone", STATEMENT, 2, is_monotone, (lambda i, j: (counted(i), counted(j)),)
    )


def _arithmetic(s: State, r: Any) -> Iterator[z3.BoolRef]:
    """A token more takes one block at most, and fills one at most."""
    size = s.engine.groups.block_size(0)
    yield arithmetic.next_block(s.length(r), size).goal()
    for tokens in (s.computed(r), s.num_tokens(r)):
        full = arithmetic.floor(tokens, size)
        yield arithmetic.next_block(full, size).goal()
        yield from mentions(as_term(arithmetic.times(full + 2, size) == arithmetic.floor(tokens + 1, size)))


def _same(s: State, t: State) -> Iterator[Claim]:
    for field in FIELDS:
        if getattr(s, field) is not getattr(t, field):
            arity = FUNCTIONS.get(field, 0)
            yield Claim(field, STATEMENT, arity, lambda *place, field=field: alike(s, t, field, *place))


def _obligation(where: str, claim: Claim, kind: str, read: Symbols, *hints: z3.BoolRef) -> Obligation:
    known = (*read.assumed, *hints)
    name, goal = f"batch, {where}: {claim.name}", claim.goal()
    return Obligation(name, claim.statement, kind, "caller", "call allocate", known, goal, is_leaf=True)
