"""A configuration read off a live `KVCacheManager`, and why some cannot be followed."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any, NamedTuple

from slotproof.impl.protocol import Config, Group

NO_LIMIT = 1 << 30


class Described(NamedTuple):
    """What a manager is, as far as it can be said."""

    config: Config | None
    """None if it cannot be followed."""
    cannot: tuple[str, ...] = ()
    """Why it cannot be followed."""
    unseen: tuple[str, ...] = ()
    """What of it is not compared, though it is followed."""


def describe(manager: Any) -> Described:
    """The configuration of a manager. It is not changed, and nothing is guessed: what the model does not
    know is named."""
    coordinator, shape = manager.coordinator, manager.kv_cache_config
    kinds = coordinator.single_type_managers
    cannot = [*_of_the_coordinator(manager), *(why for kind in kinds for why in _of_a_group(kind))]
    if cannot:
        return Described(None, tuple(dict.fromkeys(cannot)))
    groups = tuple(
        Group(block_size=kind.block_size, sliding_window=getattr(kind, "sliding_window", None))
        for kind in kinds
    )
    in_flight = _max_in_flight_tokens(kinds, manager.max_model_len)
    if in_flight is None:
        return Described(None, ("its windows are capped by different numbers of tokens in flight",))
    unseen = []
    if not all(kind.records_new_block_ids for kind in kinds):
        unseen.append("the blocks to zero: it does not record them")
    if manager.enable_kv_cache_events:
        unseen.append("KV cache events")
    return Described(
        Config(
            num_blocks=shape.num_blocks,
            block_size=groups[0].block_size,
            sliding_window=groups[0].sliding_window,
            groups=groups[1:],
            max_model_len=manager.max_model_len,
            enable_caching=bool(manager.enable_caching),
            watermark_blocks=manager.watermark_blocks,
            max_in_flight_tokens=in_flight,
        ),
        (),
        tuple(unseen),
    )


def _of_the_coordinator(manager: Any) -> list[str]:
    coordinator = manager.coordinator
    sizes = [kind.block_size for kind in coordinator.single_type_managers]
    why = []
    if len(coordinator.block_pool.blocks) != manager.kv_cache_config.num_blocks:
        why.append("its pool has another number of blocks than its configuration")
    if coordinator.eagle_group_ids:
        why.append("EAGLE drops the last block of a hit")
    if coordinator.num_reprefillable_tokens:
        why.append("tokens are prefilled again (multi-module MTP)")
    windows = any(getattr(kind, "sliding_window", None) for kind in coordinator.single_type_managers)
    if windows and coordinator.retention_interval is not None:
        why.append("of a window, its prefix cache keeps some blocks alone (retention interval)")
    if getattr(coordinator, "enable_partial_hash_hits", False):
        why.append("hits may end inside a block")
    if coordinator.scheduler_block_size != lcm(*sizes):
        why.append("hits end at other places than where a block of every group ends")
    if manager.enable_caching:
        unit = coordinator.block_pool.hash_block_size
        if unit != gcd(*sizes):
            why.append("keys are of other units than the groups' block sizes have in common")
        if len(sizes) > 1 and any(
            type(kind).__name__ == "FullAttentionManager" and kind.block_size != unit
            for kind in coordinator.single_type_managers
        ):
            why.append("full attention with blocks of several units keys a prompt's partial last block")
    return why


def _of_a_group(kind: Any) -> list[str]:
    name, why = type(kind).__name__, []
    if name not in ("FullAttentionManager", "SlidingWindowManager"):
        return [f"{name} is no kind of attention that the model has"]
    if kind.dcp_world_size * kind.pcp_world_size != 1:
        why.append("a block is spread over several workers (context parallelism)")
    if getattr(kind, "extra_retained_tokens", 0):
        why.append("a window keeps more tokens than it attends to")
    if not kind.kv_cache_spec.prefix_cacheable:
        why.append("a group takes no part in prefix caching")
    return why


def _max_in_flight_tokens(kinds: Any, max_model_len: int) -> int | None:
    """The tokens in flight by which the windows' caps are what they are; a cap is all that vLLM keeps."""
    windows = [k for k in kinds if type(k).__name__ == "SlidingWindowManager"]
    caps = {k: k.max_admission_blocks_per_request for k in windows}
    found = NO_LIMIT
    for kind, cap in caps.items():
        whole = -(-max_model_len // kind.block_size) + 1
        if cap is not None and cap < whole:
            found = min(found, (cap - 1) * kind.block_size - (kind.sliding_window - 1))

    def capped(kind: Any) -> int:
        tokens = min(kind.sliding_window - 1 + found, max_model_len)
        return int(-(-tokens // kind.block_size) + 1)

    agree = all(cap is not None and capped(kind) == cap for kind, cap in caps.items())
    return found if agree else None
