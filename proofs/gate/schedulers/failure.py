"""What a workload found: the calls up to it, the script that does it again, and whom it concerns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from slotproof.impl.protocol import Call
from slotproof.impl.scheduler.protocol import Setup
from slotproof.proofs.gate.schedulers.by_steps import BySteps
from slotproof.proofs.gate.schedulers.disagreement import Disagreement
from slotproof.proofs.gate.schedulers.history import history
from slotproof.proofs.gate.trial import Asked, Failure
from slotproof.proofs.output.text import call_line
from slotproof.proofs.traces.script import Abort, Add, Answer, Arrive, Drain, Event, Reset, Script, Step
from slotproof.proofs.traces.trace import Step as TraceStep
from slotproof.proofs.traces.trace import Trace

if TYPE_CHECKING:
    from slotproof.proofs.gate.schedulers.episode import Episode


class Told(NamedTuple):
    """A call of the manager, as the model tells it."""

    event: int
    """Which event of the script led to it."""
    step: int
    """Number of the step that is scheduled, or was last."""
    told: TraceStep

    @property
    def call(self) -> Call:
        return self.told.call


@dataclass(frozen=True, kw_only=True)
class ScheduleFailure(Failure):
    """A workload whose last event shows what should not be."""

    setup: Setup
    events: tuple[Event, ...]
    calls: tuple[Told, ...] = ()
    """The story, each with its event."""
    refused: Call | None = None
    """The call that the contract forbids, after the story."""
    where: str = ""
    """When it happened, in words."""
    history: str = ""
    """Of the request at fault, in a line."""
    is_of_contents: bool = False
    """The KV is not what it must be."""

    @classmethod
    def of(cls, episode: Episode, error: Disagreement, is_of_contents: bool = False) -> ScheduleFailure:
        """What an episode that just ended so has found."""
        return cls(
            config=episode.setup.config,
            story=[told.told for told in episode.told],
            differences=error.differences,
            setup=episode.setup,
            events=tuple(episode.script),
            calls=tuple(episode.told),
            refused=error.call if not episode.told or error.call is not episode.told[-1].call else None,
            where=_where(episode, error.call),
            history="" if error.request is None else history(episode, error.request),
            traceback=error.traceback,
            is_of_contents=is_of_contents,
            followed=episode.follower.initial if isinstance(episode.follower, BySteps) else None,
        )

    @property
    def call(self) -> Call | None:
        """The call that differed, if one did."""
        return self.refused or super().call

    @property
    def steps(self) -> int:
        """Steps that were scheduled."""
        return sum(isinstance(event, Step) for event in self.events)

    @property
    def never_finishes(self) -> bool:
        """A request does not."""
        return isinstance(self.events[-1], Drain)

    @property
    def kind(self) -> str:
        """What it is a failure of, whoever it concerns: one that is made small must remain so."""
        found = self.differences[0]
        named = found.got if found.field in ("scheduler", "contract") else ""
        return re.split(r"\d", found.field)[0] + re.sub(r"\d", "", named)

    def trace(self, asked: Asked | None = None) -> Trace:
        """The manager's calls, with the script."""
        asked = asked or Asked()
        script = Script(asked.scheduler, self.setup, self.events)
        return structs.replace(super().trace(asked), script=script, hidden=())


def _where(episode: Episode, call: Call | None) -> str:
    """Such as `at: allocate request=1 new=2, in step 3`."""
    when = f"in step {episode.oracle.step}"
    match episode.script[-1] if episode.script else None:
        case Add(arrival):
            when = f"when request {arrival.request} arrives"
        case Abort(request):
            when = f"when request {request} is aborted"
        case Reset():
            when = "when the prefix cache is reset"
        case Arrive(requests):
            when = f"when loads arrive, of {_requests(requests)}"
        case Answer():
            when = f"when a step is answered, after step {episode.oracle.step}"
    return when if call is None else f"at: {call_line(call)}, {when}"


def _requests(requests: Sequence[int]) -> str:
    return "request" + "s" * (len(requests) > 1) + " " + ", ".join(map(str, requests))
