"""Every single step keeps the stepwise invariants, and every loop keeps its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import z3

from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN
from slotproof.model.language.algebra import both, ite, within
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, State, initial
from slotproof.model.scheduling.caller import add_request, add_request_contract, complete, complete_contract
from slotproof.model.system.allocate_slots import is_idle_hit
from slotproof.model.system.pool import (
    clear_table,
    evict_blocks,
    pad,
    record_for_zeroing,
    release,
    reset_prefix_cache,
    take,
)
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, of_state
from slotproof.proofs.prove.names import Names
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.loops import LOOPS, Loop
from slotproof.proofs.prove.symbols import Symbols

Step = Callable[[Symbols, State], State]


def _take(read: Symbols, s: State) -> State:
    return take(s, *read.names.integers("request n"))


def _pad(read: Symbols, s: State) -> State:
    return pad(s, *read.names.integers("request n"))


def _release(read: Symbols, s: State) -> State:
    return release(s, *read.names.integers("request high"))


def _clear_table(read: Symbols, s: State) -> State:
    return clear_table(s, read.names.integer("table"))


def _evict(read: Symbols, s: State) -> State:
    return evict_blocks(s, read.names.function("named", result=z3.BoolSort()))


def _reset(read: Symbols, s: State) -> State:
    return reset_prefix_cache(s)


def _record(read: Symbols, s: State) -> State:
    return record_for_zeroing(s, *read.names.integers("request low high"))


def _add_request(read: Symbols, s: State) -> State:
    request, n = read.names.integers("request num_tokens")
    read.assume(*add_request_contract(s, request, n).values())
    return add_request(s, request, n).state


def _complete(read: Symbols, s: State) -> State:
    request, *counts = read.names.integers("request processed rejected sampled")
    read.assume(*complete_contract(s, request, *counts).values())
    return complete(s, request, *counts).state


STEPS: dict[str, tuple[str, str, Step]] = {
    "take": ("stage 3", "step take", _take),
    "pad": ("stage 3", "step pad", _pad),
    "release": ("stage 1", "step release", _release),
    "clear-table": ("pool", "step clear-table", _clear_table),
    "evict-blocks": ("pool", "call evict_blocks", _evict),
    "reset-prefix-cache": ("pool", "call reset_prefix_cache", _reset),
    "record-for-zeroing": ("stage 3", "step take", _record),
    "add-request-step": ("caller", "call add_request", _add_request),
    "complete-step": ("caller", "call complete", _complete),
}
"""The steps without a loop, each with the stage it belongs to and its witness."""


def initial_state(kind: str, rules: Rules) -> Iterator[Obligation]:
    """The idle pool satisfies every invariant."""
    read = Symbols(kind, rules)
    s = initial(read.engine)
    for invariant in (*STEPWISE, *LEDGER, *WRITTEN):
        claim = of_state(invariant, s)
        yield Obligation(
            f"initial: {claim.name}", claim.statement, kind, "pool", "", tuple(read.assumed), claim.goal()
        )


def single_step(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """A step from any state that satisfies the stepwise invariants, with what it requires, keeps them."""
    stage, witness, step = STEPS[name]
    read = Symbols(kind, rules)
    s = read.state()
    after = step(read, s)
    assumptions = (
        *read.assumed,
        *(needed.claim for needed in read.needed),
        *(of_state(invariant, s).assumed() for invariant in STEPWISE),
    )
    for invariant in STEPWISE:
        before, claim = of_state(invariant, s), of_state(invariant, after)
        if not before.goal().eq(claim.goal()):  # else the step does not touch what it is about
            yield Obligation(
                f"{name}: {claim.name}", claim.statement, kind, stage, witness, assumptions, claim.goal()
            )


def any_hits(read: Symbols) -> Hits:
    """Hits of which nothing is known."""
    names = read.names
    return Hits(names.integer("hit_tokens"), names.function("num_hits"), names.function("hit", 2))


def loop_step(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """A loop's invariant holds at the start, of an empty range too, and one iteration keeps it."""
    loop = LOOPS[name]
    read = Symbols(kind, rules)
    read.alone = read.names.truth("alone")
    start = read.state()
    low, k, high = read.names.integers("low k high")
    of = _of(read)
    read.assume(low <= high, *(of_state(i, start).assumed() for i in STEPWISE))
    for need in loop.needs(read, start, low, high, of):
        read.assume_claim(need)
    for claim in (
        *_known_claims(loop, read, start, low, low, start, of),
        *loop.facts(read, start, low, low, start, of),
    ):
        yield _obligation(f"{name}-loop starts", claim, kind, loop, read)

    read.assume(within(low, k, high))
    before = loop.at(read, start, low, k, of)
    read.assume(*(of_state(i, before).assumed() for i in STEPWISE))
    for fact in loop.facts(read, start, low, k, before, of):
        read.assume_claim(fact)
    if name == "adopt":
        hits: Hits = of["hits"]
        g = read.engine.group(of["row"])
        idle = read.counted(partial(is_idle_hit, start, hits), g)
        read.assume(idle(k + 1) == idle(k) + ite(is_idle_hit(start, hits, g, k), 1, 0))
    block = loop.block(before, k, of)
    read.assume(*mentions(both(before.rank(block) == before.held_rank(block))))
    after = loop.step(before, k, of)
    needed = list(read.needed)
    for need_of_step in needed:
        yield Obligation(
            f"{name}-loop: {need_of_step.name}",
            need_of_step.statement,
            kind,
            loop.stage,
            loop.witness,
            tuple(read.assumed),
            need_of_step.claim,
        )
    read.assume(*(need_of_step.claim for need_of_step in needed))
    for claim in (
        *(of_state(invariant, after) for invariant in STEPWISE),
        *_known_claims(loop, read, start, low, k + 1, after, of),
        *loop.facts(read, start, low, k + 1, after, of),
    ):
        yield _obligation(f"{name}-loop", claim, kind, loop, read)


