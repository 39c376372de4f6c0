"""What *progress* rests on: that the first request in line finishes, whichever policy made the line.

The argument ranks a state by (tokens of the first request that are still to become final, what is left of it,
other requests that hold blocks):

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

from slotproof.model.claims.admission import held_at_once, missing, promised
from slotproof.model.claims.check import Part, check
from slotproof.model.language.algebra import Bool, Int, both, either, implies, minimum, negate
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import Outcome, settled, waits
from slotproof.model.system.allocate_slots import Ask


def left(s: State, r: Int) -> Int:
    """How much is left of a request at most: tokens to become final, and final ones to be computed."""
    limit = s.engine.max_model_len
    return limit - s.num_tokens(r) + limit - minimum(settled(s, r), s.num_tokens(r))


def holds_alone(s: State, r: Int) -> Bool:
    """Whatever is held, r holds it, once."""
    return s.read.every(1, s.engine.num_blocks, lambda b: nobody_else_holds(s, r, b))


def nobody_else_holds(s: State, r: Int, b: Int) -> Bool:
    """The block is r's, once, or nobody's."""
    return either(s.ref_cnt(b) == 0, both(s.ref_cnt(b) == 1, s.holder_request(b, 0) == r))


def fits(s: State, tokens: Int) -> Bool:
    """The pool is large enough for what one request of so many tokens holds at once."""
    return held_at_once(s.engine, tokens) <= s.engine.num_blocks - 1


def is_unmoved(s: State, t: State, q: Int, i: Int) -> Bool:
    """Request q is in t as it was in s, entry i of its table too."""
    return both(
        t.status(q) == s.status(q),
        t.num_tokens(q) == s.num_tokens(q),
        t.computed(q) == s.computed(q),
        t.in_flight(q) == s.in_flight(q),
        t.length(q) == s.length(q),
        t.first(q) == s.first(q),
        implies(s.is_live(q, i), t.table(q, i) == s.table(q, i)),
    )


def _within_flight(s: State, r: Int, ask: Ask) -> Bool:
    if s.engine.sliding_window is None:
        return True
    return s.in_flight(r) + ask.new + ask.lookahead <= s.engine.max_in_flight_tokens


def _lone(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    asked = both(s.status(r) == RUNNING, ask.reserved == 0, negate(ask.must_fit), _within_flight(s, r, ask))
    return Part(both(asked, holds_alone(s, r), fits(s, o.answer.total + ask.new + ask.lookahead)), o.granted)


def _alone(s: State, r: Int, i: Int) -> Part:
    return Part(both(r >= 0, holds_alone(s, r), s.is_live(r, i)), s.ref_cnt(s.table(r, i)) == 1)


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


def _others_stay(s: State, r: Int, o: Outcome, q: Int, i: Int) -> Part:
    return Part(both(q >= 0, q != r), is_unmoved(s, o.state, q, i))


def _others_stay_granted(s: State, r: Int, ask: Ask, o: Outcome, q: Int, i: Int) -> Part:
    return _others_stay(s, r, o, q, i)


def _set_back(s: State, r: Int, o: Outcome, q: Int) -> Part:
    return Part(
        both(q >= 0, q != r), both(o.state.num_tokens(q) >= s.num_tokens(q), left(o.state, q) <= left(s, q))
    )


def _gives_way(s: State, r: Int, o: Outcome, q: Int, i: Int) -> Part:
    t = o.state
    return Part(q >= 0, both(t.length(r) == 0, t.first(r) == 0, implies(q != r, is_unmoved(s, t, q, i))))


def _load_spares(s: State, r: Int, ask: Ask, o: Outcome, q: Int) -> Part:
    earlier = both(q >= 0, q != r, s.length(q) > 0, ask.reserved >= missing(s, q))
    return Part(both(o.granted, ask.delay_cache, earlier), promised(o.state, q))


PROGRESS = (
    check("stage 2", "allocate", "progress", "lone-request-is-granted", "", _lone),
    check("pool", "state", "progress", "lone-holder-shares-nothing", "request index", _alone),
    check("stage 2", "allocate", "progress", "empty-pool-admits", "", _empty_pool),
    check("caller", "complete", "progress", "step-moves-on", "", _moves_on),
    check("caller", "complete", "progress", "answer-moves-nobody-else", "request index", _others_stay),
    check(
        "stage 3", "allocate", "progress", "grant-moves-nobody-else", "request index", _others_stay_granted
    ),
    check("caller", "other", "progress", "nobody-is-set-back", "request", _set_back),
    check("caller", "leave", "progress", "victim-gives-way", "request index", _gives_way),
    check("stage 2", "allocate", "progress", "load-leaves-the-reserve", "request", _load_spares),
)
"""The checks of the statement."""
