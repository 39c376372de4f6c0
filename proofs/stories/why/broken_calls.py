"""Why a claim about an `allocate` does not hold: one sentence for each."""

from __future__ import annotations

from collections.abc import Callable

from slotproof.model.claims.admission import most_held
from slotproof.model.claims.check import covered, idle_hits, slots_asked, watermark_due
from slotproof.model.system.allocate_slots import Answer
from slotproof.model.system.attention.group import skipped_blocks
from slotproof.proofs.output.words import counted, verb
from slotproof.proofs.stories.why.scene import Scene
from slotproof.proofs.stories.why.unwritten import lack


def _fell(c: Scene, a: Answer) -> str:
    was, free = a.released.num_free, c.after.num_free
    return f"stage 2 counted {a.need}, and the free count fell by {was - free}, from {was} to {free}"


def _slots(c: Scene, a: Answer) -> str:
    tokens = min(a.total + a.ask.new + a.ask.lookahead, c.after.engine.max_model_len)
    need, length = slots_asked(c.before, c.request, a.ask, a.total), c.after.length(c.request)
    most = c.after.engine.blocks(c.after.engine.max_model_len)
    needs = f"{counted(tokens, 'token')} {verb(tokens, 'needs', 'need')} {counted(need, 'block')}"
    return f"{needs}, {most} at most; the table has {length}"


def _boundary(c: Scene, a: Answer) -> str:
    s, r = c.before, c.request
    slots = s.engine.tokens(s.length(r))
    full = "full" if s.computed(r) == slots else "not full"
    taken = c.after.length(r) - s.length(r)
    computed = f"{counted(s.computed(r), 'computed token')} in {counted(slots, 'slot')}"
    return f"{computed}: the table is {full}, and it got {taken} more"


def _promise(c: Scene, a: Answer, margin: int = 0) -> str:
    t, r = c.after, c.request
    live, most = t.length(r) - t.first(r), most_held(t, r)
    beside = f" and a watermark of {margin}" if margin else ""
    return (
        f"the whole prompt needs {counted(most, 'block')} at once{beside}; the request holds {live}"
        f" and {t.num_free} {verb(t.num_free, 'is', 'are')} free: {t.num_free} + {live} < {most + margin}"
    )


def _left(c: Scene, a: Answer) -> str:
    due, free = watermark_due(c.before, c.request, a.ask), c.after.num_free
    left = f"{free} {verb(free, 'is', 'are')} left"
    return f"watermark {due} + reserved {a.ask.reserved} have to stay free, and {left}"


def _pays(c: Scene, a: Answer) -> str:
    due = watermark_due(c.before, c.request, a.ask)
    needed = f"need {a.need} + watermark {due} + reserved {a.ask.reserved}"
    answer = "granted" if a.granted else "refused"
    return f"{needed}, {a.released.num_free} free, and it was {answer} with watermark {a.watermark}"


def _idle(c: Scene, a: Answer) -> str:
    s, r = c.before, c.request
    before = covered(s, r, a.ask, a.total)
    new = max(0, slots_asked(s, r, a.ask, a.total) - before)
    fell = a.released.num_free - c.after.num_free
    return (
        f"{counted(a.ask.hits.num(0), 'hit')} and {counted(new, 'new block')} make"
        f" {counted(before + new, 'entry', 'entries')}; the table has"
        f" {c.after.length(r)}, and the free count fell by {fell}"
    )


def _front(c: Scene, a: Answer, j: int) -> str:
    got = c.after.table(c.request, covered(c.before, c.request, a.ask, a.total) + j)
    return f"new block {j} is block {got}; at {j} in the free queue was block {a.released.at(j)}"


def _private(c: Scene, a: Answer, i: int) -> str:
    b = c.after.table(c.request, i)
    shared = a.committed.ref_cnt(b)
    hashed = " and has a hash" if a.committed.is_hashed(b) else ""
    hold = f"{counted(shared, 'entry', 'entries')} {verb(shared, 'holds', 'hold')}"
    return f"this step writes block {b} (entry {i}), which {hold}{hashed}"


