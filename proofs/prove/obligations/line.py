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
from slotproof.model.language.algebra import (
    Bool,
    Function,
    Int,
    both,
    either,
    implies,
    ite,
    maximum,
    minimum,
    within,
)
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import complete, complete_contract, preempt, settled
from slotproof.proofs.campaign.kinds import SLIDING_WINDOW
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, of_state
from slotproof.proofs.prove.names import claimed
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.group_loops.ends import end_of_loop
from slotproof.proofs.prove.obligations.group_loops.group_loop import of_rows
from slotproof.proofs.prove.obligations.places import Places
from slotproof.proofs.prove.obligations.sums import Comparison, still_missing
from slotproof.proofs.prove.symbols import Symbols


def _holds_blocks(s: State, row: Int) -> Bool:
    return both(row >= 0, s.first(row) < s.length(row))


def _line(s: State, first: Int, n: Int, place: Function, at: Function) -> Claim:
    """Whoever holds blocks beside the first runs, and has one of n places in the line."""

    def stands(row: Int) -> Bool:
        q = s.engine.owner(row)
        p = place(q)
        return implies(
            both(_holds_blocks(s, row), q != first),
            both(s.status(q) == RUNNING, within(0, p, n), at(p) == q),
        )

    triggers = (s.first, s.length, s.status) if s.engine.groups.is_one else (s.first, s.length)
    return Claim("line-is-shorter", "progress", 1, stands, triggers)


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

    def stays(row: Int, i: Int) -> Bool:
        return implies(both(row >= 0, s.engine.owner(row) == first), is_unmoved(s, t, row, i))

    unmoved = Claim("first-stays", "progress", 2, stays)
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
    then, now, first, engine = read.state(), read.state(), read.names.integer("first"), read.engine
    new = Places(now, first, then.length, now.length)
    read.assume(*_assumed(then), *_assumed(now), first >= 0)

    def grows(row: Int) -> Bool:
        return implies(both(row >= 0, engine.owner(row) == first), then.length(row) <= now.length(row))

    def stays(row: Int, i: Int) -> Bool:
        same = both(now.first(row) == then.first(row), now.length(row) == then.length(row))
        entry = both(then.is_live(row, i), now.table(row, i) == then.table(row, i))
        kept = implies(both(now.is_live(row, i), i < then.length(row)), entry)
        return implies(_holds_blocks(now, row), both(either(engine.owner(row) == first, same), kept))

    def group(j: Int) -> Int:
        return engine.group(now.writer_row(now.held(j)))

    def counted(j: Int) -> Int:
        """A place for each held block: its old one, or behind them if the first took it since."""
        block, row, i = now.held(j), engine.row(first, group(j)), now.writer_index(now.held(j))
        is_new = both(now.is_live(row, i), now.table(row, i) == block, i >= then.length(row))
        return ite(is_new, then.num_held + new.of(group(j), i), then.held_rank(block))

    read.assume_claim(Claim("first-only-grows", "progress", 1, grows, (now.length, then.length)))
    read.assume_claim(Claim("others-only-wait", "progress", 2, stays, (now.table,)))
    claim = Claim("no-fewer-are-free", "progress", 0, lambda: now.num_free >= then.num_free - new.number)
    pigeons = read.integer("pigeon"), read.integer("pigeon")
    crowded = arithmetic.pigeonhole(pigeons, now.num_held, then.num_held + new.number, counted).body()
    sight = [fact for x in pigeons for fact in _holder_in_sight(now, now.held(x), 0)]
    sight += [as_term(fact) for fact in new.facts(*(group(x) for x in pigeons))]
    reserve = "check load-leaves-the-reserve"
    yield _obligation(claim, kind, reserve, read.assumed, as_term(crowded), *sight)
    if kind != SLIDING_WINDOW:  # a window gives blocks back as it moves, and shared ones bring nothing
        yield from _promise(kind, reserve, read, then, now, first, new.number)


def _promise(
    kind: str, witness: str, read: Symbols, then: State, now: State, first: Int, taken: Int
) -> Iterator[Obligation]:
    """What the first still lacks of its prompt is free, if it was."""
    engine, groups = read.engine, read.engine.groups
    same = both(engine.all_full, now.num_tokens(first) == then.num_tokens(first))
    kept = both(same, promised(then, first), now.num_free >= then.num_free - taken)
    hints = []
    if not groups.is_one:  # either no table is longer than the prompt, or none is shorter
        more = of_rows(now, first, lambda row: maximum(0, now.length(row) - then.length(row)))
        less, enough = (still_missing(s, first) for s in (now, then))
        whole = minimum(now.num_tokens(first), engine.max_model_len)
        short = both(same, now.slots(first) <= whole)
        for number, compared in enumerate(
            (
                Comparison(short, [less, more], [enough], groups.num),
                Comparison(both(same, whole <= now.slots(first)), [less], [], groups.num),
            ),
            1,
        ):
            each = compared.of_each(claimed("group", 0))
            name = f"line: promise-is-kept, each group {number}"
            known = (*read.assumed, *mentions(each))
            yield Obligation(name, "progress", kind, "caller", witness, known, each, is_leaf=True)
            hints.append(compared.of_sums(read))
    promise = Claim("promise-is-kept", "progress", 0, lambda: implies(kept, promised(now, first)))
    yield _obligation(promise, kind, witness, read.assumed, *hints)


def _holder_in_sight(s: State, b: Int, k: Int) -> list[z3.BoolRef]:
    """Terms about a reference of a block, at which Z3 is to look."""
    r, i = s.holder_row(b, k), s.holder_index(b, k)
    return mentions(both(s.table(r, i) == s.first(r), s.slot(r, i) == s.ref_cnt(b)))
