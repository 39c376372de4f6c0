"""The three loops of the model, each with its invariant.

A loop that starts at `low` in state s is, before iteration k, in a state of which some fields are known
in closed form (`known`), some only through facts (`facts`), and the rest unchanged. That, with the
stepwise invariants, is what is proved by induction over k, and what a whole call may use at k = high.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slotproof.model.language.algebra import Bool, Int, both, either, iff, implies, ite, within
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import HAND, State
from slotproof.model.system.allocate_slots import is_idle_hit
from slotproof.model.system.attention.group import is_reachable
from slotproof.model.system.pool import publish, put_back, touch
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.symbols import Symbols


@dataclass(frozen=True)
class Loop:
    """One loop. `of` is what the model passed along: the request, the hits."""

    name: str
    stage: str
    witness: str
    block: Callable[..., Int]
    """(state, k, of) -> the block that iteration k is about"""
    step: Callable[..., State]
    """(state, k, of) -> state"""
    havoc: tuple[str, ...]
    """Fields known through facts only."""
    known: Callable[..., dict[str, Any]]
    """(reading, start, low, k, of) -> fields in closed form"""
    needs: Callable[..., list[Claim]]
    """(reading, start, low, high, of) -> what must hold where the loop starts"""
    facts: Callable[..., list[Claim]]
    """(reading, start, low, k, state, of) -> what more is known before iteration k"""

    def at(self, read: Symbols, start: State, low: Int, k: Int, of: dict[str, Any]) -> State:
        """The state before iteration k."""
        changes = {field: read.unknown(field) for field in self.havoc}
        return start.replace(**changes, **self.known(read, start, low, k, of))


def end_of_loop(read: Symbols, name: str, low: Int, high: Int, start: State, **of: Any) -> State:
    """A loop's effect, by its invariant; what it needs is noted."""
    loop = LOOPS[name]
    for claim in (
        Claim("loop-runs-forward", "no-rollback", 0, lambda: low <= high),
        *loop.needs(read, start, low, high, of),
    ):
        read.need(f"{name}-loop: {claim.name}", claim.statement, claim.goal(), *claim.values())
    end = loop.at(read, start, low, high, of)
    for fact in loop.facts(read, start, low, high, end, of):
        read.facts.append(read.on_path(fact))
        read.assumed.append(read.facts[-1].assumed())
    return end


def _hand_position(s: State) -> Callable[[Int], Int]:
    """Where a block lies in the hand: it was taken for a table index, and the hand counts these down."""
    top = s.writer_index(s.table(HAND, 0))
    if s.engine.rules.free_tail_first:
        return lambda b: top - s.writer_index(b)
    return lambda b: s.writer_index(b) - top


def _in_hand(s: State, low: Int, b: Int, k: Int) -> Bool:
    j = _hand_position(s)(b)
    return both(within(low, j, k), s.table(HAND, j) == b)


_QUEUE = ("at", "rank", "held", "held_rank")
_REFERENCES = ("holder_row", "holder_index", "slot")


def _free_known(read: Symbols, s: State, low: Int, k: Int, of: dict[str, Any]) -> dict[str, Any]:
    return {
        "ref_cnt": lambda b: s.ref_cnt(b) - ite(_in_hand(s, low, b, k), 1, 0),
        "first": lambda q: ite(q == HAND, k, s.first(q)),
    }


def _free_needs(read: Symbols, s: State, low: Int, high: Int, of: dict[str, Any]) -> list[Claim]:
    position = _hand_position(s)

    def in_order(j: Int) -> Bool:
        return implies(within(0, j, high), position(s.table(HAND, j)) == j)

    def alone(j: Int) -> Bool:
        return implies(both(read.alone, within(0, j, high)), s.ref_cnt(s.table(HAND, j)) == 1)

    return [
        Claim(
            "hand-is-full",
            "ref-count",
            0,
            lambda: both(low == 0, s.first(HAND) == 0, high == s.length(HAND), s.front == 0),
        ),
        Claim("hand-is-in-order", "queue-order", 1, in_order, (lambda j: s.table(HAND, j),)),
        Claim("blocks-are-not-shared", "admission-suffices", 1, alone, (lambda j: s.table(HAND, j),)),
    ]


def _free_facts(read: Symbols, s: State, low: Int, k: Int, t: State, of: dict[str, Any]) -> list[Claim]:
    def counters() -> Bool:
        return both(
            within(0, t.front, k + 1),
            within(s.num_free, t.num_free, s.num_free + k + 1),
            t.front <= t.num_free - s.num_free,
            implies(read.alone, t.num_free == s.num_free + k),
        )

    def earlier_free(b: Int) -> Bool:
        return implies(
            s.is_free(b), both(t.rank(b) == s.rank(b) + t.front, iff(t.evicted_idle(b), s.evicted_idle(b)))
        )

    def newly_free(j: Int) -> Bool:
        b = s.table(HAND, j)
        place = ite(t.is_hashed(b), t.rank(b) >= s.num_free + t.front, t.rank(b) < t.front)
        return implies(both(within(0, j, k), t.is_free(b)), place)

    def tail_first(i: Int, j: Int) -> Bool:
        a, b = s.table(HAND, i), s.table(HAND, j)
        alike = iff(t.is_hashed(a), t.is_hashed(b))
        return implies(both(i >= 0, i < j, j < k, t.is_free(a), t.is_free(b), alike), t.rank(a) < t.rank(b))

    def nothing_else(b: Int) -> Bool:
        return implies(t.is_free(b), either(s.is_free(b), _in_hand(s, 0, b, k)))

    return [
        Claim("counters", "free-count", 0, counters),
        Claim("earlier-free-blocks-move-back", "queue-order", 1, earlier_free, (s.rank, t.rank)),
        Claim("unhashed-front-hashed-tail", "queue-order", 1, newly_free, (lambda j: s.table(HAND, j),)),
        Claim(
            "tail-before-head",
            "queue-order",
            2,
            tail_first,
            (lambda i, j: (s.table(HAND, i), s.table(HAND, j)),),
        ),
        Claim("only-the-hand-is-freed", "free-count", 1, nothing_else, (t.rank,)),
    ]


