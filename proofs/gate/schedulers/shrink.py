"""A failing workload, made small: fewer requests, fewer steps, simpler requests, as long as it fails so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec import structs

from slotproof.impl.scheduler.protocol import Arrival, Setup
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure
from slotproof.proofs.traces.script import Abort, Add, Arrive, Drain, Event, Step

Events = tuple[Event, ...]
Try = Callable[[Setup, Events], ScheduleFailure | None]
"""Lets events happen on a fresh engine."""

Draw = Callable[[int, int], ScheduleFailure | None]
"""Draws a workload of so many steps, the nth of them, on a fresh engine like the one that failed."""

STUCK = 200
"""Steps in which few requests have finished, or never do."""
_DRAWN = 40
"""Workloads of each length that are drawn in the hope of a short one that fails."""


@dataclass
class Effort:
    """What may still be spent. Steps are counted, not seconds: the same failure becomes as small anywhere."""

    steps: int

    @property
    def is_spent(self) -> bool:
        return self.steps <= 0


def shrink(failure: ScheduleFailure, attempt: Try, draw: Draw, effort: Effort) -> ScheduleFailure:
    """The smallest that is found with so much effort, which `attempt` and `draw` spend: a short one that is
    drawn, or this one without all that it does not need."""
    if effort.is_spent:
        return failure
    search = _Search(_shorter(failure, draw, effort), attempt, effort)
    search.run()
    return search.failure


def _shorter(failure: ScheduleFailure, draw: Draw, effort: Effort) -> ScheduleFailure:
    half = effort.steps // 2
    length = 2
    while 2 * length < failure.steps:
        for number in range(_DRAWN):
            if effort.steps <= half:
                return failure
            found = draw(length, number)
            if found is not None and found.kind == failure.kind:
                return found
        length *= 2
    return failure


class _Search:
    def __init__(self, failure: ScheduleFailure, attempt: Try, effort: Effort) -> None:
        self.failure = failure
        self._attempt = attempt
        self._effort = effort

    def run(self) -> None:
        """Pass after pass, as long as one helps."""
        self._first_that_fails(_stuck_earlier(self.failure.events))
        before: Events = ()
        while before != self.failure.events and not self._effort.is_spent:
            before = self.failure.events
            self._without_parts(_requests, _without_requests)
            self._without_parts(lambda events: list(range(len(events) - 1)), _without_events)
            self._simpler()
        numbers = {name: number for number, name in enumerate(_requests(self.failure.events))}
        renumbered = _renumbered(self.failure.events, numbers)
        if renumbered != self.failure.events:  # however much effort is left
            self._keeps(renumbered, self.failure.setup)

    def _fails(self, events: Events, setup: Setup | None = None) -> bool:
        """Whether these fail in the same way, and are kept."""
        setup = setup or self.failure.setup
        if self._effort.is_spent or (events, setup) == (self.failure.events, self.failure.setup):
            return False
        return self._keeps(events, setup)

    def _keeps(self, events: Events, setup: Setup) -> bool:
        found = self._attempt(setup, events)
        if found is None or found.kind != self.failure.kind:
            return False
        self.failure = found
        return True

    def _first_that_fails(self, candidates: Iterable[Events]) -> bool:
        return any(self._fails(events) for events in candidates)

    def _without_parts(
        self, parts_of: Callable[[Events], list[int]], without: Callable[[Events, set[int]], Events]
    ) -> None:
        """Leave out parts: half of them at once, at last one by one."""
        parts = parts_of(self.failure.events)
        size = max(1, len(parts) // 2)
        end = len(parts)  # what came last is the nearest to the failure, and what came first the easiest lost
        while parts and not self._effort.is_spent:
            start = max(0, end - size)
            if self._fails(without(self.failure.events, set(parts[start:end]))):
                parts = parts_of(self.failure.events)
                end = min(start, len(parts))
            else:
                end = start
            if end == 0:
                if size == 1:
                    return
                size, end = size // 2, len(parts)

    def _simpler(self) -> None:
        while any(self._fails(self.failure.events, s) for s in _simpler_setups(self.failure.setup)):
            pass
        self._fails(tuple(Step() if isinstance(e, Step) else e for e in self.failure.events))
        for index in range(len(self.failure.events)):
            while self._first_that_fails(_simpler_at(self.failure.events, index)):
                pass


def _stuck_earlier(events: Events) -> Iterator[Events]:
    """Where requests never finish, what came first may do as well."""
    if events and isinstance(events[-1], Drain):
        length = 2
        while length < len(events):
            yield *events[:length], Drain(STUCK)
            length *= 2


def _requests(events: Events) -> list[int]:
    return [event.arrival.request for event in events if isinstance(event, Add)]


def _without_requests(events: Events, names: set[int]) -> Events:
    """As if these had never come."""
    left: list[Event] = []
    for event in events:
        match event:
            case Add(arrival) if arrival.request in names:
                continue
            case Abort(request) if request in names:
                continue
            case Arrive(requests) if names.issuperset(requests):
                continue
            case Arrive(requests):
                event = Arrive(tuple(r for r in requests if r not in names))
            case Step(choices):
                event = Step(tuple(choice for choice in choices if choice.request not in names))
        left.append(event)
    return tuple(left)


def _without_events(events: Events, indices: set[int]) -> Events:
    return tuple(event for index, event in enumerate(events) if index not in indices)


def _renumbered(events: Events, numbers: dict[int, int]) -> Events:
    def rename(event: Event) -> Event:
        match event:
            case Add(arrival):
                return Add(structs.replace(arrival, request=numbers[arrival.request]))
            case Abort(request):
                return Abort(numbers.get(request, request))
            case Arrive(requests):
                return Arrive(tuple(numbers.get(r, r) for r in requests))
            case Step(choices):
                named = (structs.replace(c, request=numbers.get(c.request, c.request)) for c in choices)
                return Step(tuple(named))
        return event

    return tuple(rename(event) for event in events)


def _simpler_at(events: Events, index: int) -> Iterator[Events]:
    """One event made simpler."""
    if index >= len(events):
        return
    event = events[index]
    simpler: Iterable[Event] = ()
    if isinstance(event, Add):
        simpler = map(Add, _simpler_arrivals(event.arrival))
    elif isinstance(event, Step) and event.choices:
        n = len(event.choices)
        simpler = (Step(event.choices[:i] + event.choices[i + 1 :]) for i in range(n))
    for one in simpler:
        yield *events[:index], one, *events[index + 1 :]


def _simpler_arrivals(arrival: Arrival) -> Iterator[Arrival]:
    plain = Arrival(arrival.request, arrival.tokens, arrival.max_tokens)
    for name in ("salt", "lora", "priority", "skip_reading_prefix_cache"):
        default = getattr(plain, name)
        if getattr(arrival, name) != default:
            yield structs.replace(arrival, **{name: default})
    for most in dict.fromkeys((1, arrival.max_tokens // 2, arrival.max_tokens - 1)):
        if 1 <= most < arrival.max_tokens:
            yield structs.replace(arrival, max_tokens=most)
    for length in dict.fromkeys((1, len(arrival.tokens) // 2, len(arrival.tokens) - 1)):
        if 1 <= length < len(arrival.tokens):
            yield structs.replace(arrival, tokens=arrival.tokens[:length])
    if set(arrival.tokens) != {1}:
        yield structs.replace(arrival, tokens=(1,) * len(arrival.tokens))


def _simpler_setups(setup: Setup) -> Iterator[Setup]:
    config, scheduler = setup.config, setup.scheduler
    if setup.has_connector:
        yield structs.replace(setup, has_connector=False)
    if config.watermark_blocks:
        yield structs.replace(setup, config=structs.replace(config, watermark_blocks=0))
    for name in ("long_prefill_token_threshold", "scheduler_reserve_full_isl"):
        if getattr(scheduler, name):
            default = type(getattr(scheduler, name))()
            yield structs.replace(setup, scheduler=structs.replace(scheduler, **{name: default}))
