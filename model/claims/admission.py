"""What an admission promises: *admission-suffices* and *watermark*."""

from __future__ import annotations

from slotproof.model.claims.check import (
    Part,
    check,
    covered,
    every_row,
    idle_hits,
    is_group,
    sum_of_rows,
    watermark_due,
)
from slotproof.model.language.algebra import Bool, Int, both, either, iff, ite, maximum, minimum, negate
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotproof.model.language.state import RUNNING, State
from slotproof.model.scheduling.caller import Outcome, waits
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.attention import chunked_local, sliding_window
from slotproof.model.system.attention.group import at_once


def held_at_once(engine: Engine, g: Int, tokens: Int) -> Int:
    """The most blocks of group g that a request of so many tokens can hold at once."""
    return at_once(engine, g, engine.blocks(minimum(tokens, engine.max_model_len), g))


def most_held(s: State, row: Int) -> Int:
    """The most blocks that its request's whole prompt can hold at once in the row."""
    engine = s.engine
    return held_at_once(engine, engine.group(row), s.num_tokens(engine.owner(row)))


def missing(s: State, row: Int) -> Int:
    """The blocks that the whole prompt needs at once and the row does not hold."""
    return most_held(s, row) - (s.length(row) - s.first(row))


def all_missing(s: State, r: Int) -> Int:
    """The blocks that the whole prompt needs and the request does not hold, in all groups."""
    return sum_of_rows(s, r, lambda row: maximum(0, missing(s, row)))


def promised(s: State, r: Int, margin: Int = 0) -> Bool:
    """The blocks still missing for the whole prompt are free, and `margin` more."""
    return s.num_free >= all_missing(s, r) + margin


def alone(s: State, r: Int) -> Bool:
    """Nobody else holds a block of the request."""

    def unshared(row: Int) -> Bool:
        return s.read.every(s.first(row), s.length(row), lambda i: s.ref_cnt(s.table(row, i)) == 1)

    return every_row(s, r, unshared)


def has_no_table(s: State, r: Int) -> Bool:
    """The request's block tables are empty."""
    return every_row(s, r, lambda row: s.length(row) == 0)


