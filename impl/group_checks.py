"""What the attention groups of a configuration may be, whoever implements them."""

from __future__ import annotations

from collections.abc import Iterator

from slotproof.impl.protocol import Config, Group


def check_groups(config: Config) -> None:
    """Raises ValueError, one line that names the group and the field, for groups that no engine can have, or
    that vLLM 0.32.0 refuses."""
    for g, group in enumerate(config.all_groups):
        for field, reason in _wrong(config, group):
            raise ValueError(f"group {g}: {field} is {getattr(group, field)}: {reason}")
    for field, reason in _wrong_together(config):
        raise ValueError(f"{field} is {getattr(config, field)}: {reason}")
    windows = {
        (group.block_size, group.sliding_window, group.extra_retained_tokens)
        for group in config.all_groups
        if group.is_eagle and group.sliding_window is not None
    }
    if len(windows) > 1:
        g = max(g for g, group in enumerate(config.all_groups) if group.is_eagle and group.sliding_window)
        raise ValueError(f"group {g}: is_eagle is True: windows of one kind may drop a block, not of several")


def _wrong(config: Config, group: Group) -> Iterator[tuple[str, str]]:
    for field in ("block_size", "sliding_window", "attention_chunk_size"):
        if (value := getattr(group, field)) is not None and value < 1:
            yield field, "it must be at least 1"
    if group.extra_retained_tokens < 0:
        yield "extra_retained_tokens", "it must be at least 0"
    if group.extra_retained_tokens and group.sliding_window is None:
        yield "extra_retained_tokens", "only a window retains tokens before it"
    if (chunk := group.attention_chunk_size) is None:
        return
    if group.sliding_window is not None:
        yield "attention_chunk_size", "a group has a window or chunks, not both"
    if chunk % group.block_size:
        yield "attention_chunk_size", f"it must be a multiple of block_size, {group.block_size}"
    if group.is_eagle:
        yield "is_eagle", "a group with chunks drops no block"
    unit = config.scheduler_block_size
    if config.enable_caching and group.block_size != unit:
        yield "block_size", f"with chunks it must be that on which all groups agree, {unit}"


def _wrong_together(config: Config) -> Iterator[tuple[str, str]]:
    every, lookahead = config.retention_interval, config.num_prefill_lookahead
    drops = any(group.is_eagle for group in config.all_groups)
    if lookahead < 0:
        yield "num_prefill_lookahead", "it must be at least 0"
    if lookahead > 1 and not drops:
        yield "num_prefill_lookahead", "it is for draft heads, and no group is_eagle"
    unit = config.scheduler_block_size
    if drops and config.enable_caching and lookahead > unit:
        yield "num_prefill_lookahead", f"it must be at most {unit}, where blocks of all groups end"
    if every is None:
        return
    if every < 0 or every % unit:
        yield "retention_interval", f"it must be 0 or a multiple of {unit}, where blocks of all groups end"
    if every and not any(group.sliding_window for group in config.all_groups):
        yield "retention_interval", "no group has a window that it could be for"
