"""What a scheduler was put through, event by event, with all that was left to choice, to be done again."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from slotproof.impl.scheduler.protocol import Arrival, Setup


class Add(Struct, frozen=True, tag="add", tag_field="event", forbid_unknown_fields=True):
    """A request comes."""

    arrival: Arrival


class Abort(Struct, frozen=True, tag="abort", tag_field="event", forbid_unknown_fields=True):
    """A request is aborted."""

    request: int


class Reset(Struct, frozen=True, tag="reset", tag_field="event", forbid_unknown_fields=True):
    """The prefix cache is reset."""

    reset_running_requests: bool = False


class Arrive(Struct, frozen=True, tag="arrive", tag_field="event", forbid_unknown_fields=True):
    """Asynchronous loads arrive."""

    requests: tuple[int, ...]


class Choice(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is chosen for one request in one step, as far as there is a choice."""

    request: int
    accepted: int = 0
    """Drafts that turn out right."""
    drafts: int = 0
    """Drafts that are proposed for its next step."""
    external: int = 0
    """Tokens that the connector has, after those of the prefix cache."""
    is_async: bool = False
    """These arrive later."""


class Step(Struct, frozen=True, tag="step", tag_field="event", forbid_unknown_fields=True):
    """A step is scheduled and run. Of a request that is not named, the defaults are chosen."""

    choices: tuple[Choice, ...] = ()


class Answer(Struct, frozen=True, tag="answer", tag_field="event", forbid_unknown_fields=True):
    """The oldest step in flight is answered."""


class Drain(Struct, frozen=True, tag="drain", tag_field="event", forbid_unknown_fields=True):
    """No more requests come, loads arrive at once, no draft is right: those that are there finish in so many
    steps."""

    steps: int


Event: TypeAlias = Add | Abort | Reset | Arrive | Step | Answer | Drain


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """All that a scheduler was given, from a fresh engine on."""

    scheduler: str
    """Which, as it was named to `slotproof gate`."""
    setup: Setup
    events: tuple[Event, ...]
