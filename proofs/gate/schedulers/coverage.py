"""What workloads have put a scheduler through: a row for everything worth having seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from slotproof.impl.device.model_runner import ModelRunner
from slotproof.impl.protocol import Allocate, CacheBlocks, EvictBlocks, Preempt
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler_config import SchedulingPolicy
from slotproof.impl.scheduler.scheduler_output import SchedulerOutput
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, UNKNOWN, WAITING
from slotproof.proofs.gate.coverage import NEEDS
from slotproof.proofs.gate.schedulers.follower import View
from slotproof.proofs.gate.schedulers.workload import MAX_DRAFTS, MAX_STEPS_IN_FLIGHT
from slotproof.proofs.traces.trace import Step

_CALL_ROWS = (
    "engine: full attention",
    "engine: sliding window",
    "engine: 2 attention groups",
    "engine: 3 attention groups",
    "engine: 4 attention groups",
    "groups: a hit of all groups",
    "groups: the first group's hit is longer than the common one",
    "groups: a full block past the last common end is not published",
    "engine: prefix caching on",
    "engine: prefix caching off",
    "granted: a chunk of a prompt",
    "granted: beside a step in flight",
    "refused: waiting",
    "refused: running",
    "refused: preempted",
    "refused: stage 0",
    "refused: stage 2, by the watermark alone",
    "refused: stage 2, by reserved blocks alone",
    "stage 1: a window releases hashed blocks",
    "stage 2: lookahead crosses a boundary",
    "stage 3: an idle hit",
    "stage 3: a held hit",
    "stage 3: a hit behind null blocks",
    "stage 3: a hit for a preempted request",
    "stage 3: a pop evicts a hash",
    "stage 4: drafts fill a block that is not published",
    "cache: two blocks with one key",
    "cache: a lookup is skipped",
    "cache: a LoRA of the same name has these tokens",
    "external: at once",
    "external: on top of a hit",
    "external: delayed",
    "external: blocks not to be zeroed",
    "external: a load is published",
    "remove_skipped: releases blocks",
    "reset: done, with hashes to drop",
    "reset: refused",
)
"""Rows of the gate on allocators that count here too: they are told by the calls."""
_POLICIES = tuple(policy.value for policy in SchedulingPolicy)
_STATUS = {WAITING: "waiting", LOADING: "loading", RUNNING: "running", PREEMPTED: "preempted"}

Possible = Callable[[Setup], bool]


def _has_draft_model(setup: Setup) -> bool:
    return setup.scheduler.num_lookahead_tokens > 0


_ROWS: dict[str, Possible] = {
    **{row: lambda _: True for row in _CALL_ROWS},
    **{f"preempted: {policy}": lambda _: True for policy in _POLICIES},
    "preempted: the request that asks": lambda _: True,
    "preempted: a request with a step in flight": lambda s: s.steps_in_flight > 1,
    "preempted: a request with a sampled token in flight": lambda s: s.steps_in_flight > 1,
    "preempted: a request that the step had already": lambda _: True,
    "preempted: what it would have written is unpublished": lambda s: s.scheduler.unpublish,
    **{
        f"drafts: {accepted} of {drafts} accepted": lambda s: s.scheduler.num_spec_tokens > 0
        for drafts in range(1, MAX_DRAFTS + 1)
        for accepted in range(drafts + 1)
    },
    "drafter: writes a block that the step does not reach": _has_draft_model,
    "drafter: stops at max_model_len": _has_draft_model,
    **{f"steps in flight: {n}": lambda s: s.steps_in_flight > 1 for n in range(1, MAX_STEPS_IN_FLIGHT + 1)},
    "hit: a block published in the same step": lambda s: s.config.enable_caching,
    **{f"aborted: {status}": lambda _: True for status in _STATUS.values()},
    "aborted: with a step in flight": lambda s: s.steps_in_flight > 1,
    "aborted: loaded, and not yet scheduled": lambda s: s.has_connector,
    "answer: of a request that was preempted since": lambda s: s.steps_in_flight > 1,
    "answer: of a request that has ended": lambda s: s.steps_in_flight > 1,
    "load: synchronous": lambda s: s.has_connector,
    "load: asynchronous": lambda s: s.has_connector,
    "load: two at once": lambda s: s.has_connector,
    "load: arrives for a request that was aborted": lambda s: s.has_connector,
    "reset: running requests are preempted, no step in flight": lambda _: True,
    "reset: running requests are preempted, with a step in flight": lambda s: s.steps_in_flight > 1,
}


_STEP_ROWS: dict[str, Possible] = {
    "admitted: with a hit": lambda s: s.config.enable_caching,
    "admitted: again, after a preemption": lambda _: True,
    "admitted: with a chunk of the prompt": lambda _: True,
    "engine: sliding window": lambda s: s.config.sliding_window is not None,
}
"""Rows of schedulers that show no calls, beside those of `_ROWS` that their steps tell."""
_LACKING = {
    "preemption": (
        "preempted: ",
        "admitted: again",
        "aborted: preempted",
        "answer: of a request that was p",
        "reset",
    ),
    "chunked_prefill": ("admitted: with a chunk",),
    "reset_prefix_cache": ("reset: ",),
}
"""By what is lacking, beginnings of rows that are then not asked for; what engines lack is told by these."""
_TOLD_BY_CALLS = (
    "preempted: the request that asks",
    "preempted: a request that the step had already",
    "preempted: what it would have written is unpublished",
    "hit: a block published in the same step",
    "aborted: loading",
)


def schedule_rows(setups: Iterable[Setup], lacks: frozenset[str] = frozenset()) -> list[str]:
    """The rows that can be reached under at least one of the setups, without what a manager lacks
    (`impl/capabilities.py`)."""
    setups = tuple(setups)
    return [
        row
        for row, possible in _ROWS.items()
        if lacks.isdisjoint(NEEDS.get(row, ())) and any(map(possible, setups))
    ]


def step_rows(setups: Iterable[Setup], lacks: Collection[str]) -> list[str]:
    """Those of a scheduler that shows no calls, and lacks something."""
    setups = tuple(setups)
    told = {row: p for row, p in _ROWS.items() if row not in _CALL_ROWS and row not in _TOLD_BY_CALLS}
    told |= _STEP_ROWS
    left_out = [beginning for name in lacks for beginning in _LACKING.get(name, ())]
    if "preemption" in lacks:
        left_out.append("reset: ")
    policies = {setup.scheduler.policy.value for setup in setups}  # a scheduler may know one alone
    left_out += [f"preempted: {policy}" for policy in _POLICIES if policy not in policies]
    return [row for row, p in told.items() if not row.startswith(tuple(left_out)) and any(map(p, setups))]


class Coverage:
    """Counts rows. States are the model's."""

    def __init__(self, setup: Setup) -> None:
        self.rows: Counter[str] = Counter()
        self._setup = setup
        self._hashes: tuple[bytes | int | None, ...] = (None,) * setup.config.num_blocks
        self._granted: set[int] = set()
        self._published: set[int] = set()
        self._refused: int | None = None
        self._aborted: set[int] = set()
        self._preemptions: Counter[int] = Counter()

    def step_begins(self) -> None:
        """A step is about to be scheduled."""
        self._published.clear()

    def call(self, step: Step, before: View, rows: Iterable[str]) -> None:
        """The manager has been called. `rows` are those that the model reached."""
        call, result = step.call, step.result
        self.rows.update(row for row in rows if row in _ROWS or row in _STEP_ROWS)
        if isinstance(call, Preempt):
            self._preempted(call.request, before)
        elif isinstance(call, EvictBlocks):
            self.rows["preempted: what it would have written is unpublished"] += 1
        elif isinstance(call, Allocate):
            self._refused = None if result.granted else call.request
            if result.granted:
                if self._published & set(result.hits):
                    self.rows["hit: a block published in the same step"] += 1
                self._granted.add(call.request)
        old, self._hashes = self._hashes, step.state.hashes
        if isinstance(call, Allocate | CacheBlocks):
            self._published |= {b for b, key in enumerate(self._hashes) if key is not None and key != old[b]}

    def _preempted(self, request: int, before: View) -> None:
        self._preemptions[request] += 1
        self.rows[f"preempted: {self._setup.scheduler.policy.value}"] += 1
        if request == self._refused:
            self.rows["preempted: the request that asks"] += 1
        if request in self._granted:
            self.rows["preempted: a request that the step had already"] += 1
        elif before.in_flight(request) > 0:
            self.rows["preempted: a request with a step in flight"] += 1
            if before.computed(request) >= before.num_tokens(request):
                self.rows["preempted: a request with a sampled token in flight"] += 1

    def step(self, output: SchedulerOutput, runner: ModelRunner, in_flight: int) -> None:
        """A step has run."""
        self._granted.clear()
        self.rows[f"steps in flight: {in_flight}"] += 1
        self.rows.update(f"drafts: {accepted} of {drafts} accepted" for drafts, accepted in runner.accepted)
        self._drafted(output, runner)
        self.rows.update(f"load: {'a' if load.is_async else ''}synchronous" for load in output.loads)
        if len(runner.loading) > 1:
            self.rows["load: two at once"] += 1

    def _drafted(self, output: SchedulerOutput, runner: ModelRunner) -> None:
        block_size, most = self._setup.config.block_size, self._setup.config.max_model_len
        for scheduled, span in zip(output.scheduled, runner.drafted, strict=bool(runner.drafted)):
            last = span.start + scheduled.num_scheduled_tokens - 1
            if (span.end - 1) // block_size > last // block_size:
                self.rows["drafter: writes a block that the step does not reach"] += 1
            if span.end == most:
                self.rows["drafter: stops at max_model_len"] += 1

    def answer(self, output: SchedulerOutput, s: View) -> None:
        """A step is about to be answered."""
        for scheduled in output.scheduled:
            if s.status(scheduled.request) == UNKNOWN:
                self.rows["answer: of a request that has ended"] += 1
            elif self._preemptions[scheduled.request] > scheduled.num_preemptions:
                self.rows["answer: of a request that was preempted since"] += 1

    def abort(self, request: int, s: View, runner: ModelRunner) -> None:
        """A request is about to be aborted."""
        status = s.status(request)
        if status == LOADING and request not in runner.loading:
            self.rows["aborted: loaded, and not yet scheduled"] += 1
        elif status == LOADING:
            self._aborted.add(request)
        self.rows[f"aborted: {_STATUS[status]}"] += 1
        if s.in_flight(request) > 0:
            self.rows["aborted: with a step in flight"] += 1

    def arrive(self, requests: list[int]) -> None:
        """Loads have arrived."""
        self.rows["load: arrives for a request that was aborted"] += len(self._aborted & set(requests))

    def reset(self, reset_running_requests: bool, s: View, alive: Iterable[int]) -> None:
        """The prefix cache is about to be reset."""
        running = [r for r in alive if s.status(r) == RUNNING]
        if reset_running_requests and running:
            in_flight = any(s.in_flight(r) > 0 for r in running)
            steps = "with a step" if in_flight else "no step"
            self.rows[f"reset: running requests are preempted, {steps} in flight"] += 1
