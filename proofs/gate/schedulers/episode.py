"""One workload on a fresh engine: a scheduler, KV that is really written, and what follows both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from random import Random
from typing import NamedTuple, TypeAlias

import torch

from slotproof.impl.device.content import ContentError, ContentOracle
from slotproof.impl.device.fingerprint import Fingerprints
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.device.model_runner import ModelRunner
from slotproof.impl.device.worker import Worker
from slotproof.impl.scheduler.connector import Connector, ConnectorStub, Match
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import GatedScheduler, Setup
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.proofs.gate.compare import Difference
from slotproof.proofs.gate.schedulers.by_calls import ByCalls
from slotproof.proofs.gate.schedulers.by_steps import BySteps
from slotproof.proofs.gate.schedulers.choices import Drawn, Given
from slotproof.proofs.gate.schedulers.coverage import Coverage
from slotproof.proofs.gate.schedulers.disagreement import Disagreement, answers
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure, Told
from slotproof.proofs.gate.schedulers.follower import Follower, View
from slotproof.proofs.gate.schedulers.work import Work
from slotproof.proofs.gate.schedulers.workload import Workload
from slotproof.proofs.traces.script import Abort, Add, Answer, Arrive, Drain, Event, Reset, Step
from slotproof.proofs.traces.trace import Step as TraceStep

_LAYERS, _DRAFT_LAYERS, _HEADS, _HEAD_SIZE = 2, 1, 2, 4
"""Of the KV cache, layers of the target model and of a draft model: 16 elements a slot and layer, which tell
contents apart."""

Make: TypeAlias = Callable[[Setup, Connector | None, Listener], GatedScheduler]
"""Makes a fresh scheduler, which shows the listener every call of its manager."""
MakeWorker: TypeAlias = Callable[[KVCache, int], Worker]


class InFlight(NamedTuple):
    """A step that has run, and whose answer is not known yet."""

    made: SchedulerOutput
    """As the scheduler made it up."""
    output: SchedulerOutput
    """As the worker was given it."""
    answer: ModelRunnerOutput


class Episode:
    """Events happen to a scheduler, and all of it is checked.

    Args:
        setup: The engine.
        make: Makes the scheduler.
        make_worker: Makes the worker from its KV cache and max_model_len.
        seed: The same seed draws the same workload.
        device: Where the KV cache lives, "cpu" or "cuda".
        dtype: Of its elements.
        known: Counts what KNOWN.md tells of the scheduler; None where that is no excuse.
        wanted: Rows of coverage that a drawn workload makes likely.
        lacks: Of a scheduler that shows no calls of a manager, what it cannot do; None for one that does.
        plain: Fields of arrivals that a drawn workload leaves as they are without.
    """

    def __init__(
        self,
        setup: Setup,
        make: Make,
        make_worker: MakeWorker = Worker,
        seed: int = 0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        known: Counter[str] | None = None,
        wanted: Collection[str] = (),
        lacks: Collection[str] | None = None,
        plain: Collection[str] = (),
    ) -> None:
        config, lookahead = setup.config, setup.scheduler.num_lookahead_tokens
        self.setup = setup
        self.steps = 0
        self.script: list[Event] = []
        """What has happened."""
        self.told: list[Told] = []
        """The manager's calls, each with the event that led to it."""
        self.outputs: dict[int, SchedulerOutput] = {}
        """The steps, by the event that led to them."""
        self.in_flight: list[InFlight] = []
        self.is_idle = False
        """The last step had nothing to do."""
        self.coverage = Coverage(setup)
        self.work = Work(setup, known, may_wait="mixed_steps" in (lacks or ()))
        self.follower: Follower = ByCalls(config, self) if lacks is None else BySteps(setup, self)
        self._workload = Workload(setup, Random(seed), wanted, (*(lacks or ()), *plain))
        self._choices: Drawn | Given = Given()
        draft_layers = _DRAFT_LAYERS if lookahead else 0
        layers = _LAYERS + draft_layers
        kv_cache = KVCache(
            num_layers=layers,
            num_blocks=config.num_blocks,
            block_size=max(group.block_size for group in config.all_groups),
            num_kv_heads=_HEADS,
            head_size=_HEAD_SIZE,
            dtype=dtype,
            device=device,
            num_draft_layers=draft_layers,
        )
        fingerprints = Fingerprints(layers, _HEADS, _HEAD_SIZE, dtype)
        self.oracle = ContentOracle(config, kv_cache, fingerprints, self.follower.initial)
        workers = [
            make_worker(kv_cache.of_group(group.block_size), config.max_model_len)
            for group in config.all_groups
        ]
        self.runner = ModelRunner(
            workers, self.oracle, self._choices, setup.scheduler.num_spec_tokens, lookahead
        )
        connector = ConnectorStub(self._match, config.scheduler_block_size) if setup.has_connector else None
        self.scheduler = make(setup, connector, self.follower.observe)

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        return self.follower.alive

    @property
    def loading(self) -> list[int]:
        """Requests whose load is under way, by the numbers that they arrived under."""
        return [self.follower.name(r) for r in self.runner.loading]

    @property
    def doing(self) -> dict[int, Hashable]:
        """What the requests are doing, by the numbers that they arrived under."""
        status, loading = self.follower.state.status, self.runner.loading
        return {self.follower.name(r): (status(r), r in loading) for r in self.alive}

    def run(self, steps: int, patience: int | None = None) -> ScheduleFailure | None:
        """A workload is drawn: so many steps with all that may happen, then, unless `patience` is None, at
        most so many more until every request has finished. The first failure ends it."""
        return self._play(self._workload.events(self, steps, patience), drawn=True)

    def play(self, events: Iterable[Event]) -> ScheduleFailure | None:
        """These events happen, those left out that cannot. The first failure ends it."""
        return self._play(events, drawn=False)

    def _play(self, events: Iterable[Event], drawn: bool) -> ScheduleFailure | None:
        try:
            for event in events:
                self.script.append(event)
                if isinstance(event, Step):
                    name = self.follower.name
                    self._choose(Drawn(self._workload, name) if drawn else Given(event.choices, name))
                try:
                    self._happen(event)
                finally:
                    if isinstance(self._choices, Drawn) and isinstance(event, Step):
                        self.script[-1] = Step(self._choices.made)
        except Disagreement as error:
            return ScheduleFailure.of(self, error)
        except ContentError as error:
            found = Difference(error.place, error.expected, f"{error.found} ({error.story})")
            return ScheduleFailure.of(self, Disagreement([found], request=error.request), is_of_contents=True)
        return None

    def _choose(self, choices: Drawn | Given) -> None:
        self._choices = self.runner.choices = choices

    def _match(self, request: int, most: int) -> Match:
        return self._choices.match(request, most)

    def _happen(self, event: Event) -> None:
        match event:
            case Add(arrival):
                self.work.arrives(arrival)
                self.follower.arrives(arrival)
                with answers():
                    self.scheduler.add(arrival)
            case Abort(name):
                for request in [r for r in self.alive if self.follower.name(r) == name]:
                    self.coverage.abort(request, self.follower.state, self.runner)
                    with answers():
                        self.scheduler.abort(request)
                    self.follower.aborted(request)
            case Reset(reset_running_requests):
                running = reset_running_requests and not self.runner.loading
                self.coverage.reset(running, self.follower.state, self.alive)
                with answers():
                    self.scheduler.reset(running)
            case Arrive(requests):
                self._arrive([r for r in self.runner.loading if self.follower.name(r) in requests])
            case Step():
                while len(self.in_flight) >= self.setup.steps_in_flight:
                    self._answer()
                self._step()
            case Answer():
                if self.in_flight:
                    self._answer()
            case Drain(steps):
                self._drain(steps)

    def _step(self) -> None:
        """Schedule a step and run it."""
        self.coverage.step_begins()
        self.work.step_begins(self.alive, self.follower.state)
        self.oracle.step = self.steps + 1
        with answers():
            output = self.scheduler.schedule()
        self.steps += 1
        if not isinstance(output, SchedulerOutput):
            found = Difference("the step", "a SchedulerOutput", f"a {type(output).__name__}")
            raise Disagreement([found])
        made, output = output, self.follower.scheduled(output)
        self.outputs[len(self.script) - 1] = output
        self.is_idle = not output.scheduled
        for r, difference in self.work.withheld(output, self.follower.state, self.follower.has_slots):
            raise Disagreement([difference], request=r)
        self.in_flight.append(InFlight(made, output, self.runner.execute(output)))
        self.coverage.step(output, self.runner, len(self.in_flight))
        self.oracle.check()

    def _answer(self) -> None:
        made, output, answer = self.in_flight.pop(0)
        self.coverage.answer(output, self.follower.state)
        due = self.work.due(answer, self.follower.state)
        with answers():
            self.scheduler.answer(made, answer)
        self.follower.answered(output, answer)
        for r, difference in self.work.lost(due, self.follower.state):
            raise Disagreement([difference], request=r)

    def _arrive(self, requests: list[int]) -> None:
        if requests:
            answer = self.runner.arrive(requests)
            nothing = SchedulerOutput(self.steps, (), (), (), (), (), ())
            self.coverage.arrive(requests)
            with answers():
                self.scheduler.answer(nothing, answer)

    def _drain(self, steps: int) -> None:
        self._choose(Given())
        for _ in self._left(steps):
            self._arrive(list(self.runner.loading))
            self._step()
            while len(self.in_flight) > (0 if self.is_idle else self.setup.steps_in_flight - 1):
                self._answer()

    def _left(self, steps: int) -> Iterator[int]:
        """Steps, until every request has finished."""
        done = 0
        while self.alive or self.in_flight:
            if done == steps:
                left = ", ".join(map(str, self.alive))
                found = Difference("progress", "every request to finish", f"these that do not: {left}")
                raise Disagreement([found], request=self.alive[0] if self.alive else None)
            yield done
            done += 1

    def tell(self, step: TraceStep) -> None:
        """See `Audience`."""
        self.told.append(Told(len(self.script) - 1, self.oracle.step, step))

    def saw(self, step: TraceStep, before: View, rows: list[str]) -> None:
        """See `Audience`."""
        self.oracle.observe(step.call, step.result, step.state)
        self.coverage.call(step, before, rows)
        self.work.call(step.call, step.result)