def _of(read: Symbols) -> dict[str, Any]:
    return {"row": read.names.integer("table"), "hits": any_hits(read)}


def _obligation(where: str, claim: Claim, kind: str, loop: Loop, read: Symbols) -> Obligation:
    return Obligation(
        f"{where}: {claim.name}",
        claim.statement,
        kind,
        loop.stage,
        loop.witness,
        tuple(read.assumed),
        claim.goal(),
    )


def _known_claims(
    loop: Loop, read: Symbols, start: State, low: Any, k: Any, state: State, of: dict[str, Any]
) -> Iterator[Claim]:
    """The fields known in closed form are so in `state`, and the others are as at the start."""
    known = loop.known(read, start, low, k, of)
    statement = {"free": "ref-count", "adopt": "idle-hits-cost", "publish": "hash-soundness"}[loop.name]
    for field in FIELDS:
        if field in loop.havoc:
            continue
        expected, got = known.get(field, getattr(start, field)), getattr(state, field)
        if expected is not got:
            yield _equal(f"{field}-as-stated", statement, field, expected, got)


def _equal(name: str, statement: str, field: str, expected: Any, got: Any) -> Claim:
    if field in FUNCTIONS:
        return Claim(name, statement, FUNCTIONS[field], lambda *x: expected(*x) == got(*x))
    return Claim(name, statement, 0, lambda: expected == got)


def arithmetic_lemmas(kind: str, rules: Rules) -> Iterator[Obligation]:
    """What the proofs use of division by the block size, from its definition; counts are bounded."""
    names = Names()
    a, b, n, size = names.integers("a b n size")
    for claim in (
        *arithmetic.PROPERTIES,
        arithmetic.at_zero(size),
        arithmetic.next_block(n, size),
        arithmetic.sum_of_parts(a, b, size),
        arithmetic.blocks_before(n, a, size),
        arithmetic.keeps_sign(a, size),
        *arithmetic.pigeonhole_by_induction(),
        arithmetic.sums_are_monotone(),
        arithmetic.counts_are_congruent(),
    ):
        goal = claim.goal()
        x, y = claim.values()[:2] if claim.arity == 3 else (n, a) if claim.name == "blocks-before" else (a, b)
        unit = claim.values()[2] if claim.arity == 3 else size
        differences = arithmetic.compared(claim.name, x, y, unit)
        signs = (arithmetic.keeps_sign(d, unit).goal() for d in differences)
        known = (*arithmetic.definitions(goal), *signs)
        yield Obligation(f"arithmetic: {claim.name}", claim.statement, kind, "arithmetic", "", known, goal)
    counted = names.function("count")
    low, high = names.integers("low high")
    more = names.truth("predicate")
    step = counted(high + 1) == counted(high) + ite(more, 1, 0)
    bounded = within(0, counted(high) - counted(low), high - low + 1)
    yield Obligation(
        "arithmetic: count-is-bounded",
        "arithmetic",
        kind,
        "arithmetic",
        "",
        (low <= high, bounded, step),
        within(0, counted(high + 1) - counted(low), high + 1 - low + 1),
    )
