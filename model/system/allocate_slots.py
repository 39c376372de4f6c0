"""`allocate_slots`: the one call that decides memory admission, in the lesson's five stages.

    | computed | hit | external |   new   | lookahead |
    |      held before or adopted    | to be computed |

Check everything, then commit everything: a refusal leaves no trace but stage 1's releases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slotproof.model.language.algebra import Bool, Int, both, either, ite, maximum, minimum, negate
from slotproof.model.language.state import NULL_BLOCK, PREEMPTED, RUNNING, WAITING, State
from slotproof.model.system.attention.group import (
    admission_cap,
    cache_blocks,
    remove_skipped_blocks,
    skipped_blocks,
    skipped_tokens,
)
from slotproof.model.system.pool import pad, record_for_zeroing, take, touch
from slotproof.model.system.prefix_cache import NO_HITS, Hits


@dataclass(frozen=True)
class Ask:
    """What a scheduler asks for one request. Counts are tokens, `reserved` blocks."""

    new: Int
    """Tokens to compute this step, drafts included."""
    hits: Hits = NO_HITS
    """The lookup's hit, for a request without blocks."""
    lookahead: Int = 0
    """Slots past these, for a proposer that writes its own KV."""
    external: Int = 0
    """Computed tokens that a connector supplies."""
    delay_cache: Bool = False
    """The external tokens arrive later: nothing is hashed yet."""
    must_fit: Bool = False
    """Refuse unless the whole prompt fits (`full_sequence_must_fit`)."""
    reserved: Int = 0
    """Blocks to leave free for others."""
    has_scheduled: Bool = True
    """Other requests are scheduled in this step."""
    skip_zeroing: Bool = False
    """The external tokens' blocks are written by a load, and must not be zeroed."""


@dataclass(frozen=True)
class Answer:
    """What `allocate_slots` answers, and how it came to it. Counts are blocks."""

    ask: Ask
    state: State
    granted: Bool
    fits: Bool
    """Stage 0 passed."""
    released: State
    """The state after stage 1."""
    adopted: State
    """The state in stage 3 once the hits are adopted."""
    committed: State
    """The state after stage 3."""
    need: Int
    """Stage 2's count."""
    watermark: Int
    """The watermark that this call pays."""
    total: Int
    """Computed tokens, with the hit and the external ones."""
    new_low: Int
    new_high: Int
    """The returned new blocks are the table's entries new_low .. new_high - 1."""


def allocate_slots(s: State, r: Int, ask: Ask) -> Answer:
    """Slots for `ask.new` tokens of request r, or a refusal."""
    engine, rules, read = s.engine, s.engine.rules, s.read
    total = s.computed(r) + engine.tokens(ask.hits.num) + ask.external
    watermark = watermark_to_pay(s, r, ask)

    # Stage 0: does the whole prompt fit?
    fits = whole_prompt_fits(s, r, ask, total, watermark)

    # Stage 1: give back what is no longer needed.
    settled = maximum(0, total - s.in_flight(r)) if rules.release_processed_only else total
    s1 = s
    if rules.release_before_count:
        s1 = read.when(fits, lambda: remove_skipped_blocks(s, r, settled), s)

    # Stage 2: count.
    adopting = ask
    if not rules.check_before_commit:
        s1, adopting = read.when(fits, lambda: adopt(s1, r, ask, total), s1), replace(ask, hits=NO_HITS)
    need_slot = total + ask.new + (ask.lookahead if rules.lookahead_gets_slots else 0)
    if rules.slots_end_at_max_model_len:
        need_slot = minimum(need_slot, engine.max_model_len)
    need = num_blocks_to_allocate(s1, r, adopting, need_slot, total, capped=not rules.count_step_uncapped)
    available = s1.num_free - (ask.reserved if rules.keep_reserved else 0)
    granted = both(fits, need + watermark <= available)

    # Stage 3: commit.
    s2 = read.when(granted, lambda: adopt(s1, r, adopting, total), s1)
    s3 = read.when(granted, lambda: take_new(take_external(s2, r, ask, total), r, need_slot), s2)
    new_high = s3.length(r)
    new_low = minimum(external_end(s1, r, adopting, total), new_high)

    # Stage 4: hashes.
    num_to_cache = total + ask.new
    if rules.hash_final_tokens_only:
        num_to_cache = minimum(num_to_cache, s.num_tokens(r))
    delayed = both(rules.delay_cache_blocks, ask.delay_cache)
    s4 = read.when(both(granted, negate(delayed)), lambda: cache_blocks(s3, r, num_to_cache), s3)

    if not rules.release_before_count:
        s4 = read.when(granted, lambda: remove_skipped_blocks(s4, r, settled), s4)
    return Answer(ask, s4, granted, fits, s1, s2, s3, need, watermark, total, new_low, new_high)


