"""What became of one request, in a line: when it arrived, was admitted, preempted, and what it has now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slotproof.impl.protocol import AddRequest, Allocate, CacheBlocks, Finish, Preempt
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, WAITING
from slotproof.proofs.output.text import block_names
from slotproof.proofs.output.words import counted
from slotproof.proofs.traces.script import Add

if TYPE_CHECKING:
    from slotproof.proofs.gate.schedulers.episode import Episode

_SHOWN = 12
"""Things that happened which a line shows, at most: the first of them and the last."""
_NOW = {WAITING: "waiting", LOADING: "waiting for its load", RUNNING: "running", PREEMPTED: "preempted"}


def history(episode: Episode, request: int) -> str:
    """The line: `request 1: arrives before step 2 (4 tokens, 2 to sample), admitted in step 2, …`."""
    happened = list(_happened(episode, request))
    if len(happened) > _SHOWN:
        happened = [*happened[:2], "…", *happened[3 - _SHOWN :]]
    return f"request {request}: {', '.join(happened)}; {_now(episode, request)}"


def _happened(episode: Episode, request: int) -> Iterator[str]:
    name = episode.follower.name
    runs, refused = False, -1
    for _, step, told in episode.told:
        call = told.call
        if getattr(call, "request", None) is None or name(call.request) != name(request):  # type: ignore[union-attr]
            continue
        if isinstance(call, AddRequest):
            most = [
                e.arrival.max_tokens
                for e in episode.script
                if isinstance(e, Add) and e.arrival.request == call.request
            ]
            samples = f", {most[0]} to sample" if most else ""
            yield f"arrives before step {step + 1} ({counted(len(call.tokens), 'token')}{samples})"
            runs = False
        elif isinstance(call, Allocate) and not told.result.granted:
            if refused != step:
                yield f"refused in step {step}"
            refused = step
        elif isinstance(call, Allocate) and not runs:
            hits = f", {counted(sum(map(bool, told.result.hits)), 'hit')}" if any(told.result.hits) else ""
            loads = f", {call.external} loaded" if call.external else ""
            yield f"admitted in step {step} ({counted(call.new, 'token')}{hits}{loads})"
            runs = not call.delay_cache
        elif isinstance(call, CacheBlocks) and call.tokens is None:
            yield f"its load has arrived by step {step}"
        elif isinstance(call, Preempt):
            yield f"preempted in step {step}"
            runs = False
        elif isinstance(call, Finish):
            yield f"ends after step {step}"


def _now(episode: Episode, request: int) -> str:
    s = episode.follower.state
    status = s.status(request)
    if status not in _NOW:
        return "it has ended"
    tokens = f"{s.computed(request)} of {counted(s.num_tokens(request), 'token')} computed"
    blocks = block_names(episode.follower.blocks(request))
    return f"it is {_NOW[status]}, {tokens}, {s.in_flight(request)} in flight, blocks {blocks}"
