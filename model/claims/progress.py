"""What *progress* rests on: that the first request in line finishes, whichever policy made the line.

The argument ranks a state (`rank`) by the tokens of the first request that are still to become final, what is
left of it, and the other requests that hold blocks; that it falls is proved, move by move
(`proofs/prove/obligations/line.py`):

- asked for slots and refused, a scheduler preempts the last in line: one holder less, and nothing else of
  the first has changed; with no other holder left, the call is granted;
- a step that ran leaves less to do (`left`), and nobody else's call changes that;
- an empty pool admits whoever fits it, so that there always is a first;
- loads cannot be preempted while they wait. But when they and the first alone hold blocks, as many are free
  as when the last of them was granted, less what the first took since; and that left what an earlier
  request lacked of its tokens (`reserved`). So the first gets through all its tokens and samples one more.
  For that one it may have to preempt itself, if loads hold the rest: what is left grows, but its tokens
  stay, and one less is to become final. It is the first to be admitted again.
"""

from __future__ import annotations

from slotproof.model.claims.admission import all_missing, has_no_table, held_at_once, promised
from slotproof.model.claims.check import Part, check
from slotproof.model.language.algebra import Bool, Int, both, either, implies, minimum, negate
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import Outcome, settled, waits
from slotproof.model.system.allocate_slots import Ask


def left(s: State, r: Int) -> Int:
    """How much is left of a request at most: tokens to become final, and final ones to be computed."""
    limit = s.engine.max_model_len
    return limit - s.num_tokens(r) + limit - minimum(settled(s, r), s.num_tokens(r))


def rank(s: State, r: Int, others: Int) -> tuple[Int, Int, Int]:
    """What falls until the first request r has finished, `others` beside it holding blocks."""
    return s.engine.max_model_len - s.num_tokens(r), left(s, r), others


def falls(before: tuple[Int, ...], after: tuple[Int, ...]) -> Bool:
    """The rank is less, the first number that differs deciding; and none of it is negative."""
    less: Bool = False
    for old, new in reversed([*zip(before, after, strict=True)]):
        less = either(new < old, both(new == old, less))
    return both(less, *(number >= 0 for number in after))


def holds_alone(s: State, r: Int) -> Bool:
    """Whatever is held, r holds it, once."""
    return s.read.every(1, s.engine.num_blocks, lambda b: nobody_else_holds(s, r, b))


def nobody_else_holds(s: State, r: Int, b: Int) -> Bool:
    """The block is r's, once, or nobody's."""
    return either(s.ref_cnt(b) == 0, both(s.ref_cnt(b) == 1, s.engine.owner(s.holder_row(b, 0)) == r))


def fits(s: State, tokens: Int) -> Bool:
    """The pool is large enough for what one request of so many tokens holds at once."""
    engine = s.engine
    most = s.read.total(engine.groups.num, lambda g: held_at_once(engine, g, tokens))
    return most <= engine.num_blocks - 1


def is_unmoved(s: State, t: State, row: Int, i: Int) -> Bool:
    """The row and its request are in t as they were in s, entry i too."""
    q = s.engine.owner(row)
    return both(
        t.status(q) == s.status(q),
        t.num_tokens(q) == s.num_tokens(q),
        t.computed(q) == s.computed(q),
        t.in_flight(q) == s.in_flight(q),
        t.length(row) == s.length(row),
        t.first(row) == s.first(row),
        implies(s.is_live(row, i), t.table(row, i) == s.table(row, i)),
    )


def _within_flight(s: State, r: Int, ask: Ask) -> Bool:
    in_flight = s.in_flight(r) + ask.new + ask.lookahead <= s.engine.max_in_flight_tokens
    return either(s.engine.all_full, in_flight)


def _lone(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    asked = both(s.status(r) == RUNNING, ask.reserved == 0, negate(ask.must_fit), _within_flight(s, r, ask))
    return Part(both(asked, holds_alone(s, r), fits(s, o.answer.total + ask.new + ask.lookahead)), o.granted)


def _alone(s: State, row: Int, i: Int) -> Part:
    alone = both(row >= 0, holds_alone(s, s.engine.owner(row)), s.is_live(row, i))
    return Part(alone, s.ref_cnt(s.table(row, i)) == 1)


def _empty_pool(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    tokens = o.answer.total + ask.new + ask.lookahead
    asked = both(waits(s, r), ask.reserved == 0, negate(ask.has_scheduled), _within_flight(s, r, ask))
    return Part(both(s.num_held == 0, asked, fits(s, s.num_tokens(r)), fits(s, tokens)), o.granted)


def _moves_on(s: State, r: Int, o: Outcome) -> Part:
    t = o.state
    sampled = t.num_tokens(r) > s.num_tokens(r)
    return Part(
        either(sampled, settled(t, r) < t.num_tokens(r)), both(left(t, r) >= 0, left(t, r) < left(s, r))
    )


def _others_stay(s: State, r: Int, o: Outcome, row: Int, i: Int) -> Part:
    return Part(both(row >= 0, s.engine.owner(row) != r), is_unmoved(s, o.state, row, i))


def _others_stay_granted(s: State, r: Int, ask: Ask, o: Outcome, row: Int, i: Int) -> Part:
    return _others_stay(s, r, o, row, i)


def _set_back(s: State, r: Int, o: Outcome, q: Int) -> Part:
    return Part(
        both(q >= 0, q != r), both(o.state.num_tokens(q) >= s.num_tokens(q), left(o.state, q) <= left(s, q))
    )


def _gives_way(s: State, r: Int, o: Outcome, row: Int, i: Int) -> Part:
    t, is_own = o.state, s.engine.owner(row) == r
    empty = both(t.length(row) == 0, t.first(row) == 0)
    return Part(row >= 0, both(implies(is_own, empty), either(is_own, is_unmoved(s, t, row, i))))


def _load_spares(s: State, r: Int, ask: Ask, o: Outcome, q: Int) -> Part:
    earlier = both(q >= 0, q != r, negate(has_no_table(s, q)), ask.reserved >= all_missing(s, q))
    return Part(both(o.granted, ask.delay_cache, earlier), promised(o.state, q))


PROGRESS = (
    check("stage 2", "allocate", "progress", "lone-request-is-granted", "", _lone),
    check("pool", "state", "progress", "lone-holder-shares-nothing", "row index", _alone),
    check("stage 2", "allocate", "progress", "empty-pool-admits", "", _empty_pool),
    check("caller", "complete", "progress", "step-moves-on", "", _moves_on),
    check("caller", "complete", "progress", "answer-moves-nobody-else", "row index", _others_stay),
    check("stage 3", "allocate", "progress", "grant-moves-nobody-else", "row index", _others_stay_granted),
    check("caller", "other", "progress", "nobody-is-set-back", "request", _set_back),
    check("caller", "leave", "progress", "victim-gives-way", "row index", _gives_way),
    check("stage 2", "allocate", "progress", "load-leaves-the-reserve", "request", _load_spares),
)
"""The checks of the statement."""
