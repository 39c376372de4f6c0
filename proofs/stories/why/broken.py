"""Why a claim does not hold after a call: the values that broke it, in words.

One sentence for each invariant and check of the model. A claim without a sentence is told by what its
variables are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotproof.model.language.state import NULL_BLOCK, State
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import settled
from slotproof.model.scheduling.worker import executed
from slotproof.model.system.attention.group import admission_cap, skipped_blocks
from slotproof.proofs.campaign.monitor import Violation
from slotproof.proofs.output.words import counted, verb
from slotproof.proofs.stories.why import broken_calls, broken_groups, broken_progress
from slotproof.proofs.stories.why.decisions import Line
from slotproof.proofs.stories.why.scene import Scene
from slotproof.proofs.stories.why.unwritten import lack, slots_written


def variables(violation: Violation) -> list[tuple[str, int]]:
    """The values for which the claim does not hold, by the kind of variable."""
    pairs = (part.rsplit(" ", 1) for part in violation.detail.split(", ") if part)
    return [(pair[0], int(pair[1])) for pair in pairs if len(pair) == 2]


def named(violation: Violation, scene: Scene) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks and the requests that a violation is about."""
    s, r = scene.after, scene.request
    requests, blocks, g = ([r] if r >= 0 else []), [], 0
    for kind, value in variables(violation):
        if kind in ("request", "row") and value >= 0:
            r, g = (s.engine.owner(value), s.engine.group(value)) if kind == "row" else (value, g)
            requests.append(r)
        elif kind == "block":
            blocks.append(value)
        elif kind == "group":
            g = value
        elif kind == "index" and r >= 0:
            row = s.engine.row(r, g)
            tables = [t for t in (s, scene.before) if value < t.length(row)]
            blocks += [t.table(row, value) for t in tables[:1]]
    if violation.claim == "window-is-kept":
        row = s.engine.row(r, g)
        early = range(skipped_blocks(s.engine, g, settled(s, r)), s.first(row))
        blocks = [scene.before.table(row, i) for i in early if i < scene.before.length(row)]
    return tuple(dict.fromkeys(blocks)), tuple(dict.fromkeys(requests))


def reason(violation: Violation, scene: Scene) -> str:
    """The values that broke the claim, in words."""
    if scene.failed is not None:
        return _half_way(scene, scene.failed)
    told = variables(violation)
    of_groups = violation.claim in broken_groups.OF_STATES or violation.claim in broken_groups.OF_CALLS
    if not of_groups and not scene.after.engine.groups.is_one:  # other sentences speak of one table
        return _plainly(violation, scene, told)
    values = tuple(value for kind, value in told if of_groups or kind != "group")
    sentence = _OF_CALLS.get(violation.claim)
    if sentence is not None and scene.answer is not None:
        return sentence(scene, scene.answer, *values)
    sentence = _OF_STATES.get(violation.claim)
    if sentence is not None:
        return sentence(scene, *values)
    return _plainly(violation, scene, told)


def _plainly(violation: Violation, scene: Scene, told: list[tuple[str, int]]) -> str:
    facts = [scene.block(v) if kind == "block" else f"{kind} {v}" for kind, v in told]
    return f"{violation.claim.replace('-', ' ')}: not so" + (f" for {', '.join(facts)}" if facts else "")


def _half_way(c: Scene, failed: Line) -> str:
    a = c.answer
    if a is None:
        return failed.text
    return f"stage 2 passed with need {a.need} of free {a.released.num_free}, then {failed.text}"


def _entries_of(s: State, running: Running, b: int) -> int:
    """How many live table entries hold a block."""
    return sum(s.table(r, i) == b for r in running.requests for i in range(s.first(r), s.length(r)))


def _counted(c: Scene, b: int) -> str:
    n = _entries_of(c.after, c.running, b)
    return f"{c.block(b)}: {n} table {'entry holds' if n == 1 else 'entries hold'} it"


