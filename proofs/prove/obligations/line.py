"""*Progress*, where it is about a whole line of requests: by induction over its length, and over two states.

Requests that hold blocks stand in a line behind the first, in whatever order a policy made: `place` numbers
them from 0, and `at` is its inverse. A scheduler that is refused for the first preempts the last.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from slotproof.model.claims.admission import promised
from slotproof.model.claims.invariants import LEDGER, STEPWISE
from slotproof.model.claims.progress import falls, is_unmoved, nobody_else_holds, rank
from slotproof.model.language.algebra import Bool, Function, Int, both, either, implies, ite, within
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import complete, complete_contract, preempt, settled
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, of_state
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.group_loops.ends import end_of_loop
from slotproof.proofs.prove.symbols import Symbols


def _holds_blocks(s: State, q: Int) -> Bool:
    return both(q >= 0, s.first(q) < s.length(q))


def _line(s: State, first: Int, n: Int, place: Function, at: Function) -> Claim:
    """Whoever holds blocks beside the first runs, and has one of n places in the line."""

    def stands(q: Int) -> Bool:
        p = place(q)
        return implies(
            both(_holds_blocks(s, q), q != first),
            both(s.status(q) == RUNNING, within(0, p, n), at(p) == q),
        )

    return Claim("line-is-shorter", "progress", 1, stands, (s.first, s.length, s.status))


def _assumed(s: State) -> Iterator[z3.BoolRef]:
    return (of_state(invariant, s).assumed() for invariant in (*STEPWISE, *LEDGER))


def line(kind: str, rules: Rules) -> Iterator[Obligation]:
    """Preempting the last makes the line shorter and leaves the first alone; with each move the rank falls;
    nobody is left in an empty line; and where all others that hold blocks only wait, as many are free as
    there were, but for those that the first took."""
    yield from _preempting_the_last(kind, rules)
    yield from _moving_on(kind, rules)
    yield from _nobody_left(kind, rules)
    yield from _quiet_pool(kind, rules)


def _obligation(
    claim: Claim, kind: str, witness: str, known: list[z3.BoolRef], *hints: z3.BoolRef
) -> Obligation:
    name = f"line: {claim.name}"
    goal = claim.goal()
    return Obligation(name, claim.statement, kind, "caller", witness, (*known, *hints), goal, is_leaf=True)


def _preempting_the_last(kind: str, rules: Rules) -> Iterator[Obligation]:
    read = Symbols(kind, rules, end_of_loop)
    s, first, n = read.state(), *read.names.integers("first n")
    place, at = (read.names.function(name) for name in ("place", "at_place"))
    victim = at(n - 1)
    read.assume(_line(s, first, n, place, at).assumed())
    read.assume(both(first >= 0, victim != first, victim >= 0, s.status(victim) == RUNNING))
    t = preempt(s, victim).state
    ranked = Claim(
        "rank-falls-with-a-victim",
        "progress",
        0,
        lambda: implies(n >= 1, falls(rank(s, first, n), rank(t, first, n - 1))),
    )
    tokens = next(i for i in LEDGER if i.name == "tokens-are-counted")
    counted = as_term(tokens.holds(s, first))
    yield _obligation(ranked, kind, "call preempt", read.assumed, counted)
    unmoved = Claim("first-stays", "progress", 1, lambda i: is_unmoved(s, t, first, i))
    for claim in (_line(t, first, n - 1, place, at), unmoved):
        yield _obligation(claim, kind, "call preempt", read.assumed)


def _moving_on(kind: str, rules: Rules) -> Iterator[Obligation]:
    """A step that ran makes the rank fall, whoever else came to hold blocks by then: one that sampled does so
    even if the first then has to preempt itself."""
    read = Symbols(kind, rules, end_of_loop)
    s, first, before, after = read.state(), *read.names.integers("first others_before others_after")
    counts = read.names.integers("processed rejected sampled")
    read.assume(*_assumed(s), after >= 0, *complete_contract(s, first, *counts).values())
    t = complete(s, first, *counts).state
    u = preempt(t, first).state
    was, sampled = rank(s, first, before), counts[2] > 0
    moved = either(sampled, settled(t, first) < t.num_tokens(first))
    for name, given, then in (("step", moved, t), ("step-and-a-retreat", sampled, u)):
        claim = Claim(
            f"rank-falls-with-a-{name}",
            "progress",
            0,
            lambda given=given, then=then: implies(given, falls(was, rank(then, first, after))),
        )
        yield _obligation(claim, kind, "check step-moves-on", read.assumed)


def _nobody_left(kind: str, rules: Rules) -> Iterator[Obligation]:
    read = Symbols(kind, rules)
    s, first = read.state(), read.names.integer("first")
    read.assume(*_assumed(s), first >= 0, _line(s, first, 0, lambda q: q, lambda p: p).assumed())
    claim = Claim(
        "first-holds-alone", "progress", 1, lambda b: implies(s.is_block(b), nobody_else_holds(s, first, b))
    )
    (block,) = claim.values()
    sight = (fact for k in (0, 1) for fact in _holder_in_sight(s, block, k))
    yield _obligation(claim, kind, "check lone-request-is-granted", read.assumed, *sight)


def _quiet_pool(kind: str, rules: Rules) -> Iterator[Obligation]:
    read = Symbols(kind, rules)
    then, now, first = read.state(), read.state(), read.names.integer("first")
    start, taken = then.length(first), now.length(first) - then.length(first)
    read.assume(*_assumed(then), *_assumed(now), first >= 0, taken >= 0)

    def stays(q: Int, i: Int) -> Bool:
        row = both(now.first(q) == then.first(q), now.length(q) == then.length(q))
        entry = both(then.is_live(q, i), now.table(q, i) == then.table(q, i))
        kept = implies(both(now.is_live(q, i), i < then.length(q)), entry)
        return implies(_holds_blocks(now, q), both(either(q == first, row), kept))

    def counted(j: Int) -> Int:
        """A place for each held block: its old one, or behind them if the first took it since."""
        block, i = now.held(j), now.writer_index(now.held(j))
        is_new = both(now.is_live(first, i), now.table(first, i) == block, i >= start)
        return ite(is_new, then.num_held + i - start, then.held_rank(block))

    read.assume_claim(Claim("others-only-wait", "progress", 2, stays, (now.table,)))
    claim = Claim("no-fewer-are-free", "progress", 0, lambda: now.num_free >= then.num_free - taken)
    pigeons = read.integer("pigeon"), read.integer("pigeon")
    crowded = arithmetic.pigeonhole(pigeons, now.num_held, then.num_held + taken, counted).body()
    sight = (fact for x in pigeons for fact in _holder_in_sight(now, now.held(x), 0))
    reserve = "check load-leaves-the-reserve"
    yield _obligation(claim, kind, reserve, read.assumed, as_term(crowded), *sight)
    if kind == FULL:  # a window gives blocks back as it moves, and shared ones bring nothing
        same = now.num_tokens(first) == then.num_tokens(first)
        kept = both(same, promised(then, first), claim.goal())
        promise = Claim("promise-is-kept", "progress", 0, lambda: implies(kept, promised(now, first)))
        yield _obligation(promise, kind, reserve, read.assumed)


def _holder_in_sight(s: State, b: Int, k: Int) -> list[z3.BoolRef]:
    """Terms about a reference of a block, at which Z3 is to look."""
    r, i = s.holder_row(b, k), s.holder_index(b, k)
    return mentions(both(s.table(r, i) == s.first(r), s.slot(r, i) == s.ref_cnt(b)))
