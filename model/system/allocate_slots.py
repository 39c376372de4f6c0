"""`allocate_slots`: the one call that decides memory admission, in the lesson's five stages.

    | computed | hit | external |   new   | lookahead |
    |      held before or adopted    | to be computed |

Check everything, then commit everything: a refusal leaves no trace but stage 1's releases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from slotproof.model.language.algebra import Bool, Function, Int, both, either, ite, maximum, minimum, negate
from slotproof.model.language.behaviours import WINDOW_OF_ONE_LOADS
from slotproof.model.language.state import NULL_BLOCK, PREEMPTED, RUNNING, WAITING, State
from slotproof.model.system.attention.group import at_once, null_blocks, skipped_blocks, skipped_tokens
from slotproof.model.system.coordinator import cache_blocks, for_each_group, remove_skipped_blocks
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
    """The state in stage 3 once all groups' hits are adopted."""
    loaded: State
    """The state in stage 3 once the external tokens have their blocks too."""
    committed: State
    """The state after stage 3."""
    need: Int
    """Stage 2's count, over all groups."""
    watermark: Int
    """The watermark that this call pays."""
    total: Int
    """Computed tokens, with the hit and the external ones."""
    new_low: Function
    new_high: Function
    """The returned new blocks are the entries new_low(g) .. new_high(g) - 1 of the table in group g."""


def allocate_slots(s: State, r: Int, ask: Ask) -> Answer:
    """Slots for `ask.new` tokens of request r in every group, or a refusal."""
    engine, rules, read = s.engine, s.engine.rules, s.read
    total = s.computed(r) + ask.hits.tokens + ask.external
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

    # Stage 3: commit. All groups adopt before any takes a block, which would evict what another is to adopt.
    if rules.adopt_all_before_external:
        s2 = read.when(granted, lambda: adopt(s1, r, adopting, total), s1)
        s3 = read.when(granted, lambda: take_external(s2, r, ask, total), s2)
    else:
        s2 = s3 = read.when(granted, lambda: adopt_and_take_external(s1, r, adopting, total), s1)
    s4 = read.when(granted, lambda: take_new(s3, r, need_slot), s3)

    # Stage 4: hashes.
    num_to_cache = total + ask.new
    if rules.hash_final_tokens_only:
        num_to_cache = minimum(num_to_cache, s.num_tokens(r))
    delayed = both(rules.delay_cache_blocks, ask.delay_cache)
    s5 = read.when(both(granted, negate(delayed)), lambda: cache_blocks(s4, r, num_to_cache), s4)

    if not rules.release_before_count:
        s5 = read.when(granted, lambda: remove_skipped_blocks(s5, r, settled), s5)

    def new_high(g: Int) -> Int:
        return s4.length(engine.row(r, g))

    def new_low(g: Int) -> Int:
        return minimum(external_end(s1, engine.row(r, g), adopting, total), new_high(g))

    return Answer(ask, s5, granted, fits, s1, s2, s3, s4, need, watermark, total, new_low, new_high)


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
    """The blocks that r needs in all groups to hold `num_tokens` tokens."""
    engine = s.engine
    return s.read.total(
        engine.groups.num, lambda g: blocks_to_allocate(s, engine.row(r, g), ask, num_tokens, total, capped)
    )


def blocks_to_allocate(s: State, row: Int, ask: Ask, num_tokens: Int, total: Int, capped: bool) -> Int:
    """The blocks that a row needs to hold `num_tokens` tokens: new ones, and hits that are idle now.

    `capped` (for a window) bounds the blocks required by what a request can hold at once.
    """
    engine, g = s.engine, s.engine.group(row)
    required = engine.blocks(num_tokens, g)
    if capped:
        required = at_once(engine, g, required)
    skipped, hits = skipped_blocks(engine, g, total), ask.hits.num(g)
    new = maximum(0, required - maximum(skipped, s.length(row) + hits))
    if not engine.rules.count_idle_hits:
        return new
    null = null_blocks(engine, g, hits, total)
    low = minimum(null, hits) if engine.rules.count_hits_in_window_only else 0
    return new + engine.read.count(low, hits, partial(is_idle_hit, s, ask.hits), g)


