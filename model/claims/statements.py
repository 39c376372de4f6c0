"""The statements: what is promised of every pool, batch and sequence of calls within the contract.

A statement is made of invariants (`invariants.py`), of what no step may fail on (`Reading.require`,
statement *no-rollback*), of what steps rely on (`Reading.expect`), and of the checks below, each about one
state or one call. The same text is proved for every size and evaluated on every call of a campaign.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.model.claims.admission import ADMISSION
from slotproof.model.claims.check import Part, check, covered, idle_hits, settled_at, slots_asked
from slotproof.model.claims.invariants import out_of_sight
from slotproof.model.claims.progress import PROGRESS
from slotproof.model.language.algebra import (
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
from slotproof.model.language.state import NULL_BLOCK, RUNNING, State
from slotproof.model.scheduling.caller import Outcome, is_missed
from slotproof.model.scheduling.worker import arrives, is_written
from slotproof.model.system.allocate_slots import Ask
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


def _refusal(s: State, r: Int, ask: Ask, o: Outcome, q: Int, i: Int) -> Part:
    t = o.state
    other = implies(q != r, t.first(q) == s.first(q))
    kept = implies(i >= t.first(q), t.table(q, i) == s.table(q, i))
    gone = out_of_sight(s.engine, t.first(r), settled_at(s, r, o))
    window = either(t.first(r) == s.first(r), gone)
    same = both(
        t.length(q) == s.length(q),
        t.num_cached(q) == s.num_cached(q),
        t.computed(q) == s.computed(q),
        t.in_flight(q) == s.in_flight(q),
        t.status(q) == s.status(q),
        t.num_tokens(q) == s.num_tokens(q),
    )
    return Part(both(negate(o.granted), q >= 0), both(same, other, kept, window))


def _refused_pool(s: State, r: Int, ask: Ask, o: Outcome, b: Int) -> Part:
    t = o.state
    unreleased = t.first(r) == s.first(r)
    queue = both(t.num_free == s.num_free, t.rank(b) == s.rank(b), t.ref_cnt(b) == s.ref_cnt(b))
    same = both(
        t.num_free >= s.num_free,
        t.ref_cnt(b) <= s.ref_cnt(b),
        implies(s.is_free(b), t.is_free(b)),
        implies(unreleased, queue),
        t.block_hash(b) == s.block_hash(b),
        t.stamp(b) == s.stamp(b),
        t.clock == s.clock,
        t.num_to_zero == s.num_to_zero,
        t.to_zero(b) == s.to_zero(b),
    )
    return Part(negate(o.granted), same)


def _at_once(s: State, r: Int, ask: Ask, o: Outcome, b: Int) -> Part:
    a, t = o.answer, o.state
    assert a is not None
    queue = both(t.num_free == s.num_free, t.rank(b) == s.rank(b), t.ref_cnt(b) == s.ref_cnt(b))
    return Part(negate(a.fits), both(negate(o.granted), t.first(r) == s.first(r), queue))


def _reset_refused(s: State, r: Int, o: Outcome, b: Int) -> Part:
    t = o.state
    same = both(t.block_hash(b) == s.block_hash(b), t.stamp(b) == s.stamp(b), t.rank(b) == s.rank(b))
    return Part(negate(o.granted), both(s.num_held > 0, same))


def _exact(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    return Part(o.granted, a.released.num_free - o.state.num_free == a.need)


def _enough(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    assert o.answer is not None
    length = o.state.length(r)
    return Part(
        o.granted,
        both(
            length >= slots_asked(s, ask, o.answer.total),
            length <= maximum(s.length(r), s.engine.blocks(s.engine.max_model_len)),
        ),
    )


def _boundary(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    decode = both(s.status(r) == RUNNING, ask.new == 1, ask.lookahead == 0)
    full = s.computed(r) == s.engine.tokens(s.length(r))
    taken = o.state.length(r) - s.length(r)
    return Part(both(decode, o.granted), taken == ite(full, 1, 0))


def _idle_hits(s: State, r: Int, ask: Ask, o: Outcome) -> Part:
    a = o.answer
    assert a is not None
    idle = idle_hits(a.released, r, ask, a.total)
    before = covered(s, r, ask, a.total)
    new = maximum(0, slots_asked(s, ask, a.total) - before)
    return Part(
        o.granted,
        both(o.state.length(r) == before + new, a.released.num_free - o.state.num_free == new + idle),
    )


def _front(s: State, r: Int, ask: Ask, o: Outcome, j: Int) -> Part:
    a = o.answer
    assert a is not None
    before = covered(s, r, ask, a.total)
    new = both(o.granted, within(0, j, o.state.length(r) - before))
    return Part(new, o.state.table(r, before + j) == a.adopted.at(j))


def _written(s: State, r: Int, ask: Ask, o: Outcome, i: Int) -> Part:
    a = o.answer
    assert a is not None
    written = within(s.engine.full_blocks(a.total), i, o.state.length(r))
    return Part(
        both(o.granted, ask.new > 0, written),
        both(o.state.is_live(r, i), a.committed.is_private(o.state.table(r, i))),
    )


def _load_is_unpublished(s: State, r: Int, ask: Ask, o: Outcome, b: Int) -> Part:
    t = o.state
    same = either(t.block_hash(b) == s.block_hash(b), negate(t.is_hashed(b)))
    return Part(both(o.granted, ask.delay_cache), same)


def _handed_out(s: State, r: Int, ask: Ask, o: Outcome, i: Int) -> Part:
    a = o.answer
    assert a is not None
    return Part(both(o.granted, within(a.new_low, i, a.new_high)), o.state.is_block(o.state.table(r, i)))


def _tail_first(s: State, r: Int, o: Outcome, i: Int, j: Int) -> Part:
    t = o.state
    head, tail = s.table(r, i), s.table(r, j)
    live = both(s.first(r) <= i, i < j, j < s.length(r))
    alike = iff(s.is_hashed(head), s.is_hashed(tail))
    return Part(both(live, t.is_free(head), t.is_free(tail), alike), t.rank(tail) < t.rank(head))


def _freed_place(s: State, r: Int, o: Outcome, i: Int, c: Int) -> Part:
    t = o.state
    b = s.table(r, i)
    place = ite(s.is_hashed(b), t.rank(b) > t.rank(c), t.rank(b) < t.rank(c))
    return Part(both(s.is_live(r, i), t.is_free(b), s.is_free(c)), both(t.is_free(c), place))


def _usage(s: State) -> Part:
    return Part(True, within(0, s.num_held, s.engine.num_blocks))


def _held_by_request(s: State, b: Int) -> Part:
    r, i = s.holder_request(b, 0), s.holder_index(b, 0)
    return Part(both(s.is_block(b), s.held_rank(b) >= 0), both(r >= 0, s.is_live(r, i), s.table(r, i) == b))


def _idle_is_not_used(s: State, b: Int) -> Part:
    return Part(both(s.is_block(b), s.ref_cnt(b) == 0), both(s.is_free(b), s.held_rank(b) < 0))


def _no_null_entry(s: State, r: Int, i: Int) -> Part:
    return Part(both(r >= 0, s.is_live(r, i)), s.table(r, i) != NULL_BLOCK)


def _final_tokens(s: State, b: Int) -> Part:
    reach = s.engine.tokens(s.writer_index(b) + 1)
    return Part(s.is_hashed(b), reach <= s.num_tokens(s.writer_request(b)))


def _same_tokens(s: State, b: Int, c: Int) -> Part:
    read, i = s.read, s.writer_index(b)
    end = s.engine.tokens(i + 1)
    spans = read.span(s.writer_request(b), 0, end) == read.span(s.writer_request(c), 0, end)
    return Part(both(s.is_hashed(b), s.block_hash(b) == s.block_hash(c)), both(s.writer_index(c) == i, spans))


def _hit_is_prefix(s: State, r: Int, hits: Hits, i: Int) -> Part:
    read, b, end = s.read, hits.at(i), s.engine.tokens(i + 1)
    spans = read.span(s.writer_request(b), 0, end) == read.span(r, 0, end)
    return Part(both(within(0, i, hits.num), b != NULL_BLOCK), both(s.writer_index(b) == i, spans))


def _hit_is_proper(s: State, r: Int, hits: Hits) -> Part:
    return Part(hits.num > 0, s.engine.tokens(hits.num) < s.num_tokens(r))


def _hit_spans_window(s: State, r: Int, hits: Hits, i: Int) -> Part:
    seen = negate(out_of_sight(s.engine, i + 1, s.engine.tokens(hits.num)))
    return Part(both(within(0, i, hits.num), seen), hits.at(i) != NULL_BLOCK)


def _isolated(s: State, r: Int, i: Int, q: Int, j: Int) -> Part:
    read = s.read
    shared = both(r >= 0, q >= 0, s.is_live(r, i), s.is_live(q, j), s.table(r, i) == s.table(q, j))
    return Part(shared, both(read.salt(r) == read.salt(q), read.lora(r) == read.lora(q)))


def _hit_is_written(s: State, r: Int, hits: Hits, i: Int) -> Part:
    return Part(
        both(within(0, i, hits.num), hits.at(i) != NULL_BLOCK),
        either(is_written(s, hits.at(i)), arrives(s, hits.at(i))),
    )


def _step_reads(s: State, o: Outcome, r: Int, i: Int) -> Part:
    t = o.state
    end = minimum(t.engine.tokens(i + 1), t.computed(r))
    read = both(r >= 0, t.status(r) == RUNNING, t.is_live(r, i), t.engine.tokens(i) < t.computed(r))
    return Part(read, both(t.unwritten(r) == 0, t.written(t.table(r, i)) >= end))


def _dropped(s: State, r: Int, o: Outcome, i: Int) -> Part:
    t, b = o.state, s.table(r, i)
    found = either(t.is_hashed(b), t.ref_cnt(b) > 0)
    return Part(
        both(s.is_live(r, i), is_missed(s, r, i)),
        both(found, negate(is_written(t, b)), negate(arrives(t, b))),
    )


def _evicted(s: State, r: Int, o: Outcome, q: Int, i: Int) -> Part:
    t, b = o.state, s.table(q, i)
    unwritten = both(q >= 0, s.is_live(q, i), s.writer_request(b) == q, negate(is_written(s, b)))
    evicted = both(s.is_hashed(b), negate(t.is_hashed(b)), s.ref_cnt(b) == 1)
    return Part(both(unwritten, evicted, t.is_live(q, i)), negate(is_missed(t, q, i)))


CHECKS = (
    *ADMISSION,
    *PROGRESS,
    check("stage 2", "allocate", "refusal-leaves-no-trace", "requests-unchanged", "request index", _refusal),
    check("stage 2", "allocate", "refusal-leaves-no-trace", "pool-unchanged", "block", _refused_pool),
    check("stage 0", "allocate", "refusal-leaves-no-trace", "stage-0-is-no-trace", "block", _at_once),
    check("pool", "other", "refusal-leaves-no-trace", "refused-reset-keeps-hashes", "block", _reset_refused),
    check("stage 2", "allocate", "exact-count", "count-is-exact", "", _exact),
    check("stage 3", "allocate", "enough-slots", "slots-are-there", "", _enough),
    check("stage 2", "allocate", "boundary-only", "one-block-a-boundary", "", _boundary),
    check("stage 2", "allocate", "idle-hits-cost", "idle-hits-are-counted", "", _idle_hits),
    check("stage 3", "allocate", "queue-order", "new-from-the-front", "position", _front),
    check("stage 3", "allocate", "no-aliased-write", "written-blocks-are-private", "index", _written),
    check("stage 4", "allocate", "no-aliased-write", "load-is-unpublished", "block", _load_is_unpublished),
    check("stage 3", "allocate", "null-block", "new-blocks-are-blocks", "index", _handed_out),
    check("pool", "leave", "queue-order", "tail-before-head", "index index", _tail_first),
    check("pool", "leave", "queue-order", "freed-blocks-take-their-place", "index block", _freed_place),
    check("pool", "state", "usage", "within-the-pool", "", _usage),
    check("pool", "state", "usage", "held-by-a-request", "block", _held_by_request),
    check("pool", "state", "usage", "idle-is-not-used", "block", _idle_is_not_used),
    check("pool", "state", "null-block", "no-null-entry", "request index", _no_null_entry),
    check("stage 4", "state", "drafts-never-hashed", "reach-is-final", "block", _final_tokens),
    check("keys", "state", "hash-soundness", "one-key-one-content", "block block", _same_tokens),
    check("lookup", "lookup", "hash-soundness", "hit-is-a-prefix", "index", _hit_is_prefix),
    check("lookup", "lookup", "hash-soundness", "hit-is-proper", "", _hit_is_proper),
    check("lookup", "lookup", "window-kept", "hit-spans-the-window", "index", _hit_spans_window),
    check("worker", "lookup", "published-is-written", "hit-is-written", "index", _hit_is_written, care=True),
    check(
        "worker",
        "execute",
        "published-is-written",
        "step-reads-what-is-written",
        "request index",
        _step_reads,
        care=True,
    ),
    check("worker", "other", "published-is-written", "evicted-is-not-missed", "request index", _evicted),
    check("worker", "leave", "published-is-written", "dropped-blocks-stay-unwritten", "index", _dropped),
    check("keys", "state", "salt-isolation", "salts-are-apart", "request index request index", _isolated),
)
"""Every check."""
