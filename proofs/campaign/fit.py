"""What an implementation can be asked: configurations and calls without what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from slotproof.impl.capabilities import ARGUMENTS
from slotproof.impl.protocol import (
    Allocate,
    CacheBlocks,
    Call,
    Config,
    EvictBlocks,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)

_CALLS: dict[str, type[Call]] = {
    "remove_skipped": RemoveSkipped,
    "evict_blocks": EvictBlocks,
    "reset_prefix_cache": ResetPrefixCache,
    "take_new_block_ids": TakeNewBlockIds,
}


def fit_config(config: Config, lacks: frozenset[str]) -> Config:
    """The configuration that comes next to it."""
    changes: dict[str, Any] = {}
    if "sliding_window" in lacks:
        changes["sliding_window"] = None
    elif "full_attention" in lacks and config.sliding_window is None:
        changes["sliding_window"] = config.block_size + 1
    if "prefix_caching" in lacks:
        changes["enable_caching"] = False
    if "watermark" in lacks:
        changes["watermark_blocks"] = 0
    if "admission_cap" in lacks:
        changes["max_in_flight_tokens"] = 1 << 30
    return msgspec.structs.replace(config, **changes)


def fit_configs(
    configs: Sequence[Config], lacks: frozenset[str], behaviours: tuple[str, ...] = ()
) -> tuple[Config, ...]:
    """`fit_config` for each, with the behaviours of a release."""
    fitted = (fit_config(config, lacks) for config in configs)
    return tuple(msgspec.structs.replace(config, behaviours=behaviours) for config in fitted)


def fit_call(call: Call, lacks: frozenset[str]) -> Call | None:
    """The call that comes next to it, legal wherever it was; None for none."""
    if not lacks:
        return call
    if any(name in lacks and isinstance(call, type_) for name, type_ in _CALLS.items()):
        return None
    if isinstance(call, CacheBlocks) and call.tokens is not None and "cache_running" in lacks:
        return None
    defaults = {field.name: field.default for field in msgspec.structs.fields(call)}
    changes: dict[str, Any] = {n: defaults[n] for n in ARGUMENTS if n in lacks and n in defaults}
    if isinstance(call, Allocate):
        if "has_scheduled" in lacks:
            changes["has_scheduled"] = True
        if "delay_cache" in lacks:
            changes["delay_cache"] = False
        if call.skip_cache and "skip_cache" in lacks:  # a lookup may leave one token to compute, and no more
            changes |= {"new": 1, "external": 0, "delay_cache": False}
        external = changes.get("external", call.external)
        if call.delay_cache and not (external and changes.get("delay_cache", True)):
            changes |= {"new": 1, "delay_cache": False}
        if not external:
            changes["skip_zeroing"] = False
    return msgspec.structs.replace(call, **changes)
