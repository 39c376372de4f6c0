"""What a campaign has exercised: a row for everything worth having seen, counted by what the model did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from slotproof.impl.protocol import (
    Allocate,
    CacheBlocks,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.model.language.groups import CHUNKED_LOCAL, SLIDING_WINDOW
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, WAITING, State
from slotproof.model.scheduling.caller import ACTIONS
from slotproof.model.system.allocate_slots import Answer, Ask, whole_prompt_fits
from slotproof.model.system.attention.group import admission_cap, num_full_blocks, skipped_blocks
from slotproof.proofs.campaign.calls import call_name
from slotproof.proofs.gate.edges import EDGES, at_edge
from slotproof.proofs.gate.oracle import Expectation

Possible = Callable[[Config], bool]


def _always(config: Config) -> bool:
    return True


def _has_groups(number: int, config: Config) -> bool:
    return len(config.all_groups) == number


def _hybrid(config: Config) -> bool:
    return len(config.all_groups) > 1 and config.enable_caching


def _full(config: Config) -> bool:
    return config.sliding_window is None


def _window(config: Config) -> bool:
    return config.sliding_window is not None


def _caching(config: Config) -> bool:
    return config.enable_caching


def _no_caching(config: Config) -> bool:
    return not config.enable_caching


def _window_caching(config: Config) -> bool:
    return _window(config) and _caching(config)


def _has_chunks(config: Config) -> bool:
    return any(group.attention_chunk_size is not None for group in config.all_groups)


def _has_draft_head(config: Config) -> bool:
    return any(group.is_eagle for group in config.all_groups)


def _waits_for_a_head(config: Config) -> bool:
    return config.num_prefill_lookahead > 1


def _is_sparse(config: Config) -> bool:
    return config.retention_interval is not None


def _cached(possible: Possible) -> Possible:
    """The same, where there is a prefix cache."""
    return lambda config: config.enable_caching and possible(config)


def _watermark(config: Config) -> bool:
    return config.watermark_blocks > 0


def _capped(config: Config) -> bool:
    window, block = config.sliding_window, config.block_size
    if window is None:
        return False
    return (window + config.max_in_flight_tokens) // block + 2 < config.max_model_len // block


def _bounded_flight(config: Config) -> bool:
    return config.max_in_flight_tokens < config.max_model_len


_STATUS = {WAITING: "waiting", LOADING: "loading", RUNNING: "running", PREEMPTED: "preempted"}

ROWS: dict[str, Possible] = {
    "engine: full attention": _full,
    "engine: sliding window": _window,
    **{f"engine: {n} attention groups": partial(_has_groups, n) for n in (2, 3, 4)},
    **{
        f"groups: {what}": _hybrid
        for what in (
            "a hit of all groups",
            "a later group's idle hit, beside external blocks",
            "the first group's hit is longer than the common one",
            "a full block past the last common end is not published",
            "a block that no hit needs is not published",
        )
    },
    "engine: chunked local attention": _has_chunks,
    "engine: a draft head": _has_draft_head,
    "engine: sparse retention": _is_sparse,
    "lookup: a draft head drops a block": _cached(_has_draft_head),
    "lookup: a hit ends inside a chunk": _cached(_has_chunks),
    "stage 4: a window's block is not kept": _cached(_is_sparse),
    "stage 4: a hash waits for a draft head": _cached(_waits_for_a_head),
    "engine: prefix caching on": _caching,
    "engine: prefix caching off": _no_caching,
    **{f"call: {name}": _always for name in ACTIONS if name != "execute"},  # no allocator sees the worker
    **{f"granted: {_STATUS[status]}": _always for status in (WAITING, RUNNING, PREEMPTED)},
    **{f"refused: {_STATUS[status]}": _always for status in (WAITING, RUNNING, PREEMPTED)},
    "granted: with must_fit": _always,
    "granted: beside a step in flight": _always,
    "granted: a chunk of a prompt": _always,
    "granted: next to the watermark": _watermark,
    "refused: stage 0": _always,
    "refused: stage 0, by the watermark alone": _watermark,
    "refused: stage 0, with a block to give back": _window,
    "refused: stage 2": _always,
    "refused: stage 2, by the watermark alone": _watermark,
    "refused: stage 2, by reserved blocks alone": _always,
    "stage 0: a window's admission is capped": _capped,
    "stage 1: a window releases blocks": _window,
    "stage 1: a window releases hashed blocks": _window_caching,
    "stage 1: a window releases, and stage 2 refuses": _window,
    "stage 2: a window's step is not capped": _capped,
    "stage 2: an idle hit outside the window is not counted": _window_caching,
    "stage 2: lookahead crosses a boundary": _always,
    "stage 2: lookahead ends at max_model_len": _always,
    "decode: a block at a boundary": _always,
    "decode: no block within one": _always,
    "stage 3: an idle hit": _caching,
    "stage 3: a held hit": _caching,
    "stage 3: a hit behind null blocks": _window_caching,
    "stage 3: a hit for a preempted request": _caching,
    "stage 3: a pop evicts a hash": _caching,
    "stage 4: a block is published": _caching,
    "stage 4: drafts fill a block that is not published": _caching,
    "cache: two blocks with one key": _caching,
    "cache: a lookup is skipped": _caching,
    "cache: a LoRA of the same name has these tokens": _caching,
    "external: at once": _always,
    "external: on top of a hit": _caching,
    "external: delayed": _always,
    "external: blocks not to be zeroed": _always,
    "external: a load is published": _caching,
    "hash: before the next allocation": _caching,
    "drafts: all accepted": _always,
    "drafts: some rejected": _always,
    "drafts: all rejected": _always,
    "complete: part of what is in flight": _always,
    "remove_skipped: releases blocks": _window,
    **{f"finish: {name}": _always for name in _STATUS.values()},
    "freed: unhashed blocks before hashed ones": _caching,
    "freed: a block another request holds": _caching,
    "evict_blocks: an idle block": _caching,
    "evict_blocks: a held block": _caching,
    "reset: done": _always,
    "reset: done, with hashes to drop": _caching,
    "reset: refused": _always,
    "zeroing: a list is taken": _always,
    **{f"edge: {name}": _always if name != "in-flight-is-bounded" else _bounded_flight for name in EDGES},
}
"""Every row, with the configurations in which it can be reached."""


NEEDS: dict[str, tuple[str, ...]] = {
    "call: cache_blocks": ("delay_cache",),
    "call: remove_skipped": ("remove_skipped",),
    "call: evict_blocks": ("evict_blocks",),
    "call: reset_prefix_cache": ("reset_prefix_cache",),
    "call: take_new_block_ids": ("take_new_block_ids",),
    "granted: with must_fit": ("must_fit",),
    "granted: next to the watermark": ("reserved",),
    "refused: stage 0": ("must_fit",),
    "refused: stage 0, by the watermark alone": ("must_fit",),
    "refused: stage 0, with a block to give back": ("must_fit",),
    "refused: stage 2, by reserved blocks alone": ("reserved",),
    "stage 0: a window's admission is capped": ("must_fit",),
    "stage 2: an idle hit outside the window is not counted": ("external",),
    "stage 2: lookahead crosses a boundary": ("lookahead",),
    "stage 2: lookahead ends at max_model_len": ("lookahead",),
    "cache: a lookup is skipped": ("skip_cache",),
    "external: at once": ("external",),
    "external: on top of a hit": ("external",),
    "external: delayed": ("external", "delay_cache"),
    "external: blocks not to be zeroed": ("external", "skip_zeroing"),
    "external: a load is published": ("external", "delay_cache"),
    "hash: before the next allocation": ("cache_running",),
    "remove_skipped: releases blocks": ("remove_skipped",),
    "finish: loading": ("external", "delay_cache"),
    "evict_blocks: an idle block": ("evict_blocks",),
    "evict_blocks: a held block": ("evict_blocks",),
    "reset: done": ("reset_prefix_cache",),
    "reset: done, with hashes to drop": ("reset_prefix_cache",),
    "reset: refused": ("reset_prefix_cache",),
    "zeroing: a list is taken": ("take_new_block_ids",),
    **{f"edge: {name}": needs for name, needs in EDGES.items() if needs},
}
"""What an implementation must be able to do for a row (`impl/capabilities.py`), beyond the configuration."""


def rows(configs: Sequence[Config], lacks: frozenset[str] = frozenset()) -> list[str]:
    """The rows that can be reached under at least one of the configurations, without what is lacking."""
    return [
        row
        for row, possible in ROWS.items()
        if lacks.isdisjoint(NEEDS.get(row, ())) and any(possible(config) for config in configs)
    ]


def reached(config: Config, e: Expectation) -> Iterator[str]:
    """The rows that one call has reached."""
    call, s, t = e.call, e.before, e.outcome.state
    if config.groups:
        yield f"engine: {len(config.all_groups)} attention groups"
    else:
        yield "engine: full attention" if config.sliding_window is None else "engine: sliding window"
    yield from _kinds(config)
    yield "engine: prefix caching on" if config.enable_caching else "engine: prefix caching off"
    yield f"call: {call_name(call)}"
    answer = e.outcome.answer
    if isinstance(call, Allocate) and not config.is_plain:
        yield from _of_kinds(s, t, call, e)
    yield from (f"edge: {name}" for name in at_edge(s, call, answer.total if answer else 0))
    if isinstance(call, Allocate):
        yield from _allocate(s, t, call, e)
    elif isinstance(call, Complete):
        yield from _complete(s, call)
    elif isinstance(call, CacheBlocks):
        if t.clock > s.clock:
            loaded = call.tokens is None
            yield "external: a load is published" if loaded else "hash: before the next allocation"
    elif isinstance(call, RemoveSkipped):
        if t.num_free > s.num_free:
            yield "remove_skipped: releases blocks"
    elif isinstance(call, Finish | Preempt):
        if isinstance(call, Finish):
            yield f"finish: {_STATUS[s.status(call.request)]}"
        yield from _freed(s, t, call.request)
    elif isinstance(call, EvictBlocks):
        for block in call.blocks:
            if block and s.is_hashed(block):
                yield "evict_blocks: an idle block" if s.is_free(block) else "evict_blocks: a held block"
    elif isinstance(call, ResetPrefixCache):
        yield "reset: done" if e.outcome.granted else "reset: refused"
        if e.outcome.granted and any(s.is_hashed(b) for b in range(1, config.num_blocks)):
            yield "reset: done, with hashes to drop"
    elif isinstance(call, TakeNewBlockIds) and s.num_to_zero(0) > 0:
        yield "zeroing: a list is taken"


def _kinds(config: Config) -> Iterator[str]:
    if _has_chunks(config):
        yield "engine: chunked local attention"
    if _has_draft_head(config):
        yield "engine: a draft head"
    if _is_sparse(config):
        yield "engine: sparse retention"


def _of_kinds(s: State, t: State, call: Allocate, e: Expectation) -> Iterator[str]:
    """What the groups decided, each in its way."""
    engine, r, hits = s.engine, call.request, e.outcome.hits
    groups, final = engine.groups, min(t.computed(r), s.num_tokens(r))
    for g in range(groups.num):
        row = engine.row(r, g)
        if hits.tokens and groups.drops(g):
            yield "lookup: a draft head drops a block"
        if groups.kind(g) == CHUNKED_LOCAL and hits.tokens % groups.window(g):
            yield "lookup: a hit ends inside a chunk"
        if not engine.enable_caching or not e.outcome.granted or call.delay_cache:
            continue
        cached = range(s.num_cached(row), t.num_cached(row))
        if groups.kind(g) == SLIDING_WINDOW and any(
            t.is_live(row, i) and not t.is_hashed(t.table(row, i)) for i in cached
        ):
            yield "stage 4: a window's block is not kept"
        if engine.num_reprefillable and engine.full_blocks(final, g) > num_full_blocks(engine, g, final):
            yield "stage 4: a hash waits for a draft head"


def _allocate(s: State, t: State, call: Allocate, e: Expectation) -> Iterator[str]:
    engine, r, answer = s.engine, call.request, e.outcome.answer
    assert answer is not None
    status = _STATUS[s.status(r)]
    released = answer.released
    rows = [engine.row(r, g) for g in range(engine.groups.num)]
    gone = [s.table(row, i) for row in rows for i in range(s.first(row), released.first(row))]
    if gone:
        yield "stage 1: a window releases blocks"
        if any(s.is_hashed(block) for block in gone):
            yield "stage 1: a window releases hashed blocks"
        if not answer.granted:
            yield "stage 1: a window releases, and stage 2 refuses"
    cap = admission_cap(engine, 0)
    if call.must_fit and cap is not None and engine.blocks(s.num_tokens(r)) > cap:
        yield "stage 0: a window's admission is capped"
    need_slot = min(answer.total + call.new + call.lookahead, engine.max_model_len)
    if answer.fits and answer.need and cap is not None and engine.blocks(need_slot) > cap:
        yield "stage 2: a window's step is not capped"
    hits = e.outcome.hits
    outside = range(min(skipped_blocks(engine, 0, answer.total), hits.num(0)))
    if answer.fits and any(hits.at(0, i) and s.is_free(hits.at(0, i)) for i in outside):
        yield "stage 2: an idle hit outside the window is not counted"
    if call.skip_cache and engine.enable_caching and s.num_tokens(r) > engine.tokens(1):
        yield "cache: a lookup is skipped"
    if s.status(r) != RUNNING and any(_has_other_lora(s, r, engine.owner(row)) for row in e.snapshot.tables):
        yield "cache: a LoRA of the same name has these tokens"
    if not answer.granted:
        yield f"refused: {status}"
        yield from _refused(s, r, call, e, answer)
        return
    yield f"granted: {status}"
    yield from _granted(s, call, answer)
    yield from _adopted(s, t, call, e)


def _has_other_lora(s: State, r: int, q: int) -> bool:
    """q's first block is cached, and only the path of r's LoRA keeps r from hitting it."""
    read, first = s.read, s.engine.tokens(1)
    if read.lora(r) == 0 or read.lora(q) in (0, read.lora(r)) or read.salt(q) != read.salt(r):
        return False
    row = s.engine.row(q, 0)
    cached = s.is_live(row, 0) and s.is_hashed(s.table(row, 0))
    return bool(cached and s.num_tokens(r) > first and read.span(q, 0, first) == read.span(r, 0, first))


def _refused(s: State, r: int, call: Allocate, e: Expectation, answer: Answer) -> Iterator[str]:
    if not answer.fits:
        yield "refused: stage 0"
        ask = Ask(new=call.new, hits=e.outcome.hits, external=call.external, must_fit=True)
        if whole_prompt_fits(s, r, ask, answer.total, 0):
            yield "refused: stage 0, by the watermark alone"
        if any(_can_give_back(s, s.engine.row(r, g), answer) for g in range(s.engine.groups.num)):
            yield "refused: stage 0, with a block to give back"
        return
    yield "refused: stage 2"
    free = answer.released.num_free
    if answer.need <= free - call.reserved:
        yield "refused: stage 2, by the watermark alone"
    if answer.need + answer.watermark <= free:
        yield "refused: stage 2, by reserved blocks alone"


def _can_give_back(s: State, row: int, answer: Answer) -> bool:
    """Stage 1 would release a block of the row, if stage 0 had let the call pass."""
    engine, settled = s.engine, max(0, answer.total - s.in_flight(s.engine.owner(row)))
    gone = min(skipped_blocks(engine, engine.group(row), settled), s.length(row))
    return bool(s.first(row) < gone)


def _granted(s: State, call: Allocate, answer: Answer) -> Iterator[str]:
    """How many slots, and why so many."""
    engine, r = s.engine, call.request
    end = answer.total + call.new
    if call.must_fit:
        yield "granted: with must_fit"
    if answer.watermark and answer.need + answer.watermark == answer.released.num_free - call.reserved:
        yield "granted: next to the watermark"
    if s.in_flight(r) > 0:
        yield "granted: beside a step in flight"
    if call.new and end < s.num_tokens(r):
        yield "granted: a chunk of a prompt"
    reach = min(end + call.lookahead, engine.max_model_len)
    if engine.blocks(reach) > max(engine.blocks(end), s.length(engine.row(r, 0))):
        yield "stage 2: lookahead crosses a boundary"
    if end + call.lookahead > engine.max_model_len:
        yield "stage 2: lookahead ends at max_model_len"
    if call.new == 1 and not call.lookahead and s.status(r) == RUNNING:
        yield "decode: a block at a boundary" if answer.need else "decode: no block within one"
    if call.external:
        yield "external: delayed" if call.delay_cache else "external: at once"
        if answer.total > call.external:
            yield "external: on top of a hit"
        if call.skip_zeroing:
            yield "external: blocks not to be zeroed"


def _adopted(s: State, t: State, call: Allocate, e: Expectation) -> Iterator[str]:
    """Where the blocks came from, and what was published."""
    engine, r, hits = s.engine, call.request, e.outcome.hits
    for g in range(engine.groups.num):
        row, num = engine.row(r, g), hits.num(g)
        for i in range(t.first(row), num):
            yield "stage 3: a held hit" if s.ref_cnt(hits.at(g, i)) else "stage 3: an idle hit"
        if num > t.first(row) > 0:
            yield "stage 3: a hit behind null blocks"
        held = max(s.length(row), num, t.first(row))
        if any(s.is_hashed(t.table(row, i)) for i in range(held, t.length(row))):
            yield "stage 3: a pop evicts a hash"
    if hits.num(0) and s.status(r) == PREEMPTED:
        yield "stage 3: a hit for a preempted request"
    if engine.groups.num > 1:
        yield from _of_groups(s, t, call, e)
    if not engine.enable_caching:
        return
    if t.clock > s.clock:
        yield "stage 4: a block is published"
        keys = [key for key in e.snapshot.hashes if key is not None]
        if len(set(keys)) < len(keys):
            yield "cache: two blocks with one key"
    if engine.full_blocks(t.computed(r)) > engine.full_blocks(t.num_tokens(r)):
        yield "stage 4: drafts fill a block that is not published"


def _of_groups(s: State, t: State, call: Allocate, e: Expectation) -> Iterator[str]:
    """What only several groups have to settle."""
    engine, r, hits = s.engine, call.request, e.outcome.hits
    groups = range(engine.groups.num)
    if hits.tokens:
        yield "groups: a hit of all groups"
        if call.external and any(s.is_free(hits.at(g, i)) for g in groups[1:] for i in range(hits.num(g))):
            yield "groups: a later group's idle hit, beside external blocks"
    if not engine.enable_caching or s.status(r) == RUNNING:
        return
    if not call.skip_cache and s.computed(r) == 0:
        start, unit = block_key(engine, engine.row(r, 0), hits.num(0)), engine.scheduler_block_size
        longer = hits.tokens + unit < s.num_tokens(r)
        if longer and any(s.block_hash(b) == start for b in range(1, engine.num_blocks)):
            yield "groups: the first group's hit is longer than the common one"
    final = min(t.computed(r), t.num_tokens(r))
    if call.delay_cache:
        return
    if any(engine.full_blocks(final, g) > engine.full_blocks(engine.align_down(final), g) for g in groups):
        yield "groups: a full block past the last common end is not published"
    cached = [(row, i) for g in groups for row in [engine.row(r, g)] for i in range(t.num_cached(row))]
    if any(t.is_live(row, i) and not t.is_hashed(t.table(row, i)) for row, i in cached):
        yield "groups: a block that no hit needs is not published"


def _complete(s: State, call: Complete) -> Iterator[str]:
    r = call.request
    drafts = s.computed(r) - s.num_tokens(r)
    if call.processed < s.in_flight(r):
        yield "complete: part of what is in flight"
    elif drafts > 0 and not call.rejected:
        yield "drafts: all accepted"
    elif 0 < call.rejected < drafts:
        yield "drafts: some rejected"
    elif call.rejected:
        yield "drafts: all rejected"


def _freed(s: State, t: State, r: int) -> Iterator[str]:
    rows = [s.engine.row(r, g) for g in range(s.engine.groups.num)]
    blocks = [s.table(row, i) for row in rows for i in range(s.first(row), s.length(row))]
    if any(not t.is_free(b) for b in blocks):
        yield "freed: a block another request holds"
    if len({s.is_hashed(b) for b in blocks if t.is_free(b)}) == 2:
        yield "freed: unhashed blocks before hashed ones"
