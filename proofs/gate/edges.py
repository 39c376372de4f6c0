"""How near the edge of its contract a caller comes: calls of which one token more, or less, is outside.

A precondition that campaigns never come near may be stricter than what it stands for, unseen.
"""

from __future__ import annotations

from collections.abc import Iterator

from slotproof.impl.protocol import AddRequest, Allocate, CacheBlocks, Call, Complete
from slotproof.model.language.state import State
from slotproof.model.scheduling.caller import settled, waits

EDGES: dict[str, tuple[str, ...]] = {
    "prompt-fits-the-model": (),
    "a-load-leaves-a-token": ("external",),
    "prefill-stays-in-the-prompt": (),
    "within-max-model-len": (),
    "in-flight-is-bounded": (),
    "processed-was-in-flight": (),
    "only-drafts-are-rejected": (),
    "sampled-follows-processed": (),
    "published-tokens-have-run": ("cache_running",),
}
"""The preconditions that are bounds on tokens, by their names in `model/scheduling/caller.py`, each with what
an implementation must be able to do for it."""


def at_edge(s: State, call: Call, total: int) -> Iterator[str]:
    """The preconditions that the call meets exactly. `total` is what an allocation has computed, with its hit
    and its external tokens."""
    engine = s.engine
    if isinstance(call, AddRequest):
        if len(call.tokens) == engine.max_model_len:
            yield "prompt-fits-the-model"
    elif isinstance(call, Allocate):
        r, end = call.request, total + call.new
        if call.external and total == s.num_tokens(r) - 1:
            yield "a-load-leaves-a-token"
        if waits(s, r) and end == s.num_tokens(r):
            yield "prefill-stays-in-the-prompt"
        if end == engine.max_model_len:
            yield "within-max-model-len"
        if s.in_flight(r) + call.new == engine.max_in_flight_tokens:
            yield "in-flight-is-bounded"
    elif isinstance(call, Complete):
        r = call.request
        ran = settled(s, r) + call.processed
        if call.processed == s.in_flight(r):
            yield "processed-was-in-flight"
        if call.rejected and ran - call.rejected == min(ran, s.num_tokens(r)):
            yield "only-drafts-are-rejected"
        if call.sampled and s.num_tokens(r) + len(call.sampled) == ran - call.rejected + 1:
            yield "sampled-follows-processed"
    elif (
        isinstance(call, CacheBlocks)
        and call.tokens is not None
        and call.tokens == min(s.num_tokens(call.request), settled(s, call.request))
    ):
        yield "published-tokens-have-run"