def _admission(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    fresh = both(ask.hits.tokens == 0, ask.external == 0, has_no_table(s, r), _is_in_flight(s, r, ask))
    keeps_all = both(s.engine.groups.is_one, s.engine.all_full)
    asked = both(o.granted, ask.must_fit, waits(s, r), either(keeps_all, fresh))
    return Part(asked, promised(o.state, r))


def _is_in_flight(s: State, r: Int, ask: Ask) -> Bool:
    """Lookahead is counted as in flight. With one group nothing hangs on it at an admission; with several, a
    window that takes slots past its cap takes them from another group's promise."""
    scheduled = s.in_flight(r) + ask.new + ask.lookahead
    return either(s.engine.groups.is_one, scheduled <= s.engine.max_in_flight_tokens)


def _admission_alone(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    fresh = both(ask.hits.tokens == 0, has_no_table(s, r), is_group(s, g))
    t, row = o.state, s.engine.row(r, g)
    return Part(both(o.granted, waits(s, r), fresh, t.is_live(row, i)), t.ref_cnt(t.table(row, i)) == 1)


def _is_later_chunk(s: State, r: Int, ask: Ask) -> Bool:
    scheduled = ask.new + ask.lookahead
    goes_on = either(s.status(r) == RUNNING, both(waits(s, r), negate(has_no_table(s, r))))
    chunk = both(goes_on, s.computed(r) + scheduled <= s.num_tokens(r))
    unhindered = both(ask.reserved == 0, promised(s, r, watermark_due(s, r, ask)))
    in_flight = s.in_flight(r) + scheduled <= s.engine.max_in_flight_tokens
    return both(chunk, unhindered, either(s.engine.all_full, both(in_flight, alone(s, r))))


def _later_chunk(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(_is_later_chunk(s, r, ask), o.granted)


def _later_promise(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(both(_is_later_chunk(s, r, ask), o.granted), promised(o.state, r))


def _later_chunk_alone(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    t, row = o.state, s.engine.row(r, g)
    windows = negate(s.engine.all_full)  # else it keeps its blocks, shared or not
    entry = both(is_group(s, g), t.is_live(row, i))
    return Part(both(windows, _is_later_chunk(s, r, ask), entry), t.ref_cnt(t.table(row, i)) == 1)


def _promise_survives(s: State, r: Int, o: Outcome, q: Int) -> Part:
    t = o.state
    holds = both(q >= 0, q != r, negate(has_no_table(s, q)))
    same = both(holds, t.num_tokens(q) == s.num_tokens(q), promised(s, q))
    return Part(both(same, either(s.engine.all_full, alone(s, q))), promised(t, q))


def _asks_no_more(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    fresh = both(waits(s, r), ask.hits.tokens == 0, ask.external == 0, has_no_table(s, r))
    most = sum_of_rows(s, r, lambda row: most_held(s, row))
    return Part(both(fresh, s.num_free >= most + watermark_due(s, r, ask)), o.answer.fits)


def _whole_prompt(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None

    def need_of(row: Int) -> Int:
        new = maximum(0, most_held(s, row) - covered(s, row, ask, a.total))
        return new + idle_hits(s, row, ask, a.total)

    need = sum_of_rows(s, r, need_of) + watermark_due(s, r, ask)
    return Part(True, iff(a.fits, either(negate(ask.must_fit), need <= s.num_free)))


def _cap_is_tight(s: State, g: Int) -> Part:
    engine = s.engine
    kind = engine.groups.kind(g)
    if kind is FULL:
        return Part(False, True)
    groups, chunk = engine.groups, chunked_local.admission_cap(engine, g)

    def just_holds(cap: Int, window: Int) -> Bool:
        tokens = minimum(window + engine.max_in_flight_tokens, engine.max_model_len)
        return both(engine.tokens(cap, g) >= tokens, engine.tokens(cap - 1, g) < maximum(1, tokens))

    window = groups.window(g) - 1 + groups.retained(g)
    tight = just_holds(sliding_window.admission_cap(engine, g) - 1, window)
    if CHUNKED_LOCAL not in groups.kinds:
        return Part(both(is_group(s, g), kind == SLIDING_WINDOW), tight)
    cap = ite(kind == SLIDING_WINDOW, tight, just_holds(chunk, groups.window(g)))
    return Part(both(is_group(s, g), kind != FULL), cap)


def _leaves_watermark(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    return Part(o.granted, o.state.num_free >= watermark_due(s, r, ask) + ask.reserved)


def _leaves_watermark_whole(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    fresh = both(ask.hits.tokens == 0, ask.external == 0, has_no_table(s, r))
    asked = both(o.granted, ask.must_fit, waits(s, r), fresh, _is_in_flight(s, r, ask))
    return Part(asked, promised(o.state, r, watermark_due(s, r, ask)))


def _pays_no_more(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    enough = a.need + watermark_due(s, r, ask) + ask.reserved <= a.released.num_free
    return Part(True, iff(o.granted, both(a.fits, enough)))


ADMISSION = (
    check("stage 0", "allocate", "admission-suffices", "admission-promises", "", _admission),
    check(
        "stage 0", "allocate", "admission-suffices", "admission-starts-alone", "group index", _admission_alone
    ),
    check("stage 1", "allocate", "admission-suffices", "later-chunk-is-granted", "", _later_chunk),
    check("stage 1", "allocate", "admission-suffices", "later-chunk-is-promised", "", _later_promise),
    check(
        "stage 1", "allocate", "admission-suffices", "later-chunk-is-alone", "group index", _later_chunk_alone
    ),
    check("caller", "other", "admission-suffices", "promise-survives", "request", _promise_survives),
    check("stage 0", "allocate", "admission-suffices", "asks-no-more", "", _asks_no_more),
    check("stage 0", "allocate", "watermark", "whole-prompt-is-counted", "", _whole_prompt),
    check("stage 0", "state", "admission-suffices", "cap-is-tight", "group", _cap_is_tight),
    check("stage 2", "allocate", "watermark", "watermark-is-left", "", _leaves_watermark),
    check("stage 0", "allocate", "watermark", "whole-prompt-leaves-it", "", _leaves_watermark_whole),
    check("stage 2", "allocate", "watermark", "nobody-pays-more", "", _pays_no_more),
)
"""The checks of the two statements."""
