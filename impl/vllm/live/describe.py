"""A configuration read off a live `KVCacheManager`, and why some cannot be followed."""

from __future__ import annotations

from typing import Any, NamedTuple

from slotproof.impl.group_checks import check_groups
from slotproof.impl.protocol import Config, Group, all_end_at, hashed_at_once

NO_LIMIT = 1 << 30
KINDS = ("FullAttentionManager", "SlidingWindowManager", "ChunkedLocalAttentionManager")


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
    groups = [_group(kind, g in coordinator.eagle_group_ids) for g, kind in enumerate(kinds)]
    in_flight = _max_in_flight_tokens(kinds, groups, manager.max_model_len)
    if in_flight is None:
        return Described(None, ("its windows are capped by different numbers of tokens in flight",))
    windows = any(group.sliding_window for group in groups)
    reprefillable = coordinator.num_reprefillable_tokens
    first = {name: getattr(groups[0], name) for name in Group.__struct_fields__}
    config = Config(
        **first,
        num_blocks=shape.num_blocks,
        groups=tuple(groups[1:]),
        max_model_len=manager.max_model_len,
        enable_caching=bool(manager.enable_caching),
        watermark_blocks=manager.watermark_blocks,
        max_in_flight_tokens=in_flight,
        num_prefill_lookahead=reprefillable + 1 if reprefillable else 0,
        retention_interval=coordinator.retention_interval if windows else None,
    )
    try:
        check_groups(config)
    except ValueError as error:
        return Described(None, (str(error),))
    unseen = []
    if not all(kind.records_new_block_ids for kind in kinds):
        unseen.append("the blocks to zero: it does not record them")
    if manager.enable_kv_cache_events:
        unseen.append("KV cache events")
    return Described(config, (), tuple(unseen))


def _group(kind: Any, is_eagle: bool) -> Group:
    return Group(
        block_size=kind.block_size,
        sliding_window=getattr(kind, "sliding_window", None),
        attention_chunk_size=getattr(kind, "attention_chunk_size", None),
        is_eagle=is_eagle,
        extra_retained_tokens=getattr(kind, "extra_retained_tokens", 0),
    )


def _of_the_coordinator(manager: Any) -> list[str]:
    coordinator = manager.coordinator
    sizes = [kind.block_size for kind in coordinator.single_type_managers]
    why = []
    if len(coordinator.block_pool.blocks) != manager.kv_cache_config.num_blocks:
        why.append("its pool has another number of blocks than its configuration")
    if getattr(coordinator, "enable_partial_hash_hits", False):
        why.append("hits may end inside a block")
    if coordinator.scheduler_block_size != all_end_at(sizes):
        why.append("hits end at other places than where a block of every group ends")
    if _drops_by_what_is_not_known(coordinator):
        why.append("of groups with equal blocks and windows, some alone have a draft head")
    if manager.enable_caching:
        unit = coordinator.block_pool.hash_block_size
        if unit != hashed_at_once(sizes):
            why.append("keys are of other units than the groups' block sizes have in common")
        if len(sizes) > 1 and any(
            type(kind).__name__ == "FullAttentionManager" and kind.block_size != unit
            for kind in coordinator.single_type_managers
        ):
            why.append("full attention with blocks of several units keys a prompt's partial last block")
    return why


def _drops_by_what_is_not_known(coordinator: Any) -> bool:
    """vLLM looks groups of one specification up together, draft heads or not. The model knows of these what a
    `Group` says: of groups that are equal in this, either all drop or none may."""
    drops: dict[Group, set[bool]] = {}
    for kind in coordinator.single_type_managers:
        if type(kind).__name__ in KINDS:
            drops.setdefault(_group(kind, False), set()).add(bool(kind.use_eagle))
    return any(len(of_equals) > 1 for of_equals in drops.values())


def _of_a_group(kind: Any) -> list[str]:
    name, why = type(kind).__name__, []
    if name not in KINDS:
        return [f"{name} is no kind of attention that the model has"]
    if kind.dcp_world_size * kind.pcp_world_size != 1:
        why.append("a block is spread over several workers (context parallelism)")
    if not kind.kv_cache_spec.prefix_cacheable:
        why.append("a group takes no part in prefix caching")
    return why


def _max_in_flight_tokens(kinds: Any, groups: list[Group], max_model_len: int) -> int | None:
    """The tokens in flight by which the caps of windows and chunks are what they are, as many as may be; None
    if there is no such number. A cap is all that vLLM keeps."""
    caps = [
        (kind.max_admission_blocks_per_request, group)
        for kind, group in zip(kinds, groups, strict=True)
        if group.sliding_window or group.attention_chunk_size
    ]

    def cap(group: Group, in_flight: int) -> int:
        tokens = min(_held(group) + in_flight, max_model_len)
        return -(-tokens // group.block_size) + (group.sliding_window is not None)

    found = NO_LIMIT
    for given, group in caps:
        if given is not None and given < cap(group, NO_LIMIT):
            blocks = given - (group.sliding_window is not None)
            found = min(found, blocks * group.block_size - _held(group))
    return found if all(cap(group, found) == given for given, group in caps) else None


def _held(group: Group) -> int:
    """Tokens that are held beside those in flight."""
    if group.sliding_window is not None:
        return group.sliding_window - 1 + group.extra_retained_tokens
    return group.attention_chunk_size or 0
