"""The gate on whole schedulers: random workloads, real KV, and the model beside every call of the manager."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.device.worker import Worker
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.gated import TorchScheduler
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.proofs.gate.explain import behaving
from slotproof.proofs.gate.gate import Progress, Report, interruptible
from slotproof.proofs.gate.schedulers.coverage import schedule_rows, step_rows
from slotproof.proofs.gate.schedulers.episode import Episode, Make, MakeWorker
from slotproof.proofs.gate.schedulers.explain import explain, left_plain
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure
from slotproof.proofs.gate.schedulers.shrink import STUCK, Effort, Events, Try, shrink
from slotproof.proofs.gate.schedulers.workload import setups
from slotproof.proofs.gate.trial import Asked
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.words import counted

EPISODE = 120
"""Steps of one workload, before no more requests come and those that are there may finish."""
PATIENCE = 4000
"""Steps in which the requests that are there must have finished."""
SHRINK_STEPS = 5000
"""Steps that are spent on making a failing workload smaller, about 20 CPU seconds."""


OURS = Asked(scheduler="torch-scheduler")


def torch_scheduler(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
    """Our scheduler over our manager."""
    manager = Recording(TorchAllocator(setup.config), listener)
    return TorchScheduler(Scheduler(setup.config, setup.scheduler, manager, connector))


@dataclass
class ScheduleReport(Report):
    """What a gate on a scheduler has done and found."""

    steps: int = 0

    @property
    def extent(self) -> str:
        done = f"{counted(self.steps, 'step')}, {counted(self.calls, 'call')}"
        return f"{done} in {counted(self.sequences, 'workload')}"


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
    asked: Asked = OURS,
    by_steps: bool = False,
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
        asked: what is gated, and what it lacks. Of a release, a failure that a missing rule explains is a
            finding, and the campaign goes on without the rule.
        by_steps: whether it is followed by its steps, as one that shows no calls of its manager.
    """
    engines = setups(seed) if engines is None else engines
    lacks = asked.lacks if by_steps else None

    def rows(*engines: Setup) -> list[str]:
        return schedule_rows(engines, asked.lacks) if lacks is None else step_rows(engines, lacks)

    report = ScheduleReport(required=rows(*engines), asked=asked)
    possible = [frozenset(rows(setup)) for setup in engines]
    turns = [0] * len(engines)
    missing: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    start = time.monotonic()
    with interruptible(report):
        while report.steps < steps and report.failure is None:
            # In its second half a campaign turns to what it has not seen yet, and where that can be.
            wanted = frozenset(report.uncovered if report.steps >= steps // 2 else ())
            able = [n for n, rows in enumerate(possible) if rows & wanted] or list(range(len(engines)))
            turn = min(able, key=lambda n: turns[n])
            turns[turn] += 1
            config = behaving(engines[turn].config, missing)
            setup = structs.replace(engines[turn], config=config)
            of = seed * 1_000_003 + report.sequences
            episode = Episode(
                setup,
                make,
                make_worker,
                of,
                device,
                known=known,
                wanted=wanted,
                lacks=lacks,
                plain=plain,
            )
            failure = episode.run(min(EPISODE, steps - report.steps), PATIENCE)
            report.steps += episode.steps
            report.calls += len(episode.told)
            report.sequences += 1
            report.coverage.update(episode.coverage.rows)
            progress(report)
            if failure is not None:
                report.failure = failure
                report.failure = failure = _small(failure, make, make_worker, of, device, known, lacks)
                allowed = None if known is None else Counter[str]()
                attempt = again(make, make_worker, device, allowed)
                found = explain(failure, attempt) if asked.release else None
                if found is not None:
                    report.findings.append(found)
                    report.failure = None
                    missing += found.names
                    plain += left_plain(found)
    if report.findings and report.failure is None and not report.interrupted:
        report.failure = report.findings[0].failure
    report.seconds = time.monotonic() - start
    return report


def _small(
    failure: ScheduleFailure,
    make: Make,
    make_worker: MakeWorker,
    seed: int,
    device: str,
    known: Counter[str] | None,
    lacks: frozenset[str] | None,
) -> ScheduleFailure:
    """The failure, made small; what is counted meanwhile is forgotten."""
    so_far = Counter(known)
    effort = Effort(SHRINK_STEPS)

    def draw(steps: int, number: int) -> ScheduleFailure | None:
        seed_of_it = seed + (number << 40)
        episode = Episode(failure.setup, make, make_worker, seed_of_it, device, known=known, lacks=lacks)
        found = episode.run(steps, STUCK if failure.never_finishes else None)
        effort.steps -= episode.steps
        return found

    attempt = again(make, make_worker, device, known, lacks, effort)
    try:
        return shrink(failure, attempt, draw, effort)
    finally:
        if known is not None:
            known.clear()
            known.update(so_far)


def again(
    make: Make,
    make_worker: MakeWorker = Worker,
    device: str = "cpu",
    known: Counter[str] | None = None,
    lacks: frozenset[str] | None = None,
    effort: Effort | None = None,
) -> Try:
    """Lets events happen on a fresh engine; on one that cannot be had, nothing fails. It spends effort."""

    def attempt(setup: Setup, events: Events) -> ScheduleFailure | None:
        try:
            episode = Episode(setup, make, make_worker, device=device, known=known, lacks=lacks)
        except (ValueError, UserError):
            return None
        found = episode.play(events)
        if effort is not None:
            effort.steps -= episode.steps
        return found

    return attempt
