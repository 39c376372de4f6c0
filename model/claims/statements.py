"""The statements: what is promised of every pool, batch and sequence of calls within the contract.

A statement is made of invariants (`invariants.py`), of what no step may fail on (`Reading.require`,
statement *no-rollback*), of what steps rely on (`Reading.expect`), and of the checks below, each about one
state or one call. The same text is proved for every size and evaluated on every call of a campaign.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.model.claims.admission import ADMISSION
from slotproof.model.claims.check import (
    Part,
    check,
    covered,
    every_row,
    idle_hits,
    is_group,
    settled_at,
    slots_asked,
    sum_of_rows,
)
from slotproof.model.claims.invariants import out_of_sight
from slotproof.model.claims.progress import PROGRESS
from slotproof.model.language.algebra import (
    Bool,
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
from slotproof.model.language.engine import DENSE
from slotproof.model.language.groups import SLIDING_WINDOW
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import NULL_BLOCK, RUNNING, State
from slotproof.model.scheduling.caller import Outcome, is_missed
from slotproof.model.scheduling.worker import arrives, end_of, is_written
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.attention import sliding_window
from slotproof.model.system.attention.group import hit_start, keeps
from slotproof.model.system.prefix_cache import Hits


@dataclass(frozen=True)
class Statement:
    """What is promised, in words, and what it needs of the caller beyond the contract."""

    name: str
    text: str
    needs: str = ""


STATEMENTS = {
    statement.name: statement
    for statement in (
        Statement(
            "refusal-leaves-no-trace",
            "allocate_slots returns None: nothing has changed but stage 1's releases, and the free count "
            "has not fallen; refused at stage 0, nothing has; nor has it by a cache reset that is refused",
        ),
        Statement(
            "no-rollback",
            "once stage 2 has passed, no pop, touch, free or hash of stages 3 and 4 can fail",
        ),
        Statement(
            "exact-count",
            "free after stage 1 - free after = the number that stage 2 counted, for windows too",
        ),
        Statement(
            "free-count",
            "the counter = the length of the free queue = the non-null blocks with ref_cnt 0",
        ),
        Statement(
            "queue-order",
            "new blocks are the front of the queue; of a freed request's blocks, hashed or not, the tail is "
            "taken before the head; unhashed blocks come before hashed ones, but for those that "
            "evict_blocks named while they were idle",
        ),
        Statement("ref-count", "ref_cnt(b) = the table entries that hold b"),
        Statement("one-group", "the entries that hold a block, and its key, belong to one group"),
        Statement("null-block", "the null block is never free, hashed, counted or handed out"),
        Statement(
            "drafts-never-hashed",
            "no hashed block reaches past request.num_tokens, whatever drafts are accepted or rejected later",
        ),
        Statement(
            "hash-soundness",
            "two hashed blocks with one key hold the same tokens at the same positions, and a hit is a "
            "proper prefix of the asker",
        ),
        Statement(
            "consistent-hit",
            "a hit is of one length, at which a block of every group ends, and each group supplies every "
            "block that the next token reads there; a group with a draft head has found one block more",
        ),
        Statement(
            "mask-serves-replay",
            "however few blocks of windows are kept, a prompt that is sent again, with nothing evicted, hits "
            "what it would if all were kept (with a draft head: at the next place before); so does a longer "
            "one, unless the prompt ends where blocks of all groups do",
        ),
        Statement("salt-isolation", "requests with different cache salts or LoRAs never share a block"),
        Statement(
            "no-aliased-write",
            "a slot written in a step belongs to one request, its block was not published before, and a "
            "block that a delayed load is still to write is not published either",
        ),
        Statement(
            "enough-slots",
            "a grant leaves slots for min(computed + new + lookahead, max_model_len) tokens, and a block "
            "table never grows past max_model_len",
        ),
        Statement(
            "window-kept",
            "no block is given up that a token not yet processed, or rolled back, still attends to",
        ),
        Statement(
            "boundary-only",
            "a decode step without lookahead takes one block exactly when its table is full, else none",
        ),
        Statement(
            "admission-suffices",
            "a request admitted with full_sequence_must_fit finds every later chunk of its prompt granted, "
            "and the check asks no more than the request can hold",
            "nobody else allocates, nothing is reserved, lookahead stays within the prompt, no load is "
            "delayed; for windows: admitted without a hit or external tokens, lookahead counted as in flight",
        ),
        Statement(
            "watermark",
            "an admission beside others leaves the watermark free, a whole prompt that must fit included; "
            "a grant leaves the reserve; a running request and a lone admission pay no watermark",
        ),
        Statement(
            "batch-in-order",
            "a decode step of many requests in closed form (`decode_step`) is their calls in order: the same "
            "blocks, queue, hashes and tables, and every call is granted (full attention)",
            "a batch is of running requests whose full blocks are hashed, and the pool has its blocks",
        ),
        Statement(
            "two-phase",
            "between the check and the last adoption nothing is popped: every group adopts the very blocks "
            "that the lookup found, hashes and all",
        ),
        Statement("idle-hits-cost", "an idle hit costs one free block and no memory, a held hit nothing"),
        Statement(
            "published-is-written",
            "a hit, and whatever a step reads, has been written, or is in the step that is being made up",
            "a request that leaves after it was scheduled and before the step ran leaves no block that is "
            "published or shared and not written: it waits for the step, or its blocks' hashes are evicted "
            "first",
        ),
        Statement(
            "progress",
            "the first in line, by arrival or by priority, finishes if it alone fits the pool: room is made "
            "for it, each step leaves less of it to do, an empty pool admits it, and loads that wait leave "
            "one another what they need",
            "the victim is the last in line; a step that reaches the last token samples one; nothing is "
            "reserved but by loads, and a load reserves what earlier requests lack for their prompts; for "
            "windows: no load while the first runs, lookahead counted as in flight",
        ),
        Statement(
            "usage",
            "usage = 1 - free/(total - 1) = share held by live requests, in [0, 1]; cached idle blocks do "
            "not raise it",
        ),
    )
}
"""Every statement by its name, in the order of the lesson."""


def _refusal(s: State, r: Int, ask: Ask, o: Outcome, row: Int, i: Int) -> Part:
    t, q = o.state, s.engine.owner(row)
    kept = implies(i >= t.first(row), t.table(row, i) == s.table(row, i))
    gone = out_of_sight(s.engine, s.engine.group(row), t.first(row), settled_at(s, r, o))
    window = either(t.first(row) == s.first(row), both(q == r, gone))
    same = both(
        t.length(row) == s.length(row),
        t.num_cached(row) == s.num_cached(row),
        t.computed(q) == s.computed(q),
        t.in_flight(q) == s.in_flight(q),
        t.status(q) == s.status(q),
        t.num_tokens(q) == s.num_tokens(q),
    )
    return Part(both(negate(o.granted), row >= 0), both(same, kept, window))


def _refused_pool(s: State, r: Int, ask: Ask, o: Outcome, b: Int, g: Int) -> Part:
    t = o.state
    unreleased = every_row(s, r, lambda row: t.first(row) == s.first(row))
    queue = both(t.num_free == s.num_free, t.rank(b) == s.rank(b), t.ref_cnt(b) == s.ref_cnt(b))
    same = both(
        t.num_free >= s.num_free,
        t.ref_cnt(b) <= s.ref_cnt(b),
        implies(s.is_free(b), t.is_free(b)),
        implies(unreleased, queue),
        t.block_hash(b) == s.block_hash(b),
        t.stamp(b) == s.stamp(b),
        t.clock == s.clock,
        t.num_to_zero(g) == s.num_to_zero(g),
        t.to_zero(g, b) == s.to_zero(g, b),
    )
    return Part(both(negate(o.granted), is_group(s, g)), same)


def _at_once(s: State, r: Int, ask: Ask, o: Outcome, b: Int) -> Part:
    a, t = o.answer, o.state
    assert a is not None
    queue = both(t.num_free == s.num_free, t.rank(b) == s.rank(b), t.ref_cnt(b) == s.ref_cnt(b))
    same = every_row(s, r, lambda row: t.first(row) == s.first(row))
    return Part(negate(a.fits), both(negate(o.granted), same, queue))


def _reset_refused(s: State, r: Int, o: Outcome, b: Int) -> Part:
    t = o.state
    same = both(t.block_hash(b) == s.block_hash(b), t.stamp(b) == s.stamp(b), t.rank(b) == s.rank(b))
    return Part(negate(o.granted), both(s.num_held > 0, same))


def _exact(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    return Part(o.granted, a.released.num_free - o.state.num_free == a.need)


def _enough(s: State, r: Int, ask: Ask, o: Outcome, g: Int) -> Part:
    assert o.answer is not None
    row, most = s.engine.row(r, g), s.engine.blocks(s.engine.max_model_len, g)
    length = o.state.length(row)
    return Part(
        both(o.granted, is_group(s, g)),
        both(length >= slots_asked(s, row, ask, o.answer.total), length <= maximum(s.length(row), most)),
    )


def _boundary(s: State, r: Int, ask: Ask, o: Outcome, g: Int) -> Part:
    row = s.engine.row(r, g)
    decode = both(s.status(r) == RUNNING, ask.new == 1, ask.lookahead == 0, is_group(s, g))
    full = s.computed(r) == s.engine.tokens(s.length(row), g)
    taken = o.state.length(row) - s.length(row)
    return Part(both(decode, o.granted), taken == ite(full, 1, 0))


def _idle_hits(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None

    def cost(row: Int) -> Int:
        new = maximum(0, slots_asked(s, row, ask, a.total) - covered(s, row, ask, a.total))
        return new + idle_hits(a.released, row, ask, a.total)

    return Part(o.granted, a.released.num_free - o.state.num_free == sum_of_rows(s, r, cost))


def _entries(s: State, r: Int, ask: Ask, o: Outcome, g: Int) -> Part:
    assert o.answer is not None
    row, total = s.engine.row(r, g), o.answer.total
    entries = maximum(slots_asked(s, row, ask, total), covered(s, row, ask, total))
    return Part(both(o.granted, is_group(s, g)), o.state.length(row) == entries)


def _front(s: State, r: Int, ask: Ask, o: Outcome, g: Int, j: Int) -> Part:
    assert o.answer is not None
    return _taken_in_order(s, r, o, g, j, o.answer.loaded, o.answer.committed)


def _front_external(s: State, r: Int, ask: Ask, o: Outcome, g: Int, j: Int) -> Part:
    assert o.answer is not None
    return _taken_in_order(s, r, o, g, j, o.answer.adopted, o.answer.loaded)


def _taken_in_order(s: State, r: Int, o: Outcome, g: Int, j: Int, before: State, after: State) -> Part:
    """What the groups took between two states of stage 3 is the queue's front, in the order of the groups."""

    def taken(row: Int) -> Int:
        return after.length(row) - before.length(row)

    row = s.engine.row(r, g)
    earlier = s.read.total(g, lambda h: taken(s.engine.row(r, h)))
    new = both(o.granted, is_group(s, g), within(0, j, taken(row)))
    return Part(new, o.state.table(row, before.length(row) + j) == before.at(earlier + j))


