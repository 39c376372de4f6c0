"""What an admission promises: *admission-suffices* and *watermark*."""

from __future__ import annotations

from slotproof.model.claims.check import Part, check, covered, idle_hits, watermark_due
from slotproof.model.language.algebra import Bool, Int, both, either, iff, maximum, minimum, negate
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import Outcome, waits
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.attention.group import admission_cap


def held_at_once(engine: Engine, tokens: Int) -> Int:
    """The most blocks that a request of so many tokens can hold at once."""
    whole, cap = engine.blocks(minimum(tokens, engine.max_model_len)), admission_cap(engine)
    return whole if cap is None else minimum(whole, cap)


def most_held(s: State, r: Int) -> Int:
    """The most blocks that the request's whole prompt can hold at once."""
    return held_at_once(s.engine, s.num_tokens(r))


def missing(s: State, r: Int) -> Int:
    """The blocks that the whole prompt needs at once and the request does not hold."""
    return most_held(s, r) - (s.length(r) - s.first(r))


def promised(s: State, r: Int, margin: Int = 0) -> Bool:
    """The blocks still missing for the whole prompt are free, and `margin` more."""
    return s.num_free >= maximum(0, missing(s, r)) + margin


def alone(s: State, r: Int) -> Bool:
    """Nobody else holds a block of the request."""
    return s.read.every(s.first(r), s.length(r), lambda i: s.ref_cnt(s.table(r, i)) == 1)


def _admission(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    fresh = (
        True
        if s.engine.sliding_window is None
        else both(ask.hits.num == 0, ask.external == 0, s.length(r) == 0)
    )
    return Part(both(o.granted, ask.must_fit, waits(s, r), fresh), promised(o.state, r))


def _admission_alone(s: State, r: Int, ask: Ask, o: Outcome, i: Int) -> Part:
    fresh = both(ask.hits.num == 0, s.length(r) == 0)
    t = o.state
    return Part(both(o.granted, waits(s, r), fresh, t.is_live(r, i)), t.ref_cnt(t.table(r, i)) == 1)


def _is_later_chunk(s: State, r: Int, ask: Ask) -> Bool:
    scheduled = ask.new + ask.lookahead
    goes_on = either(s.status(r) == RUNNING, both(waits(s, r), s.length(r) > 0))
    chunk = both(goes_on, s.computed(r) + scheduled <= s.num_tokens(r))
    unhindered = both(ask.reserved == 0, promised(s, r, watermark_due(s, r, ask)))
    if s.engine.sliding_window is None:
        return both(chunk, unhindered)
    in_flight = s.in_flight(r) + scheduled <= s.engine.max_in_flight_tokens
    return both(chunk, unhindered, in_flight, alone(s, r))


def _later_chunk(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(_is_later_chunk(s, r, ask), o.granted)


def _later_promise(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(both(_is_later_chunk(s, r, ask), o.granted), promised(o.state, r))


def _later_chunk_alone(s: State, r: Int, ask: Ask, o: Outcome, i: Int) -> Part:
    if s.engine.sliding_window is None:  # it keeps its blocks, shared or not
        return Part(False, True)
    t = o.state
    return Part(both(_is_later_chunk(s, r, ask), t.is_live(r, i)), t.ref_cnt(t.table(r, i)) == 1)


def _promise_survives(s: State, r: Int, o: Outcome, q: Int) -> Part:
    t = o.state
    same = both(q >= 0, q != r, s.length(q) > 0, t.num_tokens(q) == s.num_tokens(q), promised(s, q))
    undisturbed = True if s.engine.sliding_window is None else alone(s, q)
    return Part(both(same, undisturbed), promised(t, q))


def _asks_no_more(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    fresh = both(waits(s, r), ask.hits.num == 0, ask.external == 0, s.length(r) == 0)
    return Part(both(fresh, s.num_free >= most_held(s, r) + watermark_due(s, r, ask)), o.answer.fits)


def _whole_prompt(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    new = maximum(0, most_held(s, r) - covered(s, r, ask, a.total))
    need = new + idle_hits(s, r, ask, a.total) + watermark_due(s, r, ask)
    return Part(True, iff(a.fits, either(negate(ask.must_fit), need <= s.num_free)))


def _cap_is_tight(s: State) -> Part:
    engine, cap = s.engine, admission_cap(s.engine)
    if cap is None:
        return Part(False, True)
    assert engine.sliding_window is not None
    tokens = minimum(engine.sliding_window - 1 + engine.max_in_flight_tokens, engine.max_model_len)
    return Part(True, both(engine.tokens(cap - 1) >= tokens, engine.tokens(cap - 2) < maximum(1, tokens)))


def _leaves_watermark(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(o.granted, o.state.num_free >= watermark_due(s, r, ask) + ask.reserved)


def _leaves_watermark_whole(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    fresh = both(ask.hits.num == 0, ask.external == 0, s.length(r) == 0)
    asked = both(o.granted, ask.must_fit, waits(s, r), fresh)
    return Part(asked, promised(o.state, r, watermark_due(s, r, ask)))


def _pays_no_more(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    enough = a.need + watermark_due(s, r, ask) + ask.reserved <= a.released.num_free
    return Part(True, iff(o.granted, both(a.fits, enough)))


ADMISSION = (
    check("stage 0", "allocate", "admission-suffices", "admission-promises", "", _admission),
    check("stage 0", "allocate", "admission-suffices", "admission-starts-alone", "index", _admission_alone),
    check("stage 1", "allocate", "admission-suffices", "later-chunk-is-granted", "", _later_chunk),
    check("stage 1", "allocate", "admission-suffices", "later-chunk-is-promised", "", _later_promise),
    check("stage 1", "allocate", "admission-suffices", "later-chunk-is-alone", "index", _later_chunk_alone),
    check("caller", "other", "admission-suffices", "promise-survives", "request", _promise_survives),
    check("stage 0", "allocate", "admission-suffices", "asks-no-more", "", _asks_no_more),
    check("stage 0", "allocate", "watermark", "whole-prompt-is-counted", "", _whole_prompt),
    check("stage 0", "state", "admission-suffices", "cap-is-tight", "", _cap_is_tight),
    check("stage 2", "allocate", "watermark", "watermark-is-left", "", _leaves_watermark),
    check("stage 0", "allocate", "watermark", "whole-prompt-leaves-it", "", _leaves_watermark_whole),
    check("stage 2", "allocate", "watermark", "nobody-pays-more", "", _pays_no_more),
)
"""The checks of the two statements."""
