"""The block pool: the free queue, references, and the prefix cache's hashes (vLLM's `BlockPool`).

Each step says with `require` what it needs so that it cannot fail. `r` is a row of the block tables.
"""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Function, Int, both, either, iff, ite, negate, within
from slotproof.model.language.behaviours import (
    APPENDS_FULL,
    APPENDS_UNCACHED,
    APPENDS_WINDOW,
    WINDOW_NOT_ZEROED,
)
from slotproof.model.language.changes import (
    Change,
    Splice,
    entries,
    entries_below,
    entry,
    from_on,
    if_so,
    one,
    queued,
    these,
    whole,
)
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import FULL, SLIDING_WINDOW
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import ABSENT, HAND, NO_HASH, NULL_BLOCK, State


def take(s: State, r: Int, n: Int) -> State:
    """Stage 3: the first n blocks of the free queue go to the end of r's block table, hashes dropped."""
    rules = s.engine.rules
    s.read.require("take", s, both(r >= 0, n >= 0, n <= s.num_free))
    start = 0 if rules.new_from_front else s.num_free - n
    end, held = s.length(r), s.num_held
    front, new = queued(s, start, n), entries(r, end, end + n)
    taken = front.has
    left = Splice(
        s,
        at=lambda i: s.at(ite(i < start, i, i + n)),
        rank=lambda b: ite(taken(b), ABSENT, ite(s.rank(b) >= start + n, s.rank(b) - n, s.rank(b))),
        low=start,
        removed=n,
    )

    def nth(b: Int) -> Int:
        return s.rank(b) - start

    return s.replace(
        **left.fields,
        num_free=s.num_free - n,
        ref_cnt=Change(s.ref_cnt, front, 1),
        block_hash=Change(s.block_hash, front, NO_HASH) if rules.popping_evicts else s.block_hash,
        table=Change(s.table, new, lambda q, i: s.at(start + i - end)),
        length=Change(s.length, one(r), end + n),
        holder_row=lambda b, k: ite(taken(b), r, s.holder_row(b, k)),
        holder_index=lambda b, k: ite(taken(b), end + nth(b), s.holder_index(b, k)),
        slot=Change(s.slot, new, 0),
        held=lambda j: ite(within(held, j, held + n), s.at(start + j - held), s.held(j)),
        held_rank=lambda b: ite(taken(b), held + nth(b), s.held_rank(b)),
        writer_row=lambda b: ite(taken(b), r, s.writer_row(b)),
        writer_index=lambda b: ite(taken(b), end + nth(b), s.writer_index(b)),
        evicted_idle=lambda b: both(negate(taken(b)), s.evicted_idle(b)),
        written=lambda b: ite(taken(b), 0, s.written(b)),
    )


def touch(s: State, r: Int, b: Int) -> State:
    """Stage 3: a hit goes to the end of r's block table; an idle one leaves the free queue."""
    rules, read = s.engine.rules, s.read
    read.require("touch", s, both(s.is_block(b), iff(s.ref_cnt(b) == 0, s.is_free(b))))
    read.expect("hash-soundness", lambda: s.block_hash(b) == block_key(s.engine, r, s.length(r)))
    read.expect("no-aliased-write", lambda: s.num_cached(r) == s.length(r))
    idle = both(rules.touch_leaves_queue, s.ref_cnt(b) == 0)
    s = read.when(idle, lambda: _remove(s, b), s)
    k, end = s.ref_cnt(b), s.length(r)

    last = entry(r, end)

    def reference(c: Int, j: Int) -> Bool:
        return both(c == b, j == k)

    return s.replace(
        ref_cnt=Change(s.ref_cnt, one(b), k + 1) if rules.touch_references else s.ref_cnt,
        table=Change(s.table, last, b),
        length=Change(s.length, one(r), end + 1),
        num_cached=Change(s.num_cached, one(r), end + 1),
        holder_row=lambda c, j: ite(reference(c, j), r, s.holder_row(c, j)),
        holder_index=lambda c, j: ite(reference(c, j), end, s.holder_index(c, j)),
        slot=Change(s.slot, last, k),
    )