def _written(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    a = o.answer
    assert a is not None
    row = s.engine.row(r, g)
    written = within(s.engine.full_blocks(a.total, g), i, o.state.length(row))
    return Part(
        both(o.granted, ask.new > 0, is_group(s, g), written),
        both(o.state.is_live(row, i), a.committed.is_private(o.state.table(row, i))),
    )


def _load_is_unpublished(s: State, r: Int, ask: Ask, o: Outcome, b: Int) -> Part:
    t = o.state
    same = either(t.block_hash(b) == s.block_hash(b), negate(t.is_hashed(b)))
    return Part(both(o.granted, ask.delay_cache), same)


def _handed_out(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    a = o.answer
    assert a is not None
    new = both(o.granted, is_group(s, g), within(a.new_low(g), i, a.new_high(g)))
    return Part(new, o.state.is_block(o.state.table(s.engine.row(r, g), i)))


def _tail_first(s: State, r: Int, o: Outcome, g: Int, i: Int, j: Int) -> Part:
    t, row = o.state, s.engine.row(r, g)
    head, tail = s.table(row, i), s.table(row, j)
    live = both(is_group(s, g), s.first(row) <= i, i < j, j < s.length(row))
    alike = iff(s.is_hashed(head), s.is_hashed(tail))
    return Part(both(live, t.is_free(head), t.is_free(tail), alike), t.rank(tail) < t.rank(head))


def _freed_place(s: State, r: Int, o: Outcome, g: Int, i: Int, c: Int) -> Part:
    t, row = o.state, s.engine.row(r, g)
    b = s.table(row, i)
    place = ite(s.is_hashed(b), t.rank(b) > t.rank(c), t.rank(b) < t.rank(c))
    live = both(is_group(s, g), s.is_live(row, i))
    return Part(both(live, t.is_free(b), s.is_free(c)), both(t.is_free(c), place))


def _usage(s: State) -> Part:
    return Part(True, within(0, s.num_held, s.engine.num_blocks))


def _held_by_request(s: State, b: Int) -> Part:
    r, i = s.holder_row(b, 0), s.holder_index(b, 0)
    return Part(both(s.is_block(b), s.held_rank(b) >= 0), both(r >= 0, s.is_live(r, i), s.table(r, i) == b))


def _key_of_one_group(s: State, b: Int, c: Int) -> Part:
    alike = both(s.is_hashed(b), s.block_hash(b) == s.block_hash(c))
    return Part(alike, s.engine.group(s.writer_row(b)) == s.engine.group(s.writer_row(c)))


def _same_group(s: State, row: Int, i: Int, other: Int, j: Int) -> Part:
    engine = s.engine
    shared = both(s.is_live(row, i), s.is_live(other, j), s.table(row, i) == s.table(other, j))
    return Part(both(row >= 0, other >= 0, shared), engine.group(row) == engine.group(other))


def _idle_is_not_used(s: State, b: Int) -> Part:
    return Part(both(s.is_block(b), s.ref_cnt(b) == 0), both(s.is_free(b), s.held_rank(b) < 0))


def _no_null_entry(s: State, r: Int, i: Int) -> Part:
    return Part(both(r >= 0, s.is_live(r, i)), s.table(r, i) != NULL_BLOCK)


def _final_tokens(s: State, b: Int) -> Part:
    return Part(s.is_hashed(b), end_of(s, b) <= s.num_tokens(s.writer(b)))


def _same_tokens(s: State, b: Int, c: Int) -> Part:
    read, i, end = s.read, s.writer_index(b), end_of(s, b)
    spans = read.span(s.writer(b), 0, end) == read.span(s.writer(c), 0, end)
    return Part(both(s.is_hashed(b), s.block_hash(b) == s.block_hash(c)), both(s.writer_index(c) == i, spans))


def _is_hit(s: State, hits: Hits, g: Int, i: Int) -> Bool:
    return both(is_group(s, g), within(0, i, hits.num(g)), hits.at(g, i) != NULL_BLOCK)


def _hit_is_prefix(s: State, r: Int, hits: Hits, g: Int, i: Int) -> Part:
    read, b, end = s.read, hits.at(g, i), s.engine.tokens(i + 1, g)
    spans = read.span(s.writer(b), 0, end) == read.span(r, 0, end)
    return Part(_is_hit(s, hits, g, i), both(s.writer_index(b) == i, spans))


def _hit_is_proper(s: State, r: Int, hits: Hits) -> Part:
    return Part(hits.tokens > 0, hits.tokens < s.num_tokens(r))


def _hit_spans_window(s: State, r: Int, hits: Hits, g: Int, i: Int) -> Part:
    seen = negate(out_of_sight(s.engine, g, i + 1, hits.tokens))
    return Part(both(is_group(s, g), within(0, i, hits.num(g)), seen), hits.at(g, i) != NULL_BLOCK)


def _hit_is_common(s: State, r: Int, hits: Hits, g: Int) -> Part:
    whole = s.engine.tokens(hits.num(g), g) == hits.tokens
    return Part(is_group(s, g), both(whole, s.engine.align_up(hits.tokens) == hits.tokens))


def _hit_drops_a_block(s: State, r: Int, hits: Hits, g: Int) -> Part:
    key = block_key(s.engine, s.engine.row(r, g), hits.num(g))
    found = s.block_hash(s.read.earliest(s, key)) == key
    return Part(both(is_group(s, g), s.engine.groups.drops(g), hits.tokens > 0), found)


def _kept_for_a_resend(s: State, r: Int, g: Int, i: Int) -> Part:
    engine, row = s.engine, s.engine.row(r, g)
    if engine.retention_interval is DENSE:
        return Part(False, True)
    place = engine.align_down(sliding_window.sent_again(s, r))
    end = engine.full_blocks(place, g)
    needed = within(hit_start(engine, g, end), i, end + sliding_window.behind(engine, g))
    windows = both(
        is_group(s, g), engine.groups.kind(g) == SLIDING_WINDOW, engine.retention_interval != DENSE
    )
    dense = sliding_window.is_before_each(engine, g, i, engine.scheduler_block_size)
    return Part(both(r >= 0, s.prompt(r) > 0, windows, place > 0, needed, dense), keeps(s, row, i))


def _longer_prompt(s: State, r: Int) -> Part:
    engine, whole = s.engine, s.prompt(r)
    if engine.retention_interval is DENSE:
        return Part(False, True)
    inside = engine.align_down(whole) != whole
    return Part(both(r >= 0, whole > 0, inside), engine.align_down(whole - 1) == engine.align_down(whole))


def _hit_is_of_its_group(s: State, r: Int, hits: Hits, g: Int, i: Int) -> Part:
    return Part(_is_hit(s, hits, g, i), s.engine.group(s.writer_row(hits.at(g, i))) == g)


def _isolated(s: State, row: Int, i: Int, other: Int, j: Int) -> Part:
    read, r, q = s.read, s.engine.owner(row), s.engine.owner(other)
    shared = both(s.is_live(row, i), s.is_live(other, j), s.table(row, i) == s.table(other, j))
    apart = both(read.salt(r) == read.salt(q), read.lora(r) == read.lora(q))
    return Part(both(row >= 0, other >= 0, shared), apart)


def _hit_is_written(s: State, r: Int, hits: Hits, g: Int, i: Int) -> Part:
    b = hits.at(g, i)
    return Part(_is_hit(s, hits, g, i), either(is_written(s, b), arrives(s, b)))


def _step_reads(s: State, o: Outcome, row: Int, i: Int) -> Part:
    t, r, g = o.state, s.engine.owner(row), s.engine.group(row)
    end = minimum(t.engine.tokens(i + 1, g), t.computed(r))
    runs = both(row >= 0, t.status(r) == RUNNING)
    read = both(runs, t.is_live(row, i), t.engine.tokens(i, g) < t.computed(r))
    return Part(read, both(t.unwritten(r) == 0, t.written(t.table(row, i)) >= end))


def _dropped(s: State, r: Int, o: Outcome, g: Int, i: Int) -> Part:
    t, row = o.state, s.engine.row(r, g)
    b = s.table(row, i)
    found = either(t.is_hashed(b), t.ref_cnt(b) > 0)
    return Part(
        both(is_group(s, g), s.is_live(row, i), is_missed(s, row, i)),
        both(found, negate(is_written(t, b)), negate(arrives(t, b))),
    )


def _adopts_before_popping(s: State, r: Int, ask: Ask, o: Outcome, g: Int, i: Int) -> Part:
    assert o.answer is not None
    row = s.engine.row(r, g)
    adopted = both(o.granted, _is_hit(s, ask.hits, g, i), o.state.is_live(row, i))
    b = o.state.table(row, i)
    kept = both(b == ask.hits.at(g, i), o.state.block_hash(b) == s.block_hash(b))
    return Part(adopted, kept)


def _evicted(s: State, r: Int, o: Outcome, q: Int, i: Int) -> Part:
    t, b = o.state, s.table(q, i)
    unwritten = both(q >= 0, s.is_live(q, i), s.writer_row(b) == q, negate(is_written(s, b)))
    evicted = both(s.is_hashed(b), negate(t.is_hashed(b)), s.ref_cnt(b) == 1)
    return Part(both(unwritten, evicted, t.is_live(q, i)), negate(is_missed(t, q, i)))


CHECKS = (
    *ADMISSION,
    *PROGRESS,
    check("stage 2", "allocate", "refusal-leaves-no-trace", "requests-unchanged", "row index", _refusal),
    check("stage 2", "allocate", "refusal-leaves-no-trace", "pool-unchanged", "block group", _refused_pool),
    check("stage 0", "allocate", "refusal-leaves-no-trace", "stage-0-is-no-trace", "block", _at_once),
    check("pool", "other", "refusal-leaves-no-trace", "refused-reset-keeps-hashes", "block", _reset_refused),
    check("stage 2", "allocate", "exact-count", "count-is-exact", "", _exact),
    check("stage 3", "allocate", "enough-slots", "slots-are-there", "group", _enough),
    check("stage 2", "allocate", "boundary-only", "one-block-a-boundary", "group", _boundary),
    check("stage 2", "allocate", "idle-hits-cost", "idle-hits-are-counted", "", _idle_hits),
    check("stage 3", "allocate", "idle-hits-cost", "entries-are-counted", "group", _entries),
    check("stage 3", "allocate", "queue-order", "new-from-the-front", "group position", _front),
    check("stage 3", "allocate", "queue-order", "external-from-the-front", "group position", _front_external),
    check("stage 3", "allocate", "two-phase", "adopted-hits-are-kept", "group index", _adopts_before_popping),
    check("stage 3", "allocate", "no-aliased-write", "written-blocks-are-private", "group index", _written),
    check("stage 4", "allocate", "no-aliased-write", "load-is-unpublished", "block", _load_is_unpublished),
    check("stage 3", "allocate", "null-block", "new-blocks-are-blocks", "group index", _handed_out),
    check("pool", "leave", "queue-order", "tail-before-head", "group index index", _tail_first),
    check("pool", "leave", "queue-order", "freed-blocks-take-their-place", "group index block", _freed_place),
    check("pool", "state", "usage", "within-the-pool", "", _usage),
    check("pool", "state", "usage", "held-by-a-request", "block", _held_by_request),
    check("pool", "state", "usage", "idle-is-not-used", "block", _idle_is_not_used),
    check("pool", "state", "null-block", "no-null-entry", "row index", _no_null_entry),
    check("stage 4", "state", "drafts-never-hashed", "reach-is-final", "block", _final_tokens),
    check("keys", "state", "hash-soundness", "one-key-one-content", "block block", _same_tokens),
    check("pool", "state", "one-group", "key-is-of-one-group", "block block", _key_of_one_group),
    check("pool", "state", "one-group", "holders-are-of-one-group", "row index row index", _same_group),
    check("lookup", "lookup", "one-group", "hit-is-of-its-group", "group index", _hit_is_of_its_group),
    check("lookup", "lookup", "consistent-hit", "hit-is-common", "group", _hit_is_common),
    check("lookup", "lookup", "consistent-hit", "hit-serves-each-group", "group index", _hit_spans_window),
    check("lookup", "lookup", "consistent-hit", "hit-drops-a-block", "group", _hit_drops_a_block),
    check(
        "stage 4",
        "state",
        "mask-serves-replay",
        "kept-for-a-resend",
        "request group index",
        _kept_for_a_resend,
    ),
    check("stage 4", "state", "mask-serves-replay", "longer-prompt-loses-nothing", "request", _longer_prompt),
    check("lookup", "lookup", "hash-soundness", "hit-is-a-prefix", "group index", _hit_is_prefix),
    check("lookup", "lookup", "hash-soundness", "hit-is-proper", "", _hit_is_proper),
    check("lookup", "lookup", "window-kept", "hit-spans-the-window", "group index", _hit_spans_window),
    check(
        "worker",
        "lookup",
        "published-is-written",
        "hit-is-written",
        "group index",
        _hit_is_written,
        care=True,
    ),
    check(
        "worker",
        "execute",
        "published-is-written",
        "step-reads-what-is-written",
        "row index",
        _step_reads,
        care=True,
    ),
    check("worker", "other", "published-is-written", "evicted-is-not-missed", "row index", _evicted),
    check(
        "worker", "leave", "published-is-written", "dropped-blocks-stay-unwritten", "group index", _dropped
    ),
    check("keys", "state", "salt-isolation", "salts-are-apart", "row index row index", _isolated),
)
"""Every check."""