def _adopted(s: State, hits: Hits, g: Int, low: Int, b: Int, k: Int) -> Bool:
    """The block is one of the group's hits low .. k - 1: it was taken for that index."""
    i = s.writer_index(b)
    return both(within(low, i, k), hits.at(g, i) == b)


def _adopt_known(read: Symbols, s: State, low: Int, k: Int, of: dict[str, Any]) -> dict[str, Any]:
    row, hits = of["row"], of["hits"]
    g = s.engine.group(row)
    idle = read.counted(partial(is_idle_hit, s, hits), g)
    return {
        "num_free": s.num_free - (idle(k) - idle(low)),
        "ref_cnt": lambda b: s.ref_cnt(b) + ite(_adopted(s, hits, g, low, b, k), 1, 0),
        "table": lambda q, i: ite(both(q == row, within(low, i, k)), hits.at(g, i), s.table(q, i)),
        "length": lambda q: ite(q == row, k, s.length(q)),
        "num_cached": lambda q: ite(q == row, k, s.num_cached(q)),
    }


def _adopt_needs(read: Symbols, s: State, low: Int, high: Int, of: dict[str, Any]) -> list[Claim]:
    row, hits = of["row"], of["hits"]
    g = s.engine.group(row)

    def found(i: Int) -> Bool:
        b = hits.at(g, i)
        is_key = s.block_hash(b) == block_key(s.engine, row, i)
        return implies(within(low, i, high), both(s.is_block(b), is_key))

    return [
        Claim(
            "table-ends-where-hits-begin",
            "ref-count",
            0,
            lambda: both(row >= 0, s.length(row) == low, s.num_cached(row) == low),
        ),
        Claim("hits-have-the-askers-key", "hash-soundness", 1, found, (lambda i: hits.at(g, i),)),
    ]


def _no_facts(read: Symbols, s: State, low: Int, k: Int, t: State, of: dict[str, Any]) -> list[Claim]:
    """Everything about the loop is known in closed form, or follows from the stepwise invariants."""
    return []


def _publish_known(read: Symbols, s: State, low: Int, k: Int, of: dict[str, Any]) -> dict[str, Any]:
    r = of["row"]

    def published(b: Int) -> Bool:
        i = s.writer_index(b)
        entry = both(within(low, i, k), s.is_live(r, i), s.table(r, i) == b)
        return both(is_reachable(s, r, i), entry)

    return {
        "block_hash": lambda b: ite(published(b), block_key(s.engine, r, s.writer_index(b)), s.block_hash(b)),
        "stamp": lambda b: ite(published(b), s.clock + s.writer_index(b) - low, s.stamp(b)),
        "num_cached": lambda q: ite(q == r, k, s.num_cached(q)),
        "clock": s.clock + (k - low),
    }


def _publish_needs(read: Symbols, s: State, low: Int, high: Int, of: dict[str, Any]) -> list[Claim]:
    r = of["row"]
    final = s.num_tokens(s.engine.owner(r))
    return [
        Claim(
            "blocks-wait-for-a-hash",
            "no-aliased-write",
            0,
            lambda: both(r >= 0, low == s.num_cached(r), low >= 0, high <= s.length(r)),
        ),
        Claim(
            "tokens-are-final",
            "drafts-never-hashed",
            0,
            lambda: high <= s.engine.full_blocks(final, s.engine.group(r)),
        ),
    ]


LOOPS: dict[str, Loop] = {
    loop.name: loop
    for loop in (
        Loop(
            "free",
            "pool",
            "step free",
            lambda s, k, of: s.table(HAND, k),
            lambda s, k, of: put_back(s, k),
            ("num_free", "front", "evicted_idle", *_QUEUE, *_REFERENCES),
            _free_known,
            _free_needs,
            _free_facts,
        ),
        Loop(
            "adopt",
            "stage 3",
            "step touch",
            lambda s, k, of: of["hits"].at(s.engine.group(of["row"]), k),
            lambda s, k, of: touch(s, of["row"], of["hits"].at(s.engine.group(of["row"]), k)),
            (*_QUEUE, *_REFERENCES),
            _adopt_known,
            _adopt_needs,
            _no_facts,
        ),
        Loop(
            "publish",
            "stage 4",
            "step publish",
            lambda s, k, of: s.table(of["row"], k),
            lambda s, k, of: publish(s, of["row"], k, is_reachable(s, of["row"], k)),
            (),
            _publish_known,
            _publish_needs,
            _no_facts,
        ),
    )
}
