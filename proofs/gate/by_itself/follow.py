"""Sequences that follow an implementation's own answers, held against the statements alone.

Each call is drawn for the state that the implementation shows and the ledger that its answers make: the model
is asked what a caller may do next, never what the answer should have been.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec

from slotproof.impl.ledger import IllegalCall, Ledger, Status
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    Finish,
    Preempt,
    RemoveSkipped,
    Result,
    Snapshot,
)
from slotproof.model.language.algebra import Function
from slotproof.model.language.state import ABSENT, LOADING, NO_HASH, PREEMPTED, RUNNING, UNKNOWN, WAITING
from slotproof.model.running import Running, Text
from slotproof.proofs.campaign.calls import call_name, decode, model_config
from slotproof.proofs.campaign.fit import fit_call
from slotproof.proofs.gate.by_itself.consistency import Consistency, Made
from slotproof.proofs.gate.compare import Difference, difference
from slotproof.proofs.gate.isolation import Fault, Isolated, Kind, Reply
from slotproof.proofs.traces.trace import Step

_STATUS = {
    Status.WAITING: WAITING,
    Status.LOADING: LOADING,
    Status.RUNNING: RUNNING,
    Status.PREEMPTED: PREEMPTED,
}


class Followed(msgspec.Struct, frozen=True):
    """A sequence that was made, and what was wrong with its end, if anything."""

    initial: Snapshot
    steps: list[Step]
    differences: list[Difference]
    rows: Counter[str]
    fault: Kind | None = None
    traceback: str = ""


Next = Callable[[Running], Call | None]
"""The next call in the present state, None to leave this one out; raises StopIteration at the end."""


def numbers_to_calls(numbers: list[int], lacks: frozenset[str]) -> Next:
    """The calls that numbers stand for; 0 makes none."""
    left = iter(numbers)

    def next_call(running: Running) -> Call | None:
        number = next(left)
        return None if number == 0 else fit_call(safe(decode(running, number), running), lacks)

    return next_call


def given_calls(calls: list[Call]) -> Next:
    """These calls; those that the contract forbids, whatever a lookup finds, are left out."""
    left = iter(calls)

    def next_call(running: Running) -> Call | None:
        call = next(left)
        return call if safe(call, running) == call else None

    return next_call


def safe(call: Call, running: Running) -> Call:
    """The call, legal whatever a lookup finds: it may leave one token to compute."""
    if not isinstance(call, Allocate) or call.skip_cache or not running.engine.enable_caching:
        return call
    s, r = running.state, call.request
    if s.status(r) == RUNNING or s.computed(r) > 0:
        return call
    size, tokens = running.engine.scheduler_block_size, s.num_tokens(r)
    room = tokens - (tokens - 1) // size * size
    if call.external:
        external = min(call.external, room - 1)
        if not external:
            return msgspec.structs.replace(call, skip_cache=True)
        new = 0 if call.delay_cache else min(call.new, room - external)
        return msgspec.structs.replace(call, external=external, new=new)
    return msgspec.structs.replace(call, new=min(call.new, room))


def follow(
    implementation: Isolated,
    config: Config,
    next_call: Next,
    limit: int,
    hidden: frozenset[str],
    agreed: Callable[[int], None] = lambda calls: None,
) -> Followed:
    """Drive a fresh allocator, `limit` calls at most, until something is wrong.

    `agreed` is told, call by call, how many calls were found right.
    """
    ledger, watch = Ledger(config), Consistency(config, hidden)
    running = Running(**model_config(config))
    steps: list[Step] = []
    rows: Counter[str] = Counter()
    reply = _one(implementation, config, [])
    if isinstance(reply, Fault):
        found = [difference("answer", "one", f"none: {reply.text}")]
        return Followed(Snapshot(), steps, found, rows, reply.kind, reply.traceback)
    initial = before = reply.state
    found = watch.state(initial)
    while not found and len(steps) < limit:
        _show(running, ledger, before, hidden)
        try:
            call = next_call(running)
        except StopIteration:
            break
        if call is None or not _is_legal(ledger, call):
            continue
        entry = ledger.entries.get(getattr(call, "request", -1))
        computed = entry.computed if entry else 0
        reply = _one(implementation, None, [call])
        if isinstance(reply, Fault):
            steps.append(Step(call, Result(), before))
            found = [difference("answer", "one", f"none: {reply.text}")]
            return Followed(initial, steps, found, rows, reply.kind, reply.traceback)
        steps.append(Step(call, reply.result, reply.state))
        entries = ledger.entries
        status = entry.status if entry else None
        found = _enter(ledger, call, reply.result)
        if not found:
            made = Made(call, reply.result, before, reply.state, entries, computed)
            found = watch.call(made)
        rows.update(_reached(call, reply.result, status, before, reply.state))
        before = reply.state
        if not found:
            agreed(len(steps))
    return Followed(initial, steps, found, rows)


def wrong_by_itself(
    config: Config, calls: list[Call], replies: list[Reply], hidden: frozenset[str]
) -> list[Difference]:
    """What the statements say of the last of these calls, by what an implementation answered and showed.

    Args:
        replies: the first is the fresh state, then one for each call.
    """
    ledger, watch = Ledger(config), Consistency(config, hidden)
    before = replies[0].state
    found = watch.state(before)
    for call, reply in zip(calls, replies[1:], strict=True):
        entry = ledger.entries.get(getattr(call, "request", -1))
        computed = entry.computed if entry else 0
        found = _enter(ledger, call, reply.result)
        if not found:
            found = watch.call(Made(call, reply.result, before, reply.state, ledger.entries, computed))
        before = reply.state
    return found


def _one(implementation: Isolated, config: Config | None, calls: list[Call]) -> Reply | Fault:
    with closing(implementation.run(config, calls)) as replies:
        return next(replies)


def _is_legal(ledger: Ledger, call: Call) -> bool:
    """The contract allows the call, whatever a lookup finds."""
    return not _refusal(copy.deepcopy(ledger), call, Result())


def _refusal(ledger: Ledger, call: Call, result: Result) -> str:
    """Enter a call and its answer into the ledger; why the contract forbids it, if it does."""
    try:
        if isinstance(call, AddRequest):
            ledger.enter(ledger.arrival(call))
        elif isinstance(call, Allocate):
            entry = ledger.entry(call)
            hit_tokens = len(result.hits) * ledger.config.block_size
            ledger.check_allocate(entry, call, hit_tokens)
            if result.granted:
                ledger.advance(entry, call, hit_tokens)
        elif isinstance(call, Complete):
            ledger.settle(call)
        elif isinstance(call, CacheBlocks):
            entry = ledger.entry(call)
            ledger.to_publish(entry, call)
            if call.tokens is None:
                ledger.loaded(entry)
        elif isinstance(call, RemoveSkipped):
            ledger.check_has_blocks(call, ledger.entry(call))
        elif isinstance(call, Preempt):
            ledger.preempted(ledger.running(call))
        elif isinstance(call, Finish):
            ledger.finished(ledger.entry(call))
    except IllegalCall as error:
        return str(error)
    return ""


def _enter(ledger: Ledger, call: Call, result: Result) -> list[Difference]:
    """What a legal call cannot answer: a hit that leaves nothing to compute."""
    refusal = _refusal(ledger, call, result)
    if not refusal:
        return []
    return [Difference("result.hits", "a hit that leaves a token to compute", refusal, "hash-soundness")]


ROWS = {
    "call: add_request": (),
    "call: complete": (),
    "call: preempt": (),
    "call: finish": (),
    "call: cache_blocks": ("delay_cache",),
    "call: remove_skipped": ("remove_skipped",),
    "call: evict_blocks": ("evict_blocks",),
    "call: reset_prefix_cache": ("reset_prefix_cache",),
    "call: take_new_block_ids": ("take_new_block_ids",),
    "granted: waiting": (),
    "granted: running": (),
    "granted: preempted": (),
    "refused": (),
    "a hit": ("prefix_caching",),
    "a block is shared": ("prefix_caching", "tables"),
    "a block is published": ("prefix_caching", "hashes"),
    "a window's entry is released": ("sliding_window", "tables"),
}
"""What a campaign must have seen, with the capabilities that each needs. An allocator that refuses everything
is consistent, and reaches none of it."""


def required_rows(lacks: frozenset[str]) -> list[str]:
    """The rows that can be reached without what is lacking."""
    return [row for row, needs in ROWS.items() if lacks.isdisjoint(needs)]


def _reached(
    call: Call, result: Result, status: Status | None, before: Snapshot, after: Snapshot
) -> Iterator[str]:
    if not isinstance(call, Allocate):
        yield f"call: {call_name(call)}"
    else:
        yield f"granted: {status.name.lower()}" if result.granted and status else "refused"
        if result.hits:
            yield "a hit"
    if any(n > 1 for n in Counter(b for t in after.tables.values() for b in t if b).values()):
        yield "a block is shared"
    if any(key is not None for key in after.hashes):
        yield "a block is published"
    if sum(t.count(0) for t in after.tables.values()) > sum(t.count(0) for t in before.tables.values()):
        yield "a window's entry is released"


def _show(running: Running, ledger: Ledger, s: Snapshot, hidden: frozenset[str]) -> None:
    """Give the model the state that the implementation shows, so that it can say what may be called next.

    Keys are none of the model's own: it finds no hit, and `safe` allows for those of the implementation.
    """
    entries = ledger.entries
    tables = s.tables if "tables" not in hidden else {}
    references = Counter(b for table in tables.values() for b in table if b)
    free = s.free_queue
    if "free_queue" in hidden:
        free = tuple(b for b in range(1, ledger.config.num_blocks) if not references[b])
    rank = {b: i for i, b in enumerate(free)}
    hashes = s.hashes if "hashes" not in hidden else ()
    hashed = {b for b, key in enumerate(hashes) if key is not None}
    texts = {r: Text(tuple(e.tokens), e.salt, e.lora) for r, e in entries.items()}
    running.read.texts = {**running.read.texts, **texts}

    def length(r: int) -> int:
        if "tables" in hidden and r in entries:
            return int(running.engine.blocks(entries[r].computed))
        return len(tables.get(r, ()))

    def first(r: int) -> int:
        return next((i for i, b in enumerate(tables.get(r, ())) if b), len(tables.get(r, ())))

    def of(field: str) -> Function:
        return lambda r: getattr(entries[r], field) if r in entries else 0

    running.take(
        running.state.replace(
            num_free=len(free),
            at=lambda i: free[i],
            rank=lambda b: rank.get(b, ABSENT),
            ref_cnt=lambda b: references[b],
            block_hash=lambda b: -1 - b if b in hashed else NO_HASH,
            table=lambda r, i: tables[r][i] if r in tables else 0,
            length=length,
            first=first,
            num_cached=lambda r: 0,
            status=lambda r: _STATUS[entries[r].status] if r in entries else UNKNOWN,
            num_tokens=lambda r: len(entries[r].tokens) if r in entries else 0,
            computed=of("computed"),
            in_flight=of("in_flight"),
            num_to_zero=lambda g: len(s.to_zero),
            to_zero=lambda g, j: s.to_zero[j],
        )
    )
