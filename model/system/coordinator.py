"""A request's groups together (vLLM's `KVCacheCoordinator`): whatever is done, group by group in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slotproof.model.language.algebra import Int
from slotproof.model.language.state import State
from slotproof.model.system.attention import group


def for_each_group(s: State, name: str, r: Int, step: Callable[[State, Int], State], **of: Any) -> State:
    """`step(state, row)` for r's row in each group, in order. `of` is what it is about, for its invariant."""
    engine = s.engine
    return s.read.loop(name, 0, engine.groups.num, lambda t, g: step(t, engine.row(r, g)), s, request=r, **of)


def remove_skipped_blocks(s: State, r: Int, processed: Int) -> State:
    """Stage 1: what fell out of the groups' windows goes back to the pool."""
    if s.engine.all_full is True:
        return s
    return for_each_group(
        s,
        "release-groups",
        r,
        lambda t, row: group.remove_skipped_blocks(t, row, processed),
        processed=processed,
    )


def cache_blocks(s: State, r: Int, num_tokens: Int) -> State:
    """Stage 4: hashes."""
    return for_each_group(
        s, "cache-groups", r, lambda t, row: group.cache_blocks(t, row, num_tokens), num_tokens=num_tokens
    )


def free(s: State, r: Int) -> State:
    """All of r's blocks go back to the pool, group by group: the last group's are taken first."""
    return for_each_group(s, "free-groups", r, group.free)
