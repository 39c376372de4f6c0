"""The loops over a request's groups, each with its invariant: that is how "any number of groups" is proved.

What is done to one row is made of the pool's steps and of the loops in `loops.py`, of which it is known that
they keep the stepwise invariants. So of a loop over groups it is left to show what the rows before and behind
the k-th look like. Sums over groups are unknown functions with `S(0) = 0` and `S(k + 1) = S(k) + amount(k)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import z3

from slotproof.model.claims.invariants import STEPWISE
from slotproof.model.language.algebra import (
    Bool,
    Function,
    Int,
    both,
    either,
    iff,
    implies,
    ite,
    maximum,
    minimum,
    negate,
    within,
)
from slotproof.model.language.keys import block_key
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import ABSENT, FIELDS, FUNCTIONS, HAND, NO_HASH, NULL_BLOCK, State
from slotproof.model.system.allocate_slots import Ask, adopt_row, is_idle_hit, take_up_to
from slotproof.model.system.attention import group
from slotproof.model.system.attention.group import is_reachable, num_full_blocks, skipped_blocks
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.prove.claims import Claim, as_term, of_state
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations.loops import LOOPS
from slotproof.proofs.prove.obligations.loops import end_of_loop as end_of_inner_loop
from slotproof.proofs.prove.symbols import Symbols

Of = dict[str, Any]
"""What a loop is about: the request, and what its steps are given."""


@dataclass(frozen=True)
class GroupLoop:
    """One loop over groups. Before group k, in a state that started as s:"""

    name: str
    statement: str
    stage: str
    witness: str
    step: Callable[[State, Int, Of], State]
    """(state, row, of) -> state"""
    of: Callable[[Symbols], Of]
    """What it is about, unknown: for the proof of the invariant."""
    havoc: tuple[str, ...]
    """Fields known through facts only."""
    known: Callable[[Symbols, State, Int, Of], dict[str, Any]]
    """(reading, s, k, of) -> fields in closed form; of the hand's row nothing is meant"""
    needs: Callable[[Symbols, State, Of], list[Claim]]
    """(reading, s, of) -> what must hold where the loop starts"""
    facts: Callable[[Symbols, State, Int, State, Of], list[Claim]]
    """(reading, s, k, state, of) -> what more is known"""
    sums: Callable[[Symbols, State, Of], list[Callable[[Int], Int]]]
    """(reading, s, of) -> amounts by group, none negative, that are summed"""

    def at(self, read: Symbols, s: State, k: Int, of: Of) -> State:
        """The state before group k."""
        changes = {field: read.unknown(field) for field in self.havoc}
        known = self.known(read, s, k, of)
        for field in ("table", "slot", "num_cached"):
            if field in known:
                known[field] = _but_for_the_hand(read, field, known[field])
        return s.replace(**changes, **known)


def _but_for_the_hand(read: Symbols, field: str, of_rows: Function) -> Function:
    unknown: Any = read.unknown(field)
    return lambda q, *i: ite(q == HAND, unknown(q, *i), of_rows(q, *i))


def end_of_group_loop(read: Symbols, name: str, s: State, **of: Any) -> State:
    """A loop's effect, by its invariant; what it needs is noted."""
    loop, num = GROUP_LOOPS[name], read.engine.groups.num
    for claim in loop.needs(read, s, of):
        read.need(f"{name}: {claim.name}", claim.statement, claim.goal())
    for claim in _defined(loop, read, s, of):
        read.assume_claim(claim)
    end = loop.at(read, s, num, of)
    for fact in loop.facts(read, s, num, end, of):
        read.assume_claim(fact)
        read.facts.append(fact)
    return end


def end_of_loop(read: Symbols, name: str, low: Int, high: Int, s: State, **of: Any) -> State:
    """The effect of a loop of either kind."""
    if name in GROUP_LOOPS:
        return end_of_group_loop(read, name, s, **of)
    if name not in LOOPS:  # a faulty program's: of what comes of it nothing is known
        return read.state()
    return end_of_inner_loop(read, name, low, high, s, **of)