def watermark_to_pay(s: State, r: Int, ask: Ask) -> Int:
    """The watermark, for a waiting or preempted request that is admitted beside others; else 0."""
    rules = s.engine.rules
    admission = either(s.status(r) == WAITING, s.status(r) == PREEMPTED)
    pays = either(
        both(rules.watermark_on_admission, admission),
        both(not rules.watermark_spares_running, s.status(r) == RUNNING),
    )
    beside_others = either(ask.has_scheduled, not rules.watermark_spares_lone_admission)
    return ite(both(pays, beside_others), s.engine.watermark_blocks, 0)


def whole_prompt_fits(s: State, r: Int, ask: Ask, total: Int, watermark: Int) -> Bool:
    """Stage 0: the whole prompt, hits discounted, and the watermark fit into the free blocks."""
    rules = s.engine.rules
    whole = minimum(s.num_tokens(r), s.engine.max_model_len)
    need = num_blocks_to_allocate(s, r, ask, whole, total, capped=rules.whole_prompt_caps_window)
    pays = watermark if rules.whole_prompt_pays_watermark else 0
    return either(negate(ask.must_fit), not rules.whole_prompt_must_fit, need + pays <= s.num_free)


def num_blocks_to_allocate(s: State, r: Int, ask: Ask, num_tokens: Int, total: Int, capped: bool) -> Int:
    """The blocks that r needs to hold `num_tokens` tokens: new ones, and hits that are idle now.

    `capped` (for a window) bounds the blocks required by what a request can hold at once.
    """
    engine = s.engine
    required = engine.blocks(num_tokens)
    cap = admission_cap(engine)
    if capped and cap is not None:
        required = minimum(required, cap)
    skipped = skipped_blocks(engine, total)
    new = maximum(0, required - maximum(skipped, s.length(r) + ask.hits.num))
    if not engine.rules.count_idle_hits:
        return new
    low = minimum(skipped, ask.hits.num) if engine.rules.count_hits_in_window_only else 0

    return new + engine.read.count(low, ask.hits.num, lambda i: is_idle_hit(s, ask.hits, i))


def is_idle_hit(s: State, hits: Hits, i: Int) -> Bool:
    """Entry i of a hit is a block that sits in the free queue: touching it costs one free block."""
    return both(hits.at(i) != NULL_BLOCK, s.ref_cnt(hits.at(i)) == 0)


def adopt(s: State, r: Int, ask: Ask, total: Int) -> State:
    """Stage 3: a request without blocks adopts its hits, null blocks in place of those outside the window."""
    read = s.read
    skipped = ite(s.length(r) == 0, skipped_blocks(s.engine, total), s.length(r))

    t = read.when(both(s.length(r) == 0, skipped > 0), lambda: pad(s, r, skipped), s)
    return read.when(
        ask.hits.num > skipped,
        lambda: read.loop(
            "adopt",
            skipped,
            ask.hits.num,
            lambda u, i: touch(u, r, ask.hits.at(i)),
            t,
            request=r,
            hits=ask.hits,
        ),
        t,
    )


def external_end(s: State, r: Int, ask: Ask, total: Int) -> Int:
    """Where the table ends once hits are adopted and external tokens have their blocks."""
    engine = s.engine
    held = ite(s.length(r) == 0, maximum(skipped_blocks(engine, total), ask.hits.num), s.length(r))
    in_window = minimum(total - skipped_tokens(engine, total), ask.external)
    return ite(in_window > 0, maximum(held, engine.blocks(total)), held)


def take_external(s: State, r: Int, ask: Ask, total: Int) -> State:
    """Stage 3: blocks for the external tokens inside the window."""
    low, high = s.length(r), external_end(s, r, ask, total)

    def taken() -> State:
        t = take(s, r, high - low)
        return s.read.when(negate(ask.skip_zeroing), lambda: record_for_zeroing(t, r, low, high), t)

    return s.read.when(high > low, taken, s)


def take_new(s: State, r: Int, num_tokens: Int) -> State:
    """Stage 3: blocks so that r's table holds `num_tokens` tokens."""
    low, high = s.length(r), s.engine.blocks(num_tokens)
    return s.read.when(high > low, lambda: record_for_zeroing(take(s, r, high - low), r, low, high), s)
