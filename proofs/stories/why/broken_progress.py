"""Why a claim of *progress* does not hold: one sentence for each."""

from __future__ import annotations

from collections.abc import Callable

from slotproof.model.claims.admission import missing, most_held
from slotproof.model.claims.progress import left
from slotproof.model.scheduling.caller import settled
from slotproof.model.system.allocate_slots import Answer
from slotproof.model.system.attention.group import skipped_blocks
from slotproof.proofs.output.words import counted, verb
from slotproof.proofs.stories.why.scene import Scene


def _refused(c: Scene, a: Answer) -> str:
    stage = "0" if not a.fits else "2"
    free = f"{a.released.num_free} of {counted(c.num_usable, 'block')} free"
    asks = f"need {a.need} + watermark {a.watermark}, {free}"
    return f"stage {stage} refused request {c.request}, which alone fits the pool: {asks}"


def _moved(c: Scene, a: Answer, q: int, i: int) -> str:
    return f"the call was about request {c.request}, and {_changed(c, q, i)}"


def _changed(c: Scene, q: int, i: int) -> str:
    words = {"status": "status", "num_tokens": "final tokens", "computed": "computed tokens"}
    words |= {"in_flight": "tokens in flight", "length": "table entries", "first": "entries given up"}
    pairs = [(word, getattr(c.before, name)(q), getattr(c.after, name)(q)) for name, word in words.items()]
    changed = [f"{word} {was} -> {now}" for word, was, now in pairs if was != now]
    entry = f"entry {i} {c.before.table(q, i)} -> {c.after.table(q, i)}"
    return f"request {q} changed: {', '.join(changed) or entry}"


def _reserve(c: Scene, a: Answer, q: int) -> str:
    t = c.after
    return (
        f"the load was granted with {counted(a.ask.reserved, 'block')} reserved; request {q} still"
        f" lacks {missing(t, q)} of {most_held(t, q)}, and {t.num_free} {verb(t.num_free, 'is', 'are')} free"
    )


OF_CALLS: dict[str, Callable[..., str]] = {
    "lone-request-is-granted": _refused,
    "empty-pool-admits": _refused,
    "grant-moves-nobody-else": _moved,
    "load-leaves-the-reserve": _reserve,
}
"""Claims about an `allocate`."""


def _shared(c: Scene, r: int, i: int) -> str:
    return f"nobody else holds a block, and {c.entry(r, i)} counts more than its one holder"


def _still(c: Scene) -> str:
    before, after = left(c.before, c.request), left(c.after, c.request)
    return f"a step of request {c.request} ran, and what is left of it went from {before} to {after}"


def _gave_no_way(c: Scene, q: int, i: int) -> str:
    held = c.after.length(c.request)
    if held:
        return f"request {c.request} left, and its table still has {counted(held, 'entry', 'entries')}"
    return f"request {c.request} left, and {_changed(c, q, i)}"


def _set_back(c: Scene, q: int) -> str:
    before, after = left(c.before, q), left(c.after, q)
    return f"the call was not about request {q}, and what is left of it went from {before} to {after}"


def _load_out_of_window(c: Scene, r: int) -> str:
    s = c.after
    passed = f"its window has passed {counted(skipped_blocks(s.engine, 0, settled(s, r)), 'block')}"
    return f"{passed}, request {r} gave up {s.first(r)}, and its load is not written yet"


OF_STATES: dict[str, Callable[..., str]] = {
    "lone-holder-shares-nothing": _shared,
    "step-moves-on": _still,
    "answer-moves-nobody-else": lambda c, q, i: (
        f"request {c.request} got its answer, and {_changed(c, q, i)}"
    ),
    "nobody-is-set-back": _set_back,
    "victim-gives-way": _gave_no_way,
    "loads-are-in-the-window": _load_out_of_window,
}
"""Claims about a state, an answer, or a request that leaves."""
