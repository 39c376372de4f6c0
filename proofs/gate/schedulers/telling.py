"""A workload told line by line: what happened, and the calls that the scheduler made of its manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slotproof.impl.scheduler.scheduler_output import SchedulerOutput
from slotproof.proofs.gate.schedulers.by_steps import BySteps
from slotproof.proofs.output.text import call_line, result_line
from slotproof.proofs.output.words import counted
from slotproof.proofs.traces.script import Abort, Add, Answer, Arrive, Drain, Event, Reset, Step

if TYPE_CHECKING:
    from slotproof.proofs.gate.schedulers.episode import Episode
    from slotproof.proofs.gate.schedulers.failure import ScheduleFailure


def lines(episode: Episode, failure: ScheduleFailure | None) -> Iterator[str]:
    """Event by event; the call that the contract forbids, if there is one, comes last."""
    number, calls = 0, list(episode.told)
    shows_calls = not isinstance(episode.follower, BySteps)
    for index, event in enumerate(episode.script):
        yield _event_line(event, episode.outputs.get(index))
        while number < len(calls) and calls[number].event == index:
            told = calls[number].told
            number += 1
            answer = result_line(told.call, told.result)
            free = f" (free {len(told.state.free_queue)})" * shows_calls
            yield f"{number:6}. {call_line(told.call)} -> {answer}{free}"
    if failure is not None and failure.refused is not None:
        yield f"{number + 1:6}. {call_line(failure.refused)}"


def _event_line(event: Event, output: SchedulerOutput | None) -> str:
    match event:
        case Add(arrival):
            tags = [f"{name} {getattr(arrival, name)}" for name in ("salt", "lora", "priority")]
            told = [tag for tag in tags if not tag.endswith(" 0")]
            told += ["not looked up"] * arrival.skip_reading_prefix_cache
            tokens = " ".join(map(str, arrival.tokens))
            comes = f"request {arrival.request} arrives with tokens {tokens}, {arrival.max_tokens} to sample"
            return ", ".join([comes, *told])
        case Abort(request):
            return f"request {request} is aborted"
        case Reset(running):
            return "the prefix cache is reset" + ", running requests are preempted" * running
        case Arrive(requests):
            return f"loads arrive: of request {', '.join(map(str, requests))}"
        case Answer():
            return "the oldest step in flight is answered"
        case Drain(steps):
            return f"nothing more comes, and {counted(steps, 'step')} may follow"
        case Step(choices):
            chosen = []
            for choice in choices:
                if choice.external:
                    when = "later" if choice.is_async else "at once"
                    chosen.append(f"{choice.external} tokens to load {when} for request {choice.request}")
                if choice.accepted:
                    chosen.append(f"{counted(choice.accepted, 'draft')} of request {choice.request} right")
                if choice.drafts:
                    chosen.append(f"{counted(choice.drafts, 'draft')} proposed for request {choice.request}")
            return "; ".join([_step(output), *chosen])


def _step(output: SchedulerOutput | None) -> str:
    if output is None:
        return "a step is scheduled"
    parts = [
        f"request {s.request}: {counted(s.num_scheduled_tokens, 'token')}"
        + (f", {counted(s.num_draft_tokens, 'draft')} of them" if s.num_draft_tokens else "")
        for s in output.scheduled
    ]
    return f"step {output.step}: {', '.join(parts) or 'nothing to do'}"
