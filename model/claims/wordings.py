"""First wordings: statements without what they need, each of which is false.

A statement that needs something of its caller, or makes an exception, says so because without it there is
a story against it. An *allowance* drops the need; its check is the statement as one would first word it.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.model.claims.admission import promised
from slotproof.model.claims.check import Check, Part, check, is_group
from slotproof.model.language.algebra import Bool, Int, both, either, negate, within
from slotproof.model.language.state import NULL_BLOCK, RUNNING, State
from slotproof.model.scheduling.caller import Outcome, waits
from slotproof.model.scheduling.worker import arrives, is_written
from slotproof.model.system.allocate_slots import Ask


@dataclass(frozen=True)
class Allowance:
    """What a caller is allowed beyond what the statement needs, and the statement then."""

    name: str
    statement: str
    text: str
    check: Check
    kind: str = ""
    """The kind of attention for which it is false, if only one."""


def _order(s: State, b: Int, c: Int) -> Part:
    return Part(
        both(s.is_free(b), s.is_free(c), s.is_hashed(b), negate(s.is_hashed(c))), s.rank(c) < s.rank(b)
    )


def _count_before_stage_1(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    return Part(o.granted, s.num_free - o.state.num_free == o.answer.need)


def _admission(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(both(o.granted, ask.must_fit, waits(s, r)), promised(o.state, r))


def _is_chunk(s: State, r: Int, ask: Ask) -> Bool:
    chunk = both(s.status(r) == RUNNING, s.computed(r) + ask.new <= s.num_tokens(r))
    return both(chunk, negate(ask.must_fit), promised(s, r))


def _adopts_unwritten(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    b = ask.hits.at(g, i)
    adopted = both(o.granted, is_group(s, g), within(0, i, ask.hits.num(g)), b != NULL_BLOCK)
    return Part(adopted, either(is_written(s, b), arrives(s, b)))


def _with_lookahead(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(both(_is_chunk(s, r, ask), ask.reserved == 0), o.granted)


def _with_reserve(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(both(_is_chunk(s, r, ask), ask.lookahead == 0), o.granted)


ALLOWANCES = {
    allowance.name: allowance
    for allowance in (
        Allowance(
            "evict_blocks",
            "queue-order",
            "evict_blocks may name a block that is idle: it loses its hash where it stands in the queue",
            check("pool", "state", "queue-order", "every-unhashed-before-hashed", "block block", _order),
        ),
        Allowance(
            "release",
            "exact-count",
            "the free blocks are counted before stage 1, which may release some",
            check("stage 1", "allocate", "exact-count", "count-from-the-start", "", _count_before_stage_1),
            "sliding-window",
        ),
        Allowance(
            "hits",
            "admission-suffices",
            "a window's prompt may hit the cache, or have external tokens, when it is admitted",
            check("stage 0", "allocate", "admission-suffices", "admission-with-hits", "", _admission),
            "sliding-window",
        ),
        Allowance(
            "lookahead",
            "admission-suffices",
            "a chunk's lookahead may reach past the prompt",
            check("stage 2", "allocate", "admission-suffices", "chunk-with-lookahead", "", _with_lookahead),
            "full",
        ),
        Allowance(
            "reserve",
            "admission-suffices",
            "blocks may be reserved for others when a chunk is scheduled",
            check("stage 2", "allocate", "admission-suffices", "chunk-with-reserve", "", _with_reserve),
            "full",
        ),
        Allowance(
            "drop",
            "published-is-written",
            "a request may leave after it was scheduled and before the step runs, its hashes left behind",
            check(
                "worker",
                "allocate",
                "published-is-written",
                "adopted-is-written",
                "group index",
                _adopts_unwritten,
            ),
        ),
    )
}
"""Every allowance by its name."""
