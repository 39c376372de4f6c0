"""What one step is: the scheduler's record of it for the worker, and the worker's answer."""

from __future__ import annotations

import msgspec
from msgspec import structs


class ScheduledRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request's part of a step."""

    request: int
    num_preemptions: int = 0
    """How often it had been preempted: an answer to an earlier life of the request is stale."""
    num_computed_tokens: int = 0
    """Tokens before this step's, as far as the scheduler knows: drafts of steps in flight count as kept,
    and a worker that knows better starts earlier."""
    num_scheduled_tokens: int = 0
    num_draft_tokens: int = 0
    """The last so many of the scheduled tokens are drafts."""
    new_blocks: tuple[int, ...] = ()
    """Blocks at the end of its block table in the first group; the whole table when `tokens` is given."""
    tokens: tuple[int, ...] | None = None
    """All its final tokens, when the worker does not know it: it is new, or was preempted."""
    more_blocks: tuple[tuple[int, ...], ...] = ()
    """As `new_blocks`, of the groups after the first."""
    table: tuple[int, ...] | None = None
    """Its whole block table, 0 for what a window has left, from a scheduler that does not tell what is new:
    then the gate fills in the preemptions, new blocks and tokens."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """External tokens that a connector brings: positions `start` to `end` of the first group's block table
    `blocks`, and of those in `more_blocks` of the groups after it."""

    request: int
    start: int
    end: int
    blocks: tuple[int, ...]
    is_async: bool
    """It arrives after this step, while the request waits; otherwise it is there before the step reads."""
    more_blocks: tuple[tuple[int, ...], ...] = ()

    def of_group(self, group: int) -> Load:
        """What one group is brought, as if it were the first."""
        return self if group == 0 else structs.replace(self, blocks=self.more_blocks[group - 1])


class SchedulerOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step, in the order in which the worker carries it out.

    The names are those of vLLM 0.32.0's record where it has one.
    """

    step: int = 0
    finished: tuple[int, ...] = ()
    """Requests that ended since the last step."""
    preempted: tuple[int, ...] = ()
    """Requests that lost their blocks since the last step; they may be scheduled again in this one."""
    new_block_ids_to_zero: tuple[int, ...] = ()
    kv_cache_block_copies: tuple[tuple[int, int], ...] = ()
    """Source and destination of copy-on-write copies, which come after zeroing. Attention alone has none:
    its hits are whole blocks (0.32.0)."""
    loads: tuple[Load, ...] = ()
    scheduled: tuple[ScheduledRequest, ...] = ()

    @property
    def num_scheduled_tokens(self) -> int:
        """Tokens of all requests in this step."""
        return sum(s.num_scheduled_tokens for s in self.scheduled)

    def of_group(self, group: int) -> SchedulerOutput:
        """What one group's worker has to do, as if it were the first; that one zeroes and copies for all."""
        if group == 0:
            return self
        scheduled = [structs.replace(s, new_blocks=s.more_blocks[group - 1]) for s in self.scheduled]
        return structs.replace(
            self,
            new_block_ids_to_zero=(),
            kv_cache_block_copies=(),
            loads=tuple(load.of_group(group) for load in self.loads),
            scheduled=tuple(scheduled),
        )


class ModelRunnerOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker answers to a step."""

    sampled: dict[int, tuple[int, ...]] = {}
    """Tokens by request: the drafts that were accepted, and one more. None for a chunk of a prompt."""
    num_drafts: dict[int, int] = {}
    """How many tokens the drafter proposes for the request's next step."""
    finished_recving: tuple[int, ...] = ()
    """Requests whose asynchronous load has arrived."""