def _asks_more(c: Scene, a: Answer) -> str:
    due = watermark_due(c.before, c.request, a.ask)
    asks = f"{counted(most_held(c.before, c.request), 'block')} + watermark {due}"
    return f"stage 0 refused, though {asks} is all it needs, of {c.before.num_free} free"


def _kept(c: Scene, a: Answer, q: int, i: int) -> str:
    s, t = c.before, c.after
    if t.first(q) != s.first(q):
        may = skipped_blocks(s.engine, 0, max(0, a.total - s.in_flight(q)))
        gave = f"request {q} gave up its table below entry {t.first(q)}"
        return f"the call was refused, and {gave}; its window has passed what is below entry {may}"
    words = {"length": "table entries", "num_cached": "published blocks", "computed": "computed tokens"}
    words |= {"in_flight": "tokens in flight", "num_tokens": "final tokens", "status": "status"}
    pairs = [(word, getattr(s, name)(q), getattr(t, name)(q)) for name, word in words.items()]
    changed = [f"{word} {was} -> {now}" for word, was, now in pairs if was != now]
    return f"the call was refused, and request {q} changed: {', '.join(changed) or f'entry {i}'}"


def _pool_kept(c: Scene, a: Answer, b: int) -> str:
    s, t = c.before, c.after
    was, now = (f"ref_cnt {x.ref_cnt(b)}, {x.num_free} free" for x in (s, t))
    return f"the call was refused, and block {b} went from ({was}) to ({now})"


def _whole(c: Scene, a: Answer) -> str:
    s, r = c.before, c.request
    missing = max(0, most_held(s, r) - covered(s, r, a.ask, a.total))
    idle, due = idle_hits(s, r, a.ask, a.total), watermark_due(s, r, a.ask)
    passed = "passed" if a.fits else "refused"
    asks = f"{missing} missing blocks + {idle} idle hits + watermark {due}"
    return f"stage 0 {passed}; the whole prompt asks for {asks}, and {s.num_free} are free"


def _adopted_unwritten(c: Scene, a: Answer, i: int) -> str:
    b = a.ask.hits.at(0, i)
    return f"request {c.request} adopts block {b} for entry {i}; {lack(c.before, b)}"


SENTENCES: dict[str, Callable[..., str]] = {
    "requests-unchanged": _kept,
    "pool-unchanged": _pool_kept,
    "count-is-exact": _fell,
    "slots-are-there": _slots,
    "one-block-a-boundary": _boundary,
    "admission-promises": _promise,
    "later-chunk-is-promised": _promise,
    "later-chunk-is-granted": lambda c, a: f"refused: {_pays(c, a)}",
    "admission-starts-alone": lambda c, a, i: f"{c.entry(c.request, i)} is not its own",
    "later-chunk-is-alone": lambda c, a, i: f"{c.entry(c.request, i)} is not its own",
    "whole-prompt-is-counted": _whole,
    "stage-0-is-no-trace": lambda c, a, b: f"stage 0 refused, and {c.block(b)} is not as it was",
    "load-is-unpublished": lambda c, a, b: f"{c.block(b)} is published, and its load is still to come",
    "asks-no-more": _asks_more,
    "admission-with-hits": _promise,
    "chunk-with-lookahead": lambda c, a: f"refused: {_pays(c, a)}",
    "chunk-with-reserve": lambda c, a: f"refused: {_pays(c, a)}",
    "count-from-the-start": lambda c, a: (
        f"stage 2 counted {a.need}, and the free count went from {c.before.num_free} to {c.after.num_free}"
    ),
    "watermark-is-left": _left,
    "whole-prompt-leaves-it": lambda c, a: _promise(c, a, watermark_due(c.before, c.request, a.ask)),
    "nobody-pays-more": _pays,
    "idle-hits-are-counted": _idle,
    "new-from-the-front": _front,
    "written-blocks-are-private": _private,
    "adopted-is-written": _adopted_unwritten,
    "new-blocks-are-blocks": lambda c, a, i: (
        f"entry {i}, a new block, is block {c.after.table(c.request, i)}"
    ),
}
"""Claims about an `allocate`."""