def _aliased(c: Scene, r: int, i: int) -> str:
    b = c.after.table(r, i)
    writer = c.after.writer_row(b)
    taken = f", and was taken for request {writer}" if writer != r else ""
    return f"request {r} is yet to write {c.block(b)}{taken}"


def _reach(c: Scene, b: int) -> str:
    s = c.after
    r, end = s.writer_row(b), s.engine.tokens(s.writer_index(b) + 1)
    have = s.num_tokens(r)
    final = counted(have, "final token")
    return f"{c.block(b)} reaches to token {end} of request {r}, which has {final}: {end} > {have}"


def _writer(c: Scene, b: int) -> str:
    s = c.after
    r, i = s.writer_row(b), s.writer_index(b)
    return f"{c.block(b)} was taken for entry {i} of request {r}, and its key is not the one of those tokens"


def _same_key(c: Scene, b: int, d: int) -> str:
    s = c.after
    of = [f"entry {s.writer_index(x)} of request {s.writer_row(x)}" for x in (b, d)]
    return (
        f"blocks {b} and {d} both have key {c.label(s, b)}, and hold different tokens: {of[0]}, and {of[1]}"
    )


def _order(c: Scene, hashed: int, unhashed: int) -> str:
    s = c.after
    places = f"at {s.rank(hashed)} in the free queue, before unhashed block {unhashed} at {s.rank(unhashed)}"
    return f"hashed block {hashed} is {places}"


def _holder(c: Scene, b: int, k: int) -> str:
    r, i = c.after.holder_row(b, k), c.after.holder_index(b, k)
    return f"{_counted(c, b)}; its reference {k} is entry {i} of request {r}, which no longer holds it"


def _tokens(c: Scene, r: int) -> str:
    s = c.after
    return (
        f"request {r} has {s.computed(r)} computed tokens ({s.in_flight(r)} in flight), {s.num_tokens(r)}"
        f" final ones, {s.length(r)} table entries; max_model_len is {s.engine.max_model_len}"
    )


def _cover(c: Scene, r: int) -> str:
    s = c.after
    need, most = s.engine.blocks(s.computed(r)), s.engine.blocks(s.engine.max_model_len)
    needs = f"it needs {need} for its computed tokens, {most} at most"
    return f"request {r}'s table has {counted(s.length(r), 'entry', 'entries')}; {needs}"


def _published(c: Scene, r: int) -> str:
    s = c.after
    full = s.engine.full_blocks(min(s.computed(r), s.num_tokens(r)))
    fill = f"its {counted(s.num_tokens(r), 'final token')}, {s.computed(r)} computed, fill {full}"
    done = s.num_cached(r)
    return f"request {r} has published {counted(done, 'block')}, and {fill}: {done} > {full}"


def _window(c: Scene, r: int) -> str:
    s, kept = c.after, settled(c.after, r)
    may = skipped_blocks(s.engine, 0, kept)
    given = f"request {r} has given up {counted(s.first(r), 'block')}"
    window = f"its window of {s.engine.groups.window(0)} has passed {may}"
    return f"{given}, but with {counted(kept, 'token')} settled {window}"


def _null(c: Scene) -> str:
    s, b = c.after, NULL_BLOCK
    faults = [f"at {s.rank(b)} in the free queue"] if s.is_free(b) else []
    faults += [f"has ref_cnt {s.ref_cnt(b)}"] if s.ref_cnt(b) else []
    faults += [f"has key {c.label(s, b)}"] if s.is_hashed(b) else []
    return f"block 0, the null block: {', '.join(faults) or 'counted as held'}"


def _no_prefix(c: Scene, i: int) -> str:
    r, hits = c.lookup("hit-is-a-prefix", (0, i))
    b = hits.at(0, i)
    of = f"the tokens of entry {c.after.writer_index(b)} of request {c.after.writer_row(b)}"
    return f"the lookup of request {r} finds block {b} for entry {i}, which holds {of}: not its own"


def _improper(c: Scene) -> str:
    r, hits = c.lookup("hit-is-proper", ())
    found = f"{hits.tokens} of its {counted(c.after.num_tokens(r), 'token')}"
    return f"the lookup of request {r} finds {found}: none is left to compute"


