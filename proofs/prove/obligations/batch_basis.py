"""What the induction over a batch's rows rests on (`batch.py`): that rows which take blocks can be numbered,
and that states which are alike stay so.

The calls of the first rows lead to a state that is alike to the batch's, no more: fields may differ where
they mean nothing. So what is shown of the one has to be true of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from slotproof.model.claims.invariants import LEDGER, STEPWISE
from slotproof.model.language.algebra import both, iff, implies, ite, within
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, State
from slotproof.model.scheduling.decode_step import (
    Batch,
    alike,
    decode_step,
    fills,
    is_full,
    num_taken,
    row_contract,
)
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, of_state
from slotproof.proofs.prove.obligation import Obligation
from slotproof.proofs.prove.obligations import batch as batches
from slotproof.proofs.prove.symbols import Symbols


def batch_basis(kind: str, rules: Rules) -> Iterator[Obligation]:
    """Counts grow, takers exist, and a batch made on two states that are alike leaves two that are alike."""
    yield from _takers(kind, rules)
    yield from _alike(kind, rules)


def _start(kind: str, rules: Rules) -> tuple[Symbols, State, Batch]:
    read = Symbols(kind, rules, None, arithmetic.LEAN)
    names = ("request_of", "row_of", "taker")
    rows = Batch(read.names.integer("rows"), *map(read.names.function, names))
    return read, read.state(), rows


def _takers(kind: str, rules: Rules) -> Iterator[Obligation]:
    """By induction: a taker of the first k rows, told of row k too, is one of the first k + 1."""
    read, s, rows = _start(kind, rules)
    k, i, j = read.names.integers("k i j")
    read.assume(k >= 0, i >= 0, within(0, j, k + 1))
    grows, monotone = batches.counts(read, "full", lambda row: is_full(s, rows.request(row)), rows)
    read.assume_claim(grows)
    read.assume(grows.body(k))
    claim = Claim("counts-grow", batches.STATEMENT, 0, lambda: monotone.body(i, k + 1))
    yield _obligation("counting", claim, kind, read, monotone.body(i, k))
    read.assume_claim(monotone)

    def takes(of: Batch, n: Any) -> Any:
        row = of.taker(n)
        ith = both(within(0, row, of.n), is_full(s, of.request(row)), num_taken(s, of.first(row)) == n)
        return implies(within(0, n, num_taken(s, of)), ith)

    def is_taker(of: Batch, row: Any) -> Any:
        full = both(within(0, row, of.n), is_full(s, of.request(row)))
        return implies(full, of.taker(num_taken(s, of.first(row))) == row)

    first = rows.first(k)
    end = num_taken(s, first)
    more = Batch(k + 1, rows.request, rows.row, lambda n: ite(both(n == end, n >= 0), k, rows.taker(n)))
    known = (takes(first, i), is_taker(first, j))
    for name, holds in {"taker-takes": takes(more, i), "row-takes-if-full": is_taker(more, j)}.items():
        claim = Claim(name, batches.STATEMENT, 0, lambda holds=holds: holds)
        yield _obligation("one row more", claim, kind, read, *known)


def _alike(kind: str, rules: Rules) -> Iterator[Obligation]:
    read, s, rows = _start(kind, rules)
    t = read.state()
    read.assume(*batches.invariants(s))
    for field in FIELDS:
        read.assume_claim(_same(s, t, field))
    row = Claim("rows-of-both", batches.STATEMENT, 1, lambda j: _row_is_alike(s, t, rows, j))
    yield _obligation("alike", row, kind, read)
    for claim in batches.legal_rows(s, rows):
        read.assume_claim(claim)
    for u in (s, t):
        for claim in batches.counting(read, u, rows):
            read.assume_claim(claim)
    for predicate in (is_full, fills):
        of_s, of_t = (
            read.counted(lambda j, u=u, predicate=predicate: predicate(u, rows.request(j))) for u in (s, t)
        )  # `counts-are-congruent`, as each row counts in both or in neither
        read.assume_claim(
            Claim(
                "counts-are-alike",
                batches.STATEMENT,
                1,
                lambda j, of_s=of_s, of_t=of_t: implies(within(0, j, rows.n + 1), of_s(j) == of_t(j)),
                (of_s, of_t),
            )
        )
    u, v = decode_step(s, rows), decode_step(t, rows)
    for field in FIELDS:
        yield _obligation("alike", _same(u, v, field), kind, read)
    for invariant in (*STEPWISE, *LEDGER):
        if invariant.statement not in batches.OUT_OF_IT:
            yield _obligation("alike", of_state(invariant, t), kind, read)


def _row_is_alike(s: State, t: State, rows: Batch, j: Any) -> Any:
    r = rows.request(j)
    counted = both(iff(is_full(s, r), is_full(t, r)), iff(fills(s, r), fills(t, r)))
    return both(counted, iff(row_contract(s, rows, j), row_contract(t, rows, j)))


def _same(s: State, t: State, field: str) -> Claim:
    mine, other = getattr(s, field), getattr(t, field)
    if field not in FUNCTIONS:
        return Claim(field, batches.STATEMENT, 0, lambda: mine == other)
    return Claim(
        field, batches.STATEMENT, FUNCTIONS[field], lambda *at: alike(s, t, field, *at), (mine, other)
    )


def _obligation(where: str, claim: Claim, kind: str, read: Symbols, *hints: z3.BoolRef) -> Obligation:
    name, known = f"batch-basis, {where}: {claim.name}", (*read.assumed, *hints)
    goal = claim.goal()
    return Obligation(name, batches.STATEMENT, kind, "caller", "call allocate", known, goal, is_leaf=True)