def release(s: State, r: Int, high: Int) -> State:
    """The live entries of r's table below `high` go into the hand, last first, null blocks in their place."""
    in_table = both(s.first(r) <= high, high <= s.length(r))
    s.read.require("release", s, both(r >= 0, in_table, s.length(HAND) == 0))
    low = s.first(r)

    def turned(i: Int) -> Int:
        return high - 1 - i if s.engine.rules.free_tail_first else i - low

    def source(j: Int) -> Int:
        return high - 1 - j if s.engine.rules.free_tail_first else low + j

    def moved(b: Int, k: Int) -> Bool:
        return both(s.holder_row(b, k) == r, within(low, s.holder_index(b, k), high))

    return s.replace(
        table=Change(
            Change(s.table, entries_below(r, high, low), NULL_BLOCK),
            whole(HAND, high - low),
            lambda q, i: s.table(r, source(i)),
        ),
        length=Change(s.length, one(HAND), high - low),
        first=Change(Change(s.first, one(r), high), one(HAND), 0),
        holder_row=lambda b, k: ite(moved(b, k), HAND, s.holder_row(b, k)),
        holder_index=lambda b, k: ite(moved(b, k), turned(s.holder_index(b, k)), s.holder_index(b, k)),
        slot=lambda q, i: ite(q == HAND, s.slot(r, source(i)), s.slot(q, i)),
        front=0,
    )


def free_blocks(s: State, g: Int) -> State:
    """The blocks in the hand, which were of group g, go back in order."""
    appends = _appends(s.engine, g)
    return clear_table(s.read.loop("free", 0, s.length(HAND), lambda t, k: put_back(t, k, appends), s), HAND)


def clear_table(s: State, r: Int) -> State:
    """A block table without live entries is emptied."""
    s.read.require("clear-table", s, both(r >= HAND, s.first(r) == s.length(r)))
    return s.replace(
        length=Change(s.length, one(r), 0),
        first=Change(s.first, one(r), 0),
        num_cached=Change(s.num_cached, one(r), 0),
    )


def pad(s: State, r: Int, n: Int) -> State:
    """Stage 3: r's empty block table starts with n null blocks, for tokens outside its window."""
    s.read.require("pad", s, both(r >= 0, n >= 0, s.length(r) == 0))
    return s.replace(
        length=Change(s.length, one(r), n),
        first=Change(s.first, one(r), n),
        num_cached=Change(s.num_cached, one(r), n),
        table=Change(s.table, entries_below(r, n), NULL_BLOCK),
    )


def put_back(s: State, k: Int, appends: bool = False) -> State:
    """One block loses a reference. With its last it joins the free queue: at the tail if it is hashed or all
    blocks are appended, else at the front, behind those that this call has put there already."""
    rules = s.engine.rules
    b = s.table(HAND, k)
    to_front = both(rules.unhashed_to_front, not appends, negate(s.is_hashed(b)))
    dropped = _unreference(s, HAND, k)
    passed = dropped.replace(first=Change(dropped.first, one(HAND), k + 1))

    def inserted() -> State:
        t = _insert(passed, b, ite(to_front, s.front, s.num_free))
        return t.replace(front=s.front + ite(to_front, 1, 0))

    unreferenced = either(passed.ref_cnt(b) == 0, not rules.free_unreferenced_only)
    return s.read.when(unreferenced, inserted, passed)


def _appends(engine: Engine, g: Int) -> bool:
    """Another release puts group g's freed blocks without a hash to the tail."""
    if not engine.behaviours:
        return False
    kind = APPENDS_FULL if engine.groups.kind(g) == FULL else APPENDS_WINDOW
    if engine.enable_caching is False and APPENDS_UNCACHED in engine.behaviours:
        return True
    return kind in engine.behaviours