def _no_window(c: Scene, i: int) -> str:
    r, hits = c.lookup("hit-spans-the-window", (0, i))
    tokens, window = hits.tokens, c.after.engine.groups.window(0)
    place = f"entry {i}" if window is None else f"entry {i}, in the window of {window},"
    return f"request {r} hits {counted(tokens, 'token')}, but {place} is the null block"


def _salts(c: Scene, r: int, i: int, q: int, j: int) -> str:
    texts = c.running.read.texts
    tags = [f"request {x} (salt {texts[x].salt}, lora {texts[x].lora})" for x in (r, q)]
    return f"{tags[0]} and {tags[1]} share block {c.after.table(r, i)}"


def _tail(c: Scene, i: int, j: int) -> str:
    head, tail = c.before.table(c.request, i), c.before.table(c.request, j)
    places = (
        f"block {tail} (entry {j}) at {c.after.rank(tail)}, block {head} (entry {i}) at {c.after.rank(head)}"
    )
    return f"in the free queue the head is before the tail: {places}"


def _place(c: Scene, i: int, other: int) -> str:
    b = c.before.table(c.request, i)
    kind, due = ("hashed", "behind") if c.before.is_hashed(b) else ("unhashed", "before")
    places = f"at {c.after.rank(b)}, and block {other} at {c.after.rank(other)}"
    return f"{kind} block {b} belongs {due} the blocks that were free before; it is {places}"


def _published_unwritten(c: Scene, b: int) -> str:
    s = c.after
    taken = f"taken for entry {s.writer_index(b)} of request {s.writer_row(b)}"
    return f"block {b} ({taken}) is published with key {c.label(s, b)}; {lack(s, b)}"


def _computed_unwritten(c: Scene, r: int, i: int) -> str:
    s = c.after
    b, computed = s.table(r, i), executed(s, r)
    computed = f"request {r} takes its first {counted(computed, 'token')} for written"
    return f"{computed}, but of block {b} (entry {i}) {lack(s, b)}"


def _hit_unwritten(c: Scene, i: int) -> str:
    r, hits = c.lookup("hit-is-written", (0, i))
    return (
        f"the lookup of request {r} finds block {hits.at(0, i)} for entry {i}; {lack(c.after, hits.at(0, i))}"
    )


def _reads_unwritten(c: Scene, r: int, i: int) -> str:
    s = c.after
    b = s.table(r, i)
    end = min(s.engine.tokens(i + 1), s.computed(r))
    slots = end - s.engine.tokens(i)
    left = f", and the step has left {counted(s.unwritten(r), 'token')} unwritten" if s.unwritten(r) else ""
    reads = f"the step reads {counted(slots, 'slot')} of block {b} (entry {i} of request {r}'s table)"
    return f"{reads}, of which {min(slots, slots_written(s, b))} hold KV{left}"


def _dropped(c: Scene, i: int) -> str:
    s, t, r = c.before, c.after, c.request
    b = s.table(r, i)
    found = "published" if t.is_hashed(b) else f"held by {counted(t.ref_cnt(b), 'entry', 'entries')}"
    was, now = (counted(slots_written(state, b), "written slot") for state in (s, t))
    return f"block {b} (entry {i} of request {r}) was left with {was}; it is {found}, and has {now} now"


def _open_tokens(c: Scene, r: int, i: int) -> str:
    s = c.after
    b, start = s.table(r, i), s.computed(r) - max(s.in_flight(r), s.unwritten(r))
    writer = f"which was taken for request {s.writer_row(b)}"
    return f"request {r} is yet to write from token {start} on, and its entry {i} is block {b}, {writer}"


def _too_much(c: Scene, b: int) -> str:
    s = c.after
    r = s.writer_row(b)
    done = executed(s, r)
    ran = f"{counted(done, 'token')} of request {r} {verb(done, 'has', 'have')} run"
    return f"{c.block(b)} counts as written up to token {s.written(b)}, and {ran}"


