"""The invariant of a loop over groups holds at the start, and one group more keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import z3

from slotproof.model.claims.invariants import STEPWISE
from slotproof.model.language.algebra import Bool, Int, both, iff, implies, within
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, State
from slotproof.model.system.allocate_slots import is_idle_hit
from slotproof.proofs.prove.claims import Claim, as_term, of_state
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.group_loops.adopt import hit_range
from slotproof.proofs.prove.obligations.group_loops.ends import GROUP_LOOPS, defined_sums
from slotproof.proofs.prove.obligations.group_loops.group_loop import GroupLoop, Of
from slotproof.proofs.prove.obligations.loops import end_of_loop as end_of_inner_loop
from slotproof.proofs.prove.symbols import Symbols


def group_loop_step(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """The invariant of a loop over groups holds at the start, and one group more keeps it."""
    loop = GROUP_LOOPS[name]
    read = Symbols(kind, rules, end_of_inner_loop)
    s, k, num = read.state(), read.names.integer("k"), read.engine.groups.num
    of = loop.of(read)
    read.assume(within(0, k, num), *(of_state(i, s).assumed() for i in STEPWISE))
    for need in loop.needs(read, s, of):
        read.assume_claim(need)
    amounts = loop.sums(read, s, of)
    for claim in defined_sums(loop, read, s, of):
        read.assume_claim(claim)
    for amount in amounts:
        total = read.summed(amount)
        read.assume(total(k + 1) == total(k) + amount(k), total(k + 1) <= total(num))
    for claim in (*_known_claims(loop, read, s, 0, s, of), *loop.facts(read, s, 0, s, of)):
        yield _obligation(f"{name} starts", claim, kind, loop, read)

    before = loop.at(read, s, k, of)
    read.assume(*(of_state(i, before).assumed() for i in STEPWISE))
    for fact in loop.facts(read, s, k, before, of):
        read.assume_claim(fact)
    row = read.engine.row(of["request"], k)
    read.assume(*mentions(both(s.length(row) == s.first(row), before.length(row) == before.first(row))))
    after = loop.step(before, row, of)
    if name == "adopt-groups":
        read.assume(_same_count(read, s, before, k, of))
    for needed in read.needed:
        known = tuple(read.assumed[: needed.known])
        yield Obligation(
            f"{name}: {needed.name}", needed.statement, kind, loop.stage, loop.witness, known, needed.claim
        )
    read.assume(*(needed.claim for needed in read.needed))
    for claim in (*_known_claims(loop, read, s, k + 1, after, of), *loop.facts(read, s, k + 1, after, of)):
        yield _obligation(name, claim, kind, loop, read, *_in_hand(read, before, row, claim))


def _in_hand(read: Symbols, before: State, row: Int, claim: Claim) -> Iterator[z3.BoolRef]:
    """What is known of the blocks in the hand, at the entries that a claim about order is about."""
    if claim.statement == "queue-order" and claim.arity == 3:
        hand = [before.length(row) - 1 - value for value in claim.values()[1:]]
        for fact in read.facts:
            if fact.arity == 1:
                yield from (as_term(fact.body(j)) for j in hand)
            elif fact.arity == 2:
                yield from (as_term(fact.body(i, j)) for i in hand for j in hand)


def _same_count(read: Symbols, s: State, t: State, k: Int, of: Of) -> z3.BoolRef:
    """Group k's hits are as idle in t as they were in s."""
    hits = of["hits"]
    low, high = hit_range(s, hits, k, of["total"])
    return counts_agree(read, low, high, partial(is_idle_hit, s, hits), partial(is_idle_hit, t, hits), k)


def counts_agree(
    read: Symbols, low: Int, high: Int, one: Callable[..., Bool], other: Callable[..., Bool], of: Int
) -> z3.BoolRef:
    """If two predicates agree on `low .. high - 1`, they count the same there."""
    i = read.integer("alike")
    a, b = read.counted(one, of), read.counted(other, of)
    alike = z3.ForAll([i], implies(within(low, i, high), iff(one(of, i), other(of, i))), qid="alike")
    return z3.Implies(z3.And(alike, low <= high), a(high) - a(low) == b(high) - b(low))


def _obligation(
    where: str, claim: Claim, kind: str, loop: GroupLoop, read: Symbols, *hints: z3.BoolRef
) -> Obligation:
    known = (*read.assumed, *hints)
    return Obligation(
        f"{where}: {claim.name}", claim.statement, kind, loop.stage, loop.witness, known, claim.goal()
    )


def _known_claims(loop: GroupLoop, read: Symbols, s: State, k: Any, state: State, of: Of) -> Iterator[Claim]:
    """The fields known in closed form are so in `state`, and the others are as at the start; of the hand's
    row no more is claimed than that it is empty."""
    known = loop.known(read, s, k, of)
    for field in FIELDS:
        if field in loop.havoc:
            continue
        expected, got = known.get(field, getattr(s, field)), getattr(state, field)
        if expected is not got:
            yield _equal(f"{field}-as-stated", loop.statement, field, expected, got)


def _equal(name: str, statement: str, field: str, expected: Any, got: Any) -> Claim:
    if field not in FUNCTIONS:
        return Claim(name, statement, 0, lambda: expected == got)

    def alike(*x: Int) -> Bool:
        meant = x[0] >= 0 if field in ("table", "slot", "num_cached") else True
        return implies(meant, expected(*x) == got(*x))

    return Claim(name, statement, FUNCTIONS[field], alike)
