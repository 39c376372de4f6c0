"""The gate on whole schedulers: random workloads, real KV, and the model beside every call of the manager."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

import torch

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.device.content import ContentError, ContentOracle
from slotproof.impl.device.fingerprint import Fingerprints
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.device.model_runner import ModelRunner
from slotproof.impl.device.worker import Worker
from slotproof.impl.protocol import Call, Result, Snapshot, TakeNewBlockIds
from slotproof.impl.scheduler.connector import Connector, ConnectorStub
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.model.language.state import UNKNOWN
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    expected_snapshot,
    list_difference,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.gate import Progress, Report, interruptible
from slotproof.proofs.gate.oracle import Expectation, expect
from slotproof.proofs.gate.schedulers.coverage import Coverage, schedule_rows
from slotproof.proofs.gate.schedulers.work import Work
from slotproof.proofs.gate.schedulers.workload import LIVE_REQUESTS, Setup, Workload, setups
from slotproof.proofs.gate.trial import Failure
from slotproof.proofs.output.words import counted, error_line

EPISODE = 120
"""Steps of one workload, before no more requests come and those that are there may finish."""
PATIENCE = 4000
"""Steps in which the requests that are there must have finished."""
_LAYERS, _DRAFT_LAYERS, _HEADS, _HEAD_SIZE = 2, 1, 2, 4
"""Of the KV cache, layers of the target model and of a draft model: 16 elements a slot and layer, which tell
contents apart."""


class SchedulerUnderTest(Protocol):
    """A scheduler with its KV-cache manager. Ids are never reused."""

    def add_request(
        self,
        request_id: int,
        tokens: tuple[int, ...],
        *,
        max_tokens: int,
        salt: int,
        lora: int,
        priority: int,
        skip_reading_prefix_cache: bool,
    ) -> None:
        """A request arrives."""
        ...

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        ...

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step's answer; in the order of the steps."""
        ...

    def finish_requests(self, request_ids: tuple[int, ...]) -> None:
        """Abort requests, whatever they are doing."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        """Forget all cached blocks; whether it was done."""
        ...


Make: TypeAlias = Callable[[Setup, Connector | None, Listener], SchedulerUnderTest]
"""Makes a fresh scheduler, which shows the listener every call of its manager."""
MakeWorker: TypeAlias = Callable[[KVCache, int], Worker]


def torch_scheduler(setup: Setup, connector: Connector | None, listener: Listener) -> Scheduler:
    """Our scheduler over our manager."""
    manager = Recording(TorchAllocator(setup.config), listener)
    return Scheduler(setup.config, setup.scheduler, manager, connector)


@dataclass
class ScheduleReport(Report):
    """What a gate on a scheduler has done and found."""

    steps: int = 0

    @property
    def extent(self) -> str:
        done = f"{counted(self.steps, 'step')}, {counted(self.calls, 'call')}"
        return f"{done} in {counted(self.sequences, 'workload')}"


class _Disagreement(Exception):
    """The manager, the contents or the scheduler are not as they should be."""

    def __init__(self, differences: list[Difference]) -> None:
        super().__init__(differences[0].line)
        self.differences = differences


@contextmanager
def _answers() -> Iterator[None]:
    """A scheduler that raises disagrees."""
    try:
        yield
    except (_Disagreement, ContentError):
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = error_line(error)
        if said == type(error).__name__:
            said += f" in {where.name}, {Path(where.filename).name}:{where.lineno}"
        text = f"raised {said}"
        raise _Disagreement([Difference("scheduler", "an answer", text)]) from error


def campaign(
    make: Make = torch_scheduler,
    *,
    steps: int,
    seed: int = 0,
    device: str = "cpu",
    make_worker: MakeWorker = Worker,
    engines: tuple[Setup, ...] | None = None,
    known: Counter[str] | None = None,
    progress: Progress = lambda report: None,
) -> ScheduleReport:
    """Workload after workload, until `steps` steps have been scheduled. The first failure ends it.

    Args:
        make: makes the scheduler.
        steps: steps in all.
        seed: the same seed draws the same workloads.
        device: where the KV cache lives, "cpu" or "cuda".
        make_worker: makes the worker from its KV cache and max_model_len.
        engines: the engines to take turns; `setups(seed)` if not given.
        known: counts work that is withheld as KNOWN.md tells of it; None where that is no excuse.
        progress: sees the report after every workload.
    """
    engines = setups(seed) if engines is None else engines
    report = ScheduleReport(required=schedule_rows(engines))
    start = time.monotonic()
    with interruptible(report):
        while report.steps < steps and report.failure is None:
            setup = engines[report.sequences % len(engines)]
            of = seed * 1_000_003 + report.sequences
            episode = Episode(setup, make, make_worker, of, device, known=known)
            report.failure = episode.run(min(EPISODE, steps - report.steps))
            report.steps += episode.steps
            report.calls += len(episode.story)
            report.sequences += 1
            report.coverage.update(episode.coverage.rows)
            progress(report)
    report.seconds = time.monotonic() - start
    return report


class Episode:
    """One workload on a fresh engine."""

    def __init__(
        self,
        setup: Setup,
        make: Make,
        make_worker: MakeWorker,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        known: Counter[str] | None = None,
    ) -> None:
        random = Random(seed)
        config = setup.config
        self.setup = setup
        self.workload = Workload(setup, random)
        self.model = Running(**model_config(config))
        self.story: list[Expectation] = []
        self.steps = 0
        self.coverage = Coverage(setup)
        self.work = Work(setup, known)
        self._keys = KeyMatch()
        lookahead = setup.scheduler.num_lookahead_tokens
        draft_layers = _DRAFT_LAYERS if lookahead else 0
        layers = _LAYERS + draft_layers
        kv_cache = KVCache(
            num_layers=layers,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            num_kv_heads=_HEADS,
            head_size=_HEAD_SIZE,
            dtype=dtype,
            device=device,
            num_draft_layers=draft_layers,
        )
        fingerprints = Fingerprints(layers, _HEADS, _HEAD_SIZE, dtype)
        self.oracle = ContentOracle(config, kv_cache, fingerprints, expected_snapshot(self.model))
        worker = make_worker(kv_cache, config.max_model_len)
        self.runner = ModelRunner(worker, self.oracle, random, setup.scheduler.num_spec_tokens, lookahead)
        connector = ConnectorStub(self.workload.match, config.block_size) if setup.has_connector else None
        self.scheduler = make(setup, connector, self._observe)
        self._in_flight: list[tuple[SchedulerOutput, ModelRunnerOutput]] = []
        self._to_zero: tuple[int, ...] = ()
        self._num_requests = 0

    def run(self, steps: int) -> Failure | None:
        """So many steps with all that may happen, then until every request has finished."""
        try:
            for _ in range(steps):
                self._disturb()
                self.step()
            while self.alive or self._in_flight:
                if self.steps > steps + PATIENCE:
                    raise _Disagreement([Difference("progress", "every request to finish", str(self.alive))])
                self._arrivals()
                self.step()
        except _Disagreement as error:
            return Failure(self.setup.config, [e.step for e in self.story], error.differences)
        except ContentError as error:
            found = Difference(error.place, error.expected, f"{error.found} ({error.story})")
            return Failure(self.setup.config, [e.step for e in self.story], [found])
        return None

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        return [r for r in self.model.requests if self.model.state.status(r) != UNKNOWN]

    def step(self) -> None:
        """Schedule a step, run it, and answer some that are in flight."""
        self.coverage.step_begins()
        self.work.step_begins(self.alive, self.model.state)
        self.oracle.step = self.steps + 1
        with _answers():
            output = self.scheduler.schedule()
        self.steps += 1
        if output.new_block_ids_to_zero != self._to_zero:
            found = list_difference("blocks to zero", self._to_zero, output.new_block_ids_to_zero)
            raise _Disagreement([found])
        if withheld := self.work.withheld(output, self.model.state):
            raise _Disagreement(withheld)
        self._in_flight.append((output, self.runner.execute(output)))
        self.coverage.step(output, self.runner, len(self._in_flight))
        self.oracle.check()
        most = self.setup.steps_in_flight - 1 if output.scheduled else 0
        while len(self._in_flight) > most or (self._in_flight and self.workload.one_in(4)):
            self._answer()

    def _answer(self) -> None:
        output, answer = self._in_flight.pop(0)
        self.coverage.answer(output, self.model.state)
        due = self.work.due(answer, self.model.state)
        with _answers():
            self.scheduler.update_from_output(output, answer)
        if lost := list(self.work.lost(due, self.model.state)):
            raise _Disagreement(lost)

    def _disturb(self) -> None:
        """Between two steps: loads arrive, requests come and are aborted, the prefix cache is reset."""
        workload = self.workload
        self._arrivals()
        while len(self.alive) < LIVE_REQUESTS and workload.one_in(2.5):
            arrival = workload.arrival()
            self.work.arrives(self._num_requests, arrival)
            with _answers():
                self.scheduler.add_request(self._num_requests, **vars(arrival))
            self._num_requests += 1
        if self.alive and workload.one_in(10):
            status, loading = self.model.state.status, self.runner.loading
            request = workload.abort({r: (status(r), r in loading) for r in self.alive})
            self.coverage.abort(request, self.model.state, self.runner)
            with _answers():
                self.scheduler.finish_requests((request,))
        if workload.one_in(40):
            reset_running = workload.one_in(2) and not self.runner.loading
            self.coverage.reset(reset_running, self.model.state, self.alive)
            with _answers():
                self.scheduler.reset_prefix_cache(reset_running)

    def _arrivals(self) -> None:
        arrived = [request for request in self.runner.loading if self.workload.one_in(4)]
        if arrived:
            answer = self.runner.arrive(arrived)
            nothing = SchedulerOutput(self.steps, (), (), (), (), (), ())
            self.coverage.arrive(arrived)
            with _answers():
                self.scheduler.update_from_output(nothing, answer)

    def _observe(self, call: Call, result: Result, snapshot: Snapshot) -> None:
        """The manager has been called: the model takes the same call."""
        try:
            e = expect(self.model, call)
        except ContractError as error:
            raise _Disagreement([Difference("contract", "a call that it allows", str(error))]) from None
        self.story.append(e)
        found = result_differences(Strictness.EXACT, e.result, result)
        found += snapshot_differences(Strictness.EXACT, e.snapshot, snapshot, self._keys)
        if found:
            raise _Disagreement(found)
        if isinstance(call, TakeNewBlockIds):
            self._to_zero = result.new_blocks
        self.oracle.observe(call, result, snapshot)
        self.coverage.call(e)
        self.work.call(call, result)
