"""What follows a scheduler, and knows what is true of its requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slotproof.impl.protocol import Call, Result, Snapshot
from slotproof.impl.scheduler.protocol import Arrival
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.proofs.traces.trace import Step


class View(Protocol):
    """What is true of requests: functions of a request's number. The model's `State` is one."""

    @property
    def status(self) -> Callable[[Any], Any]:
        """A status of `model/language/state.py`."""
        ...

    @property
    def num_tokens(self) -> Callable[[Any], Any]:
        """Final tokens."""
        ...

    @property
    def computed(self) -> Callable[[Any], Any]:
        """Tokens that are computed, those in flight included."""
        ...

    @property
    def in_flight(self) -> Callable[[Any], Any]:
        """Tokens in flight."""
        ...


class Audience(Protocol):
    """Is told what happens to the manager, or what a scheduler's steps amount to, as the protocol's calls."""

    def tell(self, step: Step) -> None:
        """A call, as the story has it."""
        ...

    def saw(self, step: Step, before: View, rows: list[str]) -> None:
        """It was as it should be. `rows` are those of coverage that the model reached by it."""
        ...


class Follower(Protocol):
    """Each method is called when it has happened, but for `arrives`."""

    initial: Snapshot
    """The state before the first call."""

    @property
    def state(self) -> View:
        """What is true of the requests now."""
        ...

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        ...

    def name(self, request: int) -> int:
        """The number under which it arrived: a scheduler may have one end and come again under another."""
        ...

    def has_slots(self, request: int, tokens: int) -> bool:
        """Whether a request has slots for so many tokens, in every group."""
        ...

    def blocks(self, request: int) -> tuple[int, ...]:
        """Its blocks, group after group."""
        ...

    def observe(self, call: Call, result: Result, snapshot: Snapshot) -> None:
        """The manager has been called, if the scheduler shows that."""
        ...

    def arrives(self, arrival: Arrival) -> None:
        """A request is about to come."""
        ...

    def scheduled(self, output: SchedulerOutput) -> SchedulerOutput:
        """A step has been made up; it, with all that the worker needs."""
        ...

    def answered(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has been answered."""
        ...

    def aborted(self, request: int) -> None:
        """A request has been aborted."""
        ...
