"""What a block holds of what it stands for: slots that are written, and who writes the rest, or why nobody
does."""

from __future__ import annotations

from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, UNKNOWN, State
from slotproof.model.scheduling.worker import arrives, executed, is_written, writer_holds
from slotproof.proofs.output.words import counted, verb

STEP, LOAD, NOBODY = "this step", "a load", "nobody"
"""Who writes what a block lacks: the step that is being made up, a delayed load, nobody."""


def slots_written(s: State, b: int) -> int:
    """The block's slots that hold the KV of the tokens that it was taken for."""
    size = s.engine.tokens(1)
    return int(max(0, min(s.written(b) - size * s.writer_index(b), size)))


def filled_by(s: State, b: int) -> str:
    """Who writes the slots that the block lacks; empty if it lacks none."""
    if is_written(s, b):
        return ""
    if arrives(s, b):
        return STEP
    loads = writer_holds(s, b) and s.status(s.writer_row(b)) == LOADING
    return LOAD if loads else NOBODY


def lack(s: State, b: int) -> str:
    """What a block lacks, and who writes it, or why nobody will, in words."""
    size, done, who = s.engine.tokens(1), slots_written(s, b), filled_by(s, b)
    if size == 1:
        lacks = "its slot is not written"
    else:
        lacks = f"{done} of its {counted(size, 'slot')} {verb(done, 'is', 'are')} written"
    rest = "the rest" if done else "it" if size == 1 else "them"
    if who == LOAD:
        return f"{lacks}, and the load of request {s.writer_row(b)} is still to come"
    if who == STEP:
        return f"{lacks}, and the step that is being made up writes {rest}"
    return f"{lacks}, and nobody will write {rest}: {_reason(s, b)}"


def _reason(s: State, b: int) -> str:
    r = s.writer_row(b)
    if writer_holds(s, b) and s.status(r) == RUNNING:
        end = s.engine.tokens(s.writer_index(b) + 1)
        if s.computed(r) < end:
            return f"request {r} has {s.computed(r)} computed tokens, and the block reaches to token {end}"
        return f"request {r} writes from token {executed(s, r)} on"
    left = {UNKNOWN: "finished", PREEMPTED: "was preempted"}.get(s.status(r), "gave it up")
    return f"request {r} {left} before the step ran"
