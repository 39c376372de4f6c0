"""The protocol of the gate on schedulers: four methods, and one that may be lacking.

A factory ``FACTORY(setup: Setup) -> GatedScheduler`` is all that a user supplies; `lacks`, an attribute of
it, names what the scheduler cannot do. Requests are small integers; blocks are integers
``0 .. num_blocks - 1``, of which block 0 is the null block.

When a request has all its tokens it has ended, and its blocks are the scheduler's again: nobody says so. An
answer to a step from before a preemption of its request is dropped.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput

CAPABILITIES = {
    "sliding_window": "engines with a sliding window",
    "prefix_caching": "engines whose blocks are found again",
    "salt": "requests with a cache salt",
    "lora": "requests with a LoRA",
    "skip_reading_prefix_cache": "requests that are not looked up",
    "priority": "engines under the priority policy",
    "chunked_prefill": "prompts that are longer than a step may be",
    "mixed_steps": "prompts and decodes in one step: what runs is not made to wait",
    "preemption": "running requests that lose their blocks to others",
    "drafts": "drafts that a step verifies",
    "lookahead": "slots that a draft model writes to",
    "steps_in_flight": "a step that is made up before the answer to the last one is known",
    "reset_prefix_cache": "the method `reset`",
}
"""What a scheduler may lack, by name: workloads do without it, and coverage does not ask for it. Nothing is
lacking unless the factory says so."""


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine and how it is run."""

    config: Config
    scheduler: SchedulerConfig
    steps_in_flight: int = 1
    """Steps scheduled before the answer of the first of them is known, at most."""
    has_connector: bool = False


class Arrival(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that comes."""

    request: int
    """Never used again."""
    tokens: tuple[int, ...]
    """Its prompt."""
    max_tokens: int
    """Tokens to sample: it ends when it has so many, or `max_model_len` in all."""
    salt: int = 0
    """Requests with different cache salts share no block; 0 is none."""
    lora: int = 0
    """As with salts; 0 is none."""
    priority: int = 0
    """Under the priority policy: smaller goes first, then who came earlier."""
    skip_reading_prefix_cache: bool = False


class GatedScheduler(Protocol):
    """A scheduler with its KV cache. What it raises is reported as a difference."""

    def add(self, arrival: Arrival) -> None:
        """A request arrives and waits."""
        ...

    def schedule(self) -> SchedulerOutput:
        """The next step. Nothing to do is a step without requests."""
        ...

    def answer(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has run; steps are answered in their order. Or, for a step without requests, loads have
        arrived."""
        ...

    def abort(self, request: int) -> None:
        """The request ends, whatever it is doing."""
        ...

    def reset(self, reset_running_requests: bool) -> bool:
        """Forget all cached blocks, if none is held; whether it was done.

        Args:
            reset_running_requests: Preempt all running requests first.
        """
        ...
