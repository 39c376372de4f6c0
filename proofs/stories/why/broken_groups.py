"""Why a claim about several groups does not hold: sentences that name the group."""

from __future__ import annotations

from collections.abc import Callable

from slotproof.model.system.attention.sliding_window import sent_again
from slotproof.proofs.stories.why.scene import Scene


def row(c: Scene, number: int) -> str:
    """A row of the block tables in words."""
    engine = c.after.engine
    request = f"request {engine.owner(number)}"
    return request if engine.groups.is_one else f"{request}, group {engine.group(number)}"


def _holders(c: Scene, b: int, k: int) -> str:
    s = c.after
    return f"block {b} was taken for {row(c, s.writer_row(b))}, and {row(c, s.holder_row(b, k))} holds it"


def _shared(c: Scene, one: int, i: int, other: int, j: int) -> str:
    return f"block {c.after.table(one, i)} is entry {i} of {row(c, one)}, and entry {j} of {row(c, other)}"


def _keys(c: Scene, b: int, d: int) -> str:
    of = [row(c, c.after.writer_row(x)) for x in (b, d)]
    return f"blocks {b} and {d} have one key: one was taken for {of[0]}, the other for {of[1]}"


def _foreign(c: Scene, g: int, i: int) -> str:
    r, hits = c.lookup("hit-is-of-its-group", (g, i))
    b = hits.at(g, i)
    return f"request {r} finds block {b} for group {g}, which was taken for {row(c, c.after.writer_row(b))}"


def _uncommon(c: Scene, g: int) -> str:
    r, hits = c.lookup("hit-is-common", (g,))
    size = c.after.engine.groups.block_size(g)
    return f"request {r} hits {hits.tokens} tokens, where no block of {size} tokens of group {g} ends"


def _unserved(c: Scene, g: int, i: int) -> str:
    r, hits = c.lookup("hit-serves-each-group", (g, i))
    return (
        f"request {r} hits {hits.tokens} tokens, and group {g} has no block for entry {i}, which is read next"
    )


def _not_dropped(c: Scene, g: int) -> str:
    r, hits = c.lookup("hit-drops-a-block", (g,))
    return (
        f"request {r} hits {hits.tokens} tokens, and the block of group {g} behind them, which a draft head "
        f"leaves out, entry {hits.num(g)}, is not found"
    )


def _not_kept(c: Scene, r: int, g: int, i: int) -> str:
    s = c.after
    place = s.engine.align_down(sent_again(s, r))
    return (
        f"if the prompt of request {r} is sent again, it is taken up at token {place}, and entry {i} of "
        f"group {g}, which that needs, gets no hash"
    )


def _longer_loses(c: Scene, r: int) -> str:
    s = c.after
    known, kept = (s.engine.align_down(tokens) for tokens in (s.prompt(r), s.prompt(r) - 1))
    return (
        f"a prompt that goes on behind the {s.prompt(r)} tokens of request {r} could be taken up at token "
        f"{known}, and what windows keep serves one at {kept}"
    )


OF_STATES: dict[str, Callable[..., str]] = {
    "holders-are-of-the-writers-group": _holders,
    "holders-are-of-one-group": _shared,
    "key-is-of-one-group": _keys,
    "hit-drops-a-block": _not_dropped,
    "hit-is-of-its-group": _foreign,
    "hit-is-common": _uncommon,
    "hit-serves-each-group": _unserved,
    "kept-for-a-resend": _not_kept,
    "longer-prompt-loses-nothing": _longer_loses,
}
"""Claims about a state or a lookup."""


def _lost(c: Scene, g: int, i: int) -> str:
    assert c.answer is not None
    found, table = c.answer.ask.hits.at(g, i), c.after.engine.row(c.request, g)
    got = c.after.table(table, i)
    where = f"the lookup found block {found} for entry {i} of group {g}"
    if found == got:
        return f"{where}; another group popped it meanwhile, and both hold it"
    return f"{where}; popped meanwhile, it gave way to {got}"


OF_CALLS: dict[str, Callable[..., str]] = {
    "adopted-hits-are-kept": lambda c, a, g, i: _lost(c, g, i),
    "entries-are-counted": lambda c, a, g: (
        f"group {g} of request {c.request} has {c.after.length(c.after.engine.row(c.request, g))} entries, "
        "not those that stage 2 counted"
    ),
    "external-from-the-front": lambda c, a, g, j: (
        f"block {j} for the external tokens of group {g} was not the next of the free queue"
    ),
}
"""Claims about an `allocate`."""