def group_loop_step(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """The invariant of a loop over groups holds at the start, and one group more keeps it."""
    loop = GROUP_LOOPS[name]
    read = Symbols(kind, rules, end_of_inner_loop)
    s, k, num = read.state(), z3.Int("k"), read.engine.groups.num
    of = loop.of(read)
    read.assume(within(0, k, num), *(of_state(i, s).assumed() for i in STEPWISE))
    for need in loop.needs(read, s, of):
        read.assume_claim(need)
    amounts = loop.sums(read, s, of)
    for claim in _defined(loop, read, s, of):
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


def _defined(loop: GroupLoop, read: Symbols, s: State, of: Of) -> Iterator[Claim]:
    for amount in loop.sums(read, s, of):
        yield from _sum(read, amount)
    if loop.name == "take-groups":
        yield from _pieces(read, s, of)


def _sum(read: Symbols, amount: Callable[[Int], Int]) -> Iterator[Claim]:
    """Of amounts that are not negative, the sum of more is not less."""
    total, num = read.summed(amount), read.engine.groups.num

    def is_monotone(i: Int, j: Int) -> Bool:
        return implies(both(i >= 0, i <= j, j <= num), both(total(i) >= 0, total(i) <= total(j)))

    yield Claim("sums-grow", "groups", 2, is_monotone, (lambda i, j: (total(i), total(j)),))


def _same_count(read: Symbols, s: State, t: State, k: Int, of: Of) -> z3.BoolRef:
    """Group k's hits are as idle in t as they were in s."""
    hits = of["hits"]
    low, high = _hit_range(s, hits, k, of["total"])
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


def _mine(s: State, r: Int, q: Int, k: Int) -> Bool:
    """The row is r's, in a group before k."""
    return both(q >= 0, s.engine.owner(q) == r, s.engine.group(q) < k)


def _request(read: Symbols) -> z3.ArithRef:
    r = z3.Int("request")
    read.assume(r >= 0)
    return r


def _of_groups(s: State, r: Int, name: str, statement: str, holds: Callable[[Int, Int], Bool]) -> Claim:
    """What holds of each group and r's row in it."""
    engine = s.engine

    def held(g: Int) -> Bool:
        return implies(within(0, g, engine.groups.num), holds(g, engine.row(r, g)))

    return Claim(name, statement, 1, held, (lambda g: engine.row(r, g),))


_QUEUE = ("at", "rank", "held", "held_rank")
_REFERENCES = ("holder_row", "holder_index")


# Blocks taken group by group: in closed form the front of the queue, a piece of it for each group.


def _end_of(read: Symbols) -> Of:
    return {
        "request": _request(read),
        "end": z3.Function("end", z3.IntSort(), z3.IntSort()),
        "zeroed": z3.Bool("zeroed"),
    }


def taken_by(s: State, end: Function) -> Callable[[Int], Int]:
    """The blocks that a row takes until it has its end."""
    return lambda row: maximum(0, end(row) - s.length(row))


def of_rows(s: State, r: Int, amount: Callable[[Int], Int]) -> Callable[[Int], Int]:
    """The amount of r's row in a group."""
    return lambda g: amount(s.engine.row(r, g))


def taker(read: Symbols, s: State, of: Of) -> z3.FuncDeclRef:
    """position -> the group whose piece of the queue it is in."""
    total = read.summed(of_rows(s, of["request"], taken_by(s, of["end"])))
    return z3.Function(f"taker!{total.name()}", *[z3.IntSort()] * 2)


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
        return ite(_mine(s, r, q, k), own(q), 0)

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


def _pieces(read: Symbols, s: State, of: Of) -> Iterator[Claim]:
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


# Hits adopted group by group.


def _hits_of(read: Symbols) -> Of:
    num = z3.Function("num_hits", z3.IntSort(), z3.IntSort())
    hits = Hits(z3.Int("hit_tokens"), num, z3.Function("hit", *[z3.IntSort()] * 3))
    return {"request": _request(read), "hits": hits, "total": z3.Int("total")}


def _hit_range(s: State, hits: Hits, g: Int, total: Int) -> tuple[Int, Int]:
    num = hits.num(g)
    return minimum(skipped_blocks(s.engine, g, total), num), num


def idle_of(s: State, hits: Hits, total: Int) -> Callable[[Int], Int]:
    """The hits of group g that are idle."""

    def idle(g: Int) -> Int:
        low, high = _hit_range(s, hits, g, total)
        return s.read.count(low, high, partial(is_idle_hit, s, hits), g)

    return idle


def _adopt_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r, hits, total, engine = of["request"], of["hits"], of["total"], s.engine
    idle = read.summed(idle_of(s, hits, total))

    def skip(q: Int) -> Int:
        return skipped_blocks(engine, engine.group(q), total)

    def num(q: Int) -> Int:
        return hits.num(engine.group(q))

    def fresh(q: Int) -> Bool:
        return both(_mine(s, r, q, k), s.length(q) == 0)

    def adopted(b: Int) -> Bool:
        g, i = engine.group(s.writer_row(b)), s.writer_index(b)
        q = engine.row(r, g)
        return both(within(0, g, k), s.length(q) == 0, within(skip(q), i, num(q)), hits.at(g, i) == b)

    def table(q: Int, i: Int) -> Int:
        hit = ite(within(skip(q), i, num(q)), hits.at(engine.group(q), i), s.table(q, i))
        return ite(fresh(q), ite(both(skip(q) > 0, i < skip(q)), NULL_BLOCK, hit), s.table(q, i))

    def entries(q: Int) -> Int:
        return maximum(skip(q), num(q))

    return {
        "num_free": s.num_free - idle(k),
        "ref_cnt": lambda b: s.ref_cnt(b) + ite(adopted(b), 1, 0),
        "table": table,
        "length": lambda q: ite(fresh(q), entries(q), s.length(q)),
        "first": lambda q: ite(both(fresh(q), skip(q) > 0), skip(q), s.first(q)),
        "num_cached": lambda q: ite(both(fresh(q), entries(q) > 0), entries(q), s.num_cached(q)),
    }


def _adopt_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    r, hits, total, engine = of["request"], of["hits"], of["total"], s.engine

    def found(g: Int, i: Int) -> Bool:
        b = hits.at(g, i)
        needed = both(within(0, g, engine.groups.num), skipped_blocks(engine, g, total) <= i, i < hits.num(g))
        is_key = s.block_hash(b) == block_key(engine, engine.row(r, g), i)
        return implies(needed, both(s.is_block(b), is_key))

    def empty(g: Int, row: Int) -> Bool:
        is_empty = both(s.length(row) == 0, s.num_cached(row) == 0)
        return both(
            hits.num(g) >= 0,
            implies(hits.num(g) > 0, is_empty),
            implies(s.length(row) == 0, s.num_cached(row) == 0),
        )

    return [
        Claim("request-is-one", "ref-count", 0, lambda: r >= 0),
        _of_groups(s, r, "hits-are-for-empty-tables", "ref-count", empty),
        Claim("hits-have-the-askers-key", "hash-soundness", 2, found, (hits.at,)),
    ]


# Blocks released group by group, and a request's all.


def _processed_of(read: Symbols) -> Of:
    return {"request": _request(read), "processed": z3.Int("processed")}


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
        return both(_mine(s, r, q, k), start(q) > s.first(q), i < start(q))

    return {
        "first": lambda q: ite(_mine(s, r, q, k), start(q), s.first(q)),
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
    i = z3.Int("unreleased!g")
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


def _free_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r = of["request"]

    def gone(q: Int, i: Int) -> Bool:
        return both(_mine(s, r, q, k), s.length(q) > s.first(q), i < s.length(q))

    return {
        "table": lambda q, i: ite(gone(q, i), NULL_BLOCK, s.table(q, i)),
        "length": lambda q: ite(_mine(s, r, q, k), 0, s.length(q)),
        "first": lambda q: ite(_mine(s, r, q, k), 0, s.first(q)),
        "num_cached": lambda q: ite(_mine(s, r, q, k), 0, s.num_cached(q)),
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


# Hashes, group by group.


def _tokens_of(read: Symbols) -> Of:
    return {"request": _request(read), "num_tokens": z3.Int("num_to_cache")}


def filled(s: State, num_tokens: Int) -> Callable[[Int], Int]:
    """The entries of a row whose hashes are due."""
    engine = s.engine

    def due(row: Int) -> Int:
        full = num_full_blocks(engine, engine.group(row), num_tokens)
        return ite(engine.enable_caching, maximum(0, full - s.num_cached(row)), 0)

    return due


def _cache_known(read: Symbols, s: State, k: Int, of: Of) -> dict[str, Any]:
    r, engine = of["request"], s.engine
    own = filled(s, of["num_tokens"])
    total = read.summed(of_rows(s, r, own))

    def row(b: Int) -> Int:
        return engine.row(r, engine.group(s.writer_row(b)))

    def published(b: Int) -> Bool:
        q, i = row(b), s.writer_index(b)
        g = engine.group(s.writer_row(b))
        due = within(s.num_cached(q), i, s.num_cached(q) + own(q))
        entry = both(s.is_live(q, i), s.table(q, i) == b)
        return both(within(0, g, k), is_reachable(engine, g, i), due, entry)

    def stamp(b: Int) -> Int:
        return s.clock + total(engine.group(s.writer_row(b))) + s.writer_index(b) - s.num_cached(row(b))

    return {
        "block_hash": lambda b: ite(
            published(b), block_key(engine, row(b), s.writer_index(b)), s.block_hash(b)
        ),
        "stamp": lambda b: ite(published(b), stamp(b), s.stamp(b)),
        "num_cached": lambda q: s.num_cached(q) + ite(_mine(s, r, q, k), own(q), 0),
        "clock": s.clock + total(k),
    }


def _cache_needs(read: Symbols, s: State, of: Of) -> list[Claim]:
    r, engine = of["request"], s.engine

    def waits(g: Int, row: Int) -> Bool:
        full = num_full_blocks(engine, g, of["num_tokens"])
        due = both(engine.enable_caching, full > s.num_cached(row))
        return both(s.num_cached(row) >= 0, implies(due, full <= s.length(row)))

    def final(g: Int, row: Int) -> Bool:
        full = num_full_blocks(engine, g, of["num_tokens"])
        due = both(engine.enable_caching, full > s.num_cached(row))
        return implies(due, full <= engine.full_blocks(s.num_tokens(r), g))

    return [
        Claim("request-is-one", "ref-count", 0, lambda: r >= 0),
        _of_groups(s, r, "blocks-wait-for-a-hash", "no-aliased-write", waits),
        _of_groups(s, r, "tokens-are-final", "drafts-never-hashed", final),
    ]


def _no_facts(read: Symbols, s: State, k: Int, t: State, of: Of) -> list[Claim]:
    return []


def _no_sums(read: Symbols, s: State, of: Of) -> list[Callable[[Int], Int]]:
    return []


_FREED = ("num_free", "front", "ref_cnt", "evicted_idle", *_QUEUE, *_REFERENCES)

GROUP_LOOPS: dict[str, GroupLoop] = {
    loop.name: loop
    for loop in (
        GroupLoop(
            "take-groups",
            "queue-order",
            "stage 3",
            "step take",
            lambda s, row, of: take_up_to(s, row, of["end"](row), of["zeroed"]),
            _end_of,
            (),
            _take_known,
            _take_needs,
            _no_facts,
            lambda read, s, of: [of_rows(s, of["request"], taken_by(s, of["end"]))],
        ),
        GroupLoop(
            "adopt-groups",
            "idle-hits-cost",
            "stage 3",
            "step touch",
            lambda s, row, of: adopt_row(s, row, Ask(new=0, hits=of["hits"]), of["total"]),
            _hits_of,
            (*_QUEUE, *_REFERENCES, "slot"),
            _adopt_known,
            _adopt_needs,
            _no_facts,
            lambda read, s, of: [idle_of(s, of["hits"], of["total"])],
        ),
        GroupLoop(
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
        ),
        GroupLoop(
            "free-groups",
            "ref-count",
            "pool",
            "step release",
            lambda s, row, of: group.free(s, row),
            lambda read: {"request": _request(read)},
            (*_FREED, "slot"),
            _free_known,
            _release_needs,
            _free_facts,
            _no_sums,
        ),
        GroupLoop(
            "cache-groups",
            "hash-soundness",
            "stage 4",
            "step publish",
            lambda s, row, of: group.cache_blocks(s, row, of["num_tokens"]),
            _tokens_of,
            (),
            _cache_known,
            _cache_needs,
            _no_facts,
            lambda read, s, of: [of_rows(s, of["request"], filled(s, of["num_tokens"]))],
        ),
    )
}