_OF_STATES: dict[str, Callable[..., str]] = {
    "counters-are-not-negative": lambda c: f"{c.after.num_free} free and {c.after.num_held} held blocks",
    "queue-holds-each-block-once": lambda c, i: (
        f"position {i} of the free queue holds block {c.after.at(i)}, "
        f"whose place is {c.after.rank(c.after.at(i))}"
    ),
    "ranked-blocks-are-queued": lambda c, b: f"{c.block(b)} is not at that place",
    "free-if-unreferenced": lambda c, b: f"{c.block(b)}: a block is free exactly if its ref_cnt is 0",
    "counted-blocks-are-held": lambda c, b: (
        f"{c.block(b)} counts as {'held' if c.after.held_rank(b) >= 0 else 'not held'}"
    ),
    "null-block-is-out-of-the-pool": _null,
    "null-block-fills-the-gap": lambda c, r, i: f"{c.entry(r, i)} fell out of the window",
    "entries-are-references": lambda c, r, i: _counted(c, c.after.table(r, i)),
    "references-are-entries": _holder,
    "unpublished-blocks-are-private": _aliased,
    "hash-is-the-writers": _writer,
    "hashed-tokens-are-final": _reach,
    "reach-is-final": _reach,
    "entry-holds-its-prefix": lambda c, r, i: f"{c.entry(r, i)} holds other tokens than the request's",
    "cap-is-tight": lambda c: (
        f"the admission cap is {counted(admission_cap(c.after.engine, 0) or 0, 'block')}"
    ),
    "promise-survives": lambda c, q: (
        f"request {q} was promised its whole prompt, and {counted(c.after.num_free, 'block')}"
        f" {verb(c.after.num_free, 'is', 'are')} free"
    ),
    "unhashed-before-hashed": _order,
    "every-unhashed-before-hashed": _order,
    "status-fits-the-tokens": _tokens,
    "status-fits-the-table": _tokens,
    "tokens-are-counted": _tokens,
    "table-covers-computed": _cover,
    "published-is-computed": _published,
    "window-is-kept": _window,
    "within-the-pool": lambda c: (
        f"{counted(c.after.num_held, 'block')} {verb(c.after.num_held, 'is', 'are')} held,"
        f" of {c.after.engine.num_blocks - 1}"
    ),
    "held-by-a-request": lambda c, b: f"{c.block(b)} counts as held, and no request holds it",
    "idle-is-not-used": lambda c, b: f"{c.block(b)} is idle, and counts as used",
    "no-null-entry": lambda c, r, i: f"entry {i} of request {r}'s table is the null block, inside its window",
    "one-key-one-content": _same_key,
    "hit-is-a-prefix": _no_prefix,
    "hit-is-proper": _improper,
    "hit-spans-the-window": _no_window,
    "salts-are-apart": _salts,
    **broken_progress.OF_STATES,
    **broken_groups.OF_STATES,
    "tail-before-head": _tail,
    "freed-blocks-take-their-place": _place,
    "refused-reset-keeps-hashes": lambda c, b: f"the reset was refused, and {c.block(b)} is not as it was",
    "open-tokens-have-own-blocks": _open_tokens,
    "hashed-blocks-are-written": _published_unwritten,
    "computed-tokens-are-written": _computed_unwritten,
    "hit-is-written": _hit_unwritten,
    "step-reads-what-is-written": _reads_unwritten,
    "dropped-blocks-stay-unwritten": _dropped,
    "evicted-is-not-missed": lambda c, r, i: f"{c.entry(r, i)} lost its hash, and would still be found",
    "no-more-is-written": _too_much,
}
"""Claims about a state, a lookup, or a request that leaves."""


_OF_CALLS = broken_calls.SENTENCES | broken_progress.OF_CALLS | broken_groups.OF_CALLS

SENTENCES: dict[str, Any] = _OF_STATES | _OF_CALLS
"""Every claim that has a sentence of its own."""
