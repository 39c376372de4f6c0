"""How to schedule."""

from __future__ import annotations

from enum import Enum

import msgspec


class SchedulingPolicy(Enum):
    """Who goes first, and who loses its blocks when they run out."""

    FCFS = "fcfs"
    """First come, first served; the request that was admitted last is preempted."""
    PRIORITY = "priority"
    """Smaller numbers first, then earlier arrivals; the last of the running in this order is preempted."""


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits and policy of a scheduler; the names are those of vLLM 0.32.0 where it has one."""

    policy: SchedulingPolicy = SchedulingPolicy.FCFS
    max_num_scheduled_tokens: int = 64
    """Tokens of a step, at most: longer prompts are cut into chunks."""
    long_prefill_token_threshold: int = 0
    """Tokens that one request may have in a step while there are others, at most; 0 for no such limit."""
    max_num_running_reqs: int = 16
    """Requests that run at once, at most."""
    num_spec_tokens: int = 0
    """Drafts that a request may have verified in a step."""
    num_lookahead_tokens: int = 0
    """Further slots that the drafter writes to."""
    scheduler_reserve_full_isl: bool = True
    """Whether a request is admitted only if all its tokens fit (`full_sequence_must_fit`)."""
    async_scheduling: bool = False
    """Whether a request gets its next step before the tokens of its last one are known."""
    unpublish: bool = True
    """Whether blocks of tokens that leave a step again lose their hashes. 0.32.0 leaves them published,
    and a later hit reads KV that nobody wrote."""
