"""What an implementation may lack, by name: campaigns do not draw it, and coverage does not ask for it."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = {
    "hits": "which blocks a lookup found",
    "new_blocks": "which blocks `allocate` returns as new",
    "free_queue": "the free blocks, next to be taken first",
    "ref_cnt": "the references of each block",
    "hashes": "the key of each block in the prefix cache",
    "tables": "the block table of each request",
    "usage": "the share of the pool that is held",
    "to_zero": "the blocks to zero",
    "copies": "the blocks that the map of the prefix cache has under each key",
}
"""Fields of `Result` and `Snapshot`: one that is lacking may have any value, and is not compared."""

CAPABILITIES = {
    "full_attention": "engines without a window",
    "sliding_window": "engines with a sliding window",
    "prefix_caching": "engines whose full blocks are found again",
    "watermark": "engines that keep blocks free when they admit",
    "admission_cap": "engines that bound the tokens in flight, by which a window's admission is capped",
    "salt": "requests with a cache salt",
    "lora": "requests with a LoRA",
    "lookahead": "slots past the new tokens",
    "external": "tokens whose KV a connector brings at once",
    "delay_cache": "tokens whose KV a connector brings later",
    "skip_cache": "a request that is not looked up",
    "must_fit": "an admission that is refused unless its whole prompt fits",
    "reserved": "blocks to leave free for others",
    "has_scheduled": "an admission with nobody else in the step, which does not pay the watermark",
    "skip_zeroing": "blocks of a load, which are not to be zeroed",
    "cache_running": "`cache_blocks` of a running request",
    "remove_skipped": "a window's old blocks released by a call of their own",
    "evict_blocks": "blocks that lose their keys",
    "reset_prefix_cache": "all blocks lose their keys",
    "take_new_block_ids": "the list of blocks to zero",
    **SHOWN,
}
"""All that an implementation can do or show beyond the barest: requests arrive, are given blocks, run, are
preempted and end. Nothing is lacking unless the factory says so, by a set of these names: `lacks`."""

ARGUMENTS = ("salt", "lora", "lookahead", "external", "skip_cache", "must_fit", "reserved", "skip_zeroing")
"""Those that are arguments of a call by the same name, which may always keep their defaults."""


class Unsupported(Exception):
    """The implementation cannot do what it was asked; `capability` is what it should say that it lacks."""

    def __init__(self, capability: str) -> None:
        super().__init__(
            f'it was asked for {capability}, which it cannot do: say so, lacks = {{"{capability}"}}'
        )
        self.capability = capability


def checked(lacks: Iterable[str]) -> frozenset[str]:
    """What is lacking, as a set. Raises ValueError for a name that is no capability."""
    names = frozenset(lacks)
    for name in sorted(names - CAPABILITIES.keys()):
        raise ValueError(f"lacks names {name!r}, which is no capability: {', '.join(CAPABILITIES)}")
    if {"full_attention", "sliding_window"} <= names:
        raise ValueError("lacks names full_attention and sliding_window: no engine is left")
    return names