def publish(s: State, r: Int, i: Int, is_reachable: Bool) -> State:
    """Stage 4: entry i of r's table, a full block, gets its hash if it is live and a hit could need it."""
    b, key = s.table(r, i), block_key(s.engine, r, i)
    live = both(s.is_live(r, i), is_reachable)
    read = s.read
    read.require("publish", s, either(negate(live), negate(s.is_hashed(b))))
    read.expect("no-aliased-write", lambda: both(i == s.num_cached(r), i < s.length(r)))
    final = s.num_tokens(s.engine.owner(r))
    read.expect("drafts-never-hashed", lambda: i + 1 <= s.engine.full_blocks(final, s.engine.group(r)))

    here = if_so(live, one(b))
    return s.replace(
        block_hash=Change(s.block_hash, here, key),
        stamp=Change(s.stamp, here, s.clock),
        clock=s.clock + 1,
        num_cached=Change(s.num_cached, one(r), i + 1),
    )


def evict_blocks(s: State, named: Function) -> State:
    """The named blocks (block -> truth value) lose their hashes and stay where they are."""
    return s.replace(
        block_hash=Change(s.block_hash, these(named), NO_HASH),
        evicted_idle=lambda b: either(s.evicted_idle(b), both(named(b), s.is_free(b), s.is_hashed(b))),
    )


def reset_prefix_cache(s: State) -> State:
    """Every hash is dropped, if no block is held; else nothing happens."""
    return s.read.when(s.num_held == 0, lambda: s.replace(block_hash=lambda b: NO_HASH), s)


def record_for_zeroing(s: State, r: Int, low: Int, high: Int) -> State:
    """Entries low .. high - 1 of r's table are listed for zeroing before the next forward pass."""
    of = s.engine.group(r)
    if WINDOW_NOT_ZEROED in s.engine.behaviours and s.engine.groups.kind(of) == SLIDING_WINDOW:
        return s
    end = s.num_to_zero(of)
    return s.replace(
        num_to_zero=Change(s.num_to_zero, one(of), end + high - low),
        to_zero=Change(s.to_zero, from_on(of, end, high - low), lambda g, j: s.table(r, low + j - end)),
    )


def _insert(s: State, b: Int, position: Int) -> State:
    """The block joins the free queue at a position."""
    last, hole = s.held(s.num_held - 1), s.held_rank(b)
    joined = Splice(
        s,
        at=lambda i: ite(i < position, s.at(i), ite(i == position, b, s.at(i - 1))),
        rank=lambda c: ite(c == b, position, ite(s.rank(c) >= position, s.rank(c) + 1, s.rank(c))),
        low=position,
        block=b,
    )
    return s.replace(
        **joined.fields,
        num_free=s.num_free + 1,
        held=lambda j: ite(j == hole, last, s.held(j)),
        held_rank=lambda c: ite(c == b, ABSENT, ite(c == last, hole, s.held_rank(c))),
        evicted_idle=lambda c: both(c != b, s.evicted_idle(c)),
    )


def _remove(s: State, b: Int) -> State:
    """The block leaves the free queue, wherever it is."""
    position, held = s.rank(b), s.num_held
    left = Splice(
        s,
        at=lambda i: ite(i < position, s.at(i), s.at(i + 1)),
        rank=lambda c: ite(c == b, ABSENT, ite(s.rank(c) > position, s.rank(c) - 1, s.rank(c))),
        low=position,
        removed=1,
    )
    return s.replace(
        **left.fields,
        num_free=s.num_free - 1,
        held=lambda j: ite(j == held, b, s.held(j)),
        held_rank=lambda c: ite(c == b, held, s.held_rank(c)),
    )


def _unreference(s: State, r: Int, i: Int) -> State:
    """A live entry lets go of its block; the block's last reference moves into its place."""
    b, k = s.table(r, i), s.slot(r, i)
    s.read.require("free", s, s.ref_cnt(b) > 0)
    last = s.ref_cnt(b) - 1
    last_request, last_index = s.holder_row(b, last), s.holder_index(b, last)

    def hole(c: Int, j: Int) -> Bool:
        return both(c == b, j == k)

    return s.replace(
        ref_cnt=Change(s.ref_cnt, one(b), last),
        holder_row=lambda c, j: ite(hole(c, j), last_request, s.holder_row(c, j)),
        holder_index=lambda c, j: ite(hole(c, j), last_index, s.holder_index(c, j)),
        slot=lambda q, x: ite(both(q == last_request, x == last_index), k, s.slot(q, x)),
    )