def is_idle_hit(s: State, hits: Hits, g: Int, i: Int) -> Bool:
    """Entry i of a hit is a block that sits in the free queue: touching it costs one free block."""
    return both(hits.at(g, i) != NULL_BLOCK, s.ref_cnt(hits.at(g, i)) == 0)


def adopt(s: State, r: Int, ask: Ask, total: Int) -> State:
    """Stage 3: a request without blocks adopts its hits, group by group."""
    return for_each_group(
        s, "adopt-groups", r, lambda t, row: adopt_row(t, row, ask, total), hits=ask.hits, total=total
    )


def adopt_row(s: State, row: Int, ask: Ask, total: Int) -> State:
    """An empty row gets its hits, null blocks in place of those outside the window."""
    read, g = s.read, s.engine.group(row)
    num = ask.hits.num(g)
    skipped = ite(s.length(row) == 0, null_blocks(s.engine, g, num, total), s.length(row))
    t = read.when(both(s.length(row) == 0, skipped > 0), lambda: pad(s, row, skipped), s)

    def step(u: State, i: Int) -> State:
        return touch(u, row, ask.hits.at(g, i))

    return read.when(
        num > skipped, lambda: read.loop("adopt", skipped, num, step, t, row=row, hits=ask.hits), t
    )


def external_end(s: State, row: Int, ask: Ask, total: Int) -> Int:
    """Where the row ends once hits are adopted and external tokens have their blocks."""
    engine, g = s.engine, s.engine.group(row)
    adopted = maximum(skipped_blocks(engine, g, total), ask.hits.num(g))
    held = ite(s.length(row) == 0, adopted, s.length(row))
    in_window = minimum(total - skipped_tokens(engine, g, total), ask.external)
    if WINDOW_OF_ONE_LOADS in engine.behaviours:
        in_window = ite(skipped_blocks(engine, g, total) == 0, ask.external, in_window)
    return ite(in_window > 0, maximum(held, engine.blocks(total, g)), held)


def take_external(s: State, r: Int, ask: Ask, total: Int) -> State:
    """Stage 3: blocks for the external tokens inside the windows, group by group."""

    def end(row: Int) -> Int:
        return external_end(s, row, ask, total)

    return for_each_group(
        s,
        "take-groups",
        r,
        lambda t, row: take_up_to(t, row, end(row), negate(ask.skip_zeroing)),
        end=end,
        zeroed=negate(ask.skip_zeroing),
    )


def take_new(s: State, r: Int, num_tokens: Int) -> State:
    """Stage 3: blocks so that r's tables hold `num_tokens` tokens, group by group."""
    engine = s.engine

    def end(row: Int) -> Int:
        return engine.blocks(num_tokens, engine.group(row))

    return for_each_group(
        s,
        "take-groups",
        r,
        lambda t, row: take_up_to(t, row, end(row), True),
        end=end,
        zeroed=True,
    )


def take_up_to(s: State, row: Int, high: Int, zeroed: Bool) -> State:
    """New blocks until the row has `high` entries; recorded for zeroing, unless a load writes them."""
    low = s.length(row)

    def taken() -> State:
        t = take(s, row, high - low)
        return s.read.when(zeroed, lambda: record_for_zeroing(t, row, low, high), t)

    return s.read.when(high > low, taken, s)


def adopt_and_take_external(s: State, r: Int, ask: Ask, total: Int) -> State:
    """What a program did that went through the groups once (vllm#33775): a group's external blocks may be
    those that a later group is about to adopt."""

    def both_at_once(t: State, row: Int) -> State:
        end = external_end(t, row, ask, total)
        return take_up_to(adopt_row(t, row, ask, total), row, end, negate(ask.skip_zeroing))

    return for_each_group(s, "adopt-and-take-groups", r, both_at_once)
