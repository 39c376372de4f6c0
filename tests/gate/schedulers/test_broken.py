"""Break the device side, or what a scheduler owes it: the content oracle tells each time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.device.kv_cache import slot_mapping
from slotproof.impl.device.worker import Batch, Span, Worker
from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.gated import TorchScheduler
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy
from slotproof.impl.scheduler.scheduler_output import Load, ModelRunnerOutput, SchedulerOutput
from slotproof.impl.scheduler.scheduler_request import SchedulerRequest
from slotproof.proofs.gate.schedulers.gate import campaign
from slotproof.proofs.gate.trial import Failure

PLAIN = Setup(
    Config(num_blocks=12, block_size=4, max_model_len=40),
    SchedulerConfig(max_num_scheduled_tokens=24, scheduler_reserve_full_isl=False),
)
PRIORITY = Setup(
    Config(num_blocks=14, block_size=2, max_model_len=20),
    SchedulerConfig(
        policy=SchedulingPolicy.PRIORITY,
        max_num_scheduled_tokens=24,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
    ),
)
ASYNC = Setup(
    Config(num_blocks=16, block_size=4, max_model_len=40),
    SchedulerConfig(max_num_scheduled_tokens=24, num_spec_tokens=2, async_scheduling=True),
    steps_in_flight=2,
)
DRAFT_MODEL = structs.replace(
    ASYNC, scheduler=structs.replace(ASYNC.scheduler, num_lookahead_tokens=2), has_connector=True
)
LOADS = structs.replace(PLAIN, has_connector=True)
STEPS = 1500


class SkipsZeroing(Worker):
    def zero(self, output: SchedulerOutput) -> None:
        pass


class ZeroesLast(Worker):
    """Zeroes after it has written."""

    def execute(self, output: SchedulerOutput, *args: Any) -> None:
        zero, self.zero = self.zero, lambda output: None  # type: ignore[method-assign]
        super().execute(output, *args)
        self.zero = zero  # type: ignore[method-assign]
        self.zero(output)


class ZeroesTheNextBlockToo(Worker):
    def zero(self, output: SchedulerOutput) -> None:
        super().zero(output)
        for block in output.new_block_ids_to_zero[-1:]:
            self.kv_cache.fill(torch.tensor([(block + 1) % self.kv_cache.tensor.shape[2]]))


class ScribblesOnTheNullBlock(Worker):
    def zero(self, output: SchedulerOutput) -> None:
        super().zero(output)
        self.kv_cache.fill(torch.tensor([0]), 7)


class IsOffByOneSlot(Worker):
    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        return (super().slot_mapping(batch) + 1) % (self.kv_cache.tensor[0, 0, :, :, 0, 0].numel())


class IsOffByOneEntry(Worker):
    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        last = batch.block_table.shape[1] - 1
        rolled = batch.block_table[:, torch.arange(1, last + 2).clamp(max=last)]
        return slot_mapping(rolled, batch.rows, batch.positions, self.kv_cache.block_size)


class HasTheWrongBlockSize(Worker):
    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        wrong = self.kv_cache.block_size + 1
        slots = slot_mapping(batch.block_table, batch.rows, batch.positions, wrong)
        return slots % self.kv_cache.tensor[0, 0, :, :, 0, 0].numel()


class MixesUpRows(Worker):
    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        rows = batch.rows.flip(0)
        return slot_mapping(batch.block_table, rows, batch.positions, self.kv_cache.block_size)


class HasAStaleBlockTable(Worker):
    """New blocks of running requests never reach the device."""

    def update_states(self, output: SchedulerOutput) -> None:
        mark = self.block_table.mark
        self.block_table.mark = lambda row, start, end: mark(row, 0, end if start == 0 else 0)  # type: ignore[method-assign]
        super().update_states(output)
        self.block_table.mark = mark  # type: ignore[method-assign]


class KeepsTheRowOfThePreempted(Worker):
    """A request that comes back has its old table, and its new one behind it."""

    def update_states(self, output: SchedulerOutput) -> None:
        again = [s for s in output.scheduled if s.tokens is not None and s.request in self._tables]
        for scheduled in again:
            row, blocks = self._tables[scheduled.request]
            blocks.extend(scheduled.new_blocks)
            self.block_table.mark(row, 0, len(blocks))
        others = tuple(s for s in output.scheduled if s not in again)
        super().update_states(structs.replace(output, preempted=(), scheduled=others))


class BelievesTheScheduler(Worker):
    """Starts where the scheduler thought, though drafts have been rejected since."""

    def execute(self, output: SchedulerOutput, starts: Sequence[int], *args: Any) -> None:
        super().execute(output, [s.num_computed_tokens for s in output.scheduled], *args)


class WritesOneLayer(Worker):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        write = self.kv_cache.write
        self.kv_cache.write = lambda layer, *of: write(0, *of) if layer == 0 else None  # type: ignore[method-assign]


class SwapsKeysAndValues(Worker):
    def execute(self, output: SchedulerOutput, starts: Any, key_values: torch.Tensor, *args: Any) -> None:
        super().execute(output, starts, key_values.flip(1), *args)


class DropsTheLastToken(Worker):
    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        slots = super().slot_mapping(batch)
        return torch.cat([slots[:-1], slots[-1:] * 0])


class RunsAStepLate(Worker):
    """The blocks of a step have been given away before it ran."""

    late: tuple[Any, ...] | None = None

    def execute(self, *args: Any) -> None:
        now, self.late = self.late, args
        if now is not None:
            super().execute(*now)


class LoadsNothing(Worker):
    def load(self, load: Load, key_values: torch.Tensor) -> None:
        pass


class LoadsBackwards(Worker):
    def load(self, load: Load, key_values: torch.Tensor) -> None:
        super().load(load, key_values.flip(2))


class LoadsBeforeZeroing(Worker):
    """A synchronous load is there before its blocks are zeroed."""

    def execute(self, *args: Any) -> None:
        output, starts, key_values, loaded, attend = args
        for load, brought in loaded:
            self.load(load, brought)
        super().execute(output, starts, key_values, (), attend)


class DraftsNothing(Worker):
    def draft(self, spans: Sequence[Span], key_values: torch.Tensor) -> None:
        pass


class DraftsASlotLate(Worker):
    def draft(self, spans: Sequence[Span], key_values: torch.Tensor) -> None:
        end = self.block_table.tensor.shape[1] * self.kv_cache.block_size - 1
        late = [Span(span.request, min(span.start + 1, end), min(span.end + 1, end)) for span in spans]
        count = sum(span.end - span.start for span in late)
        super().draft(late, key_values[:, :, :count])


class DraftsIntoTheTarget(Worker):
    """The drafter takes the target model's layers for its own."""

    def draft(self, spans: Sequence[Span], key_values: torch.Tensor) -> None:
        slots = self.slot_mapping(self.prepare_batch(spans))
        for layer in self.kv_cache.target_layers:
            self.kv_cache.write(layer, slots, key_values[layer])


class LoadsNothingForTheDrafter(Worker):
    def load(self, load: Load, key_values: torch.Tensor) -> None:
        first = self.kv_cache.draft_layers.start
        before = self.kv_cache.bits[first:].clone()
        super().load(load, key_values)
        self.kv_cache.bits[first:] = before


WORKERS: list[tuple[type[Worker], Setup]] = [
    (SkipsZeroing, PLAIN),
    (ZeroesLast, PLAIN),
    (ZeroesTheNextBlockToo, PLAIN),
    (ScribblesOnTheNullBlock, PLAIN),
    (IsOffByOneSlot, PLAIN),
    (IsOffByOneEntry, PLAIN),
    (HasTheWrongBlockSize, PLAIN),
    (MixesUpRows, PLAIN),
    (HasAStaleBlockTable, PLAIN),
    (KeepsTheRowOfThePreempted, PLAIN),
    (BelievesTheScheduler, ASYNC),
    (WritesOneLayer, PLAIN),
    (SwapsKeysAndValues, PLAIN),
    (DropsTheLastToken, PLAIN),
    (RunsAStepLate, PLAIN),
    (LoadsNothing, LOADS),
    (LoadsBackwards, LOADS),
    (LoadsBeforeZeroing, LOADS),
    (DraftsNothing, DRAFT_MODEL),
    (DraftsASlotLate, DRAFT_MODEL),
    (DraftsIntoTheTarget, DRAFT_MODEL),
    (LoadsNothingForTheDrafter, DRAFT_MODEL),
]


@pytest.mark.parametrize("setup", [PLAIN, PRIORITY, ASYNC, DRAFT_MODEL, LOADS])
def test_nothing_is_found_where_nothing_is_broken(setup: Setup) -> None:
    assert campaign(steps=200, seed=3, engines=(setup,)).failure is None


def failure(setup: Setup, seed: int = 3, **how: Any) -> Failure:
    report = campaign(steps=STEPS, seed=seed, engines=(setup,), **how)
    assert report.failure is not None, "nothing was noticed"
    return report.failure


@pytest.mark.parametrize(("worker", "setup"), WORKERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_worker_is_found(worker: type[Worker], setup: Setup) -> None:
    found = failure(setup, make_worker=worker)
    (story,) = found.differences
    assert story.field.startswith("slot "), story.line
    assert "step " in story.got or "nothing has happened" in story.got, story.line


class KeepsTheVictimInTheStep(Scheduler):
    """A request that is preempted after it was scheduled still runs: its blocks are free before it does."""

    def _preempt_lowest(self, step: Any) -> SchedulerRequest:
        scheduled = dict(step.scheduled)
        victim = super()._preempt_lowest(step)
        if victim.request_id in scheduled:
            step.scheduled[victim.request_id] = scheduled[victim.request_id]
            self._preempted.remove(victim.request_id)
        return victim


class Forgetful(Scheduler):
    """Is told of loads of requests that it no longer knows."""

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        known = tuple(request for request in answer.finished_recving if request in self.requests)
        super().update_from_output(output, ModelRunnerOutput(answer.sampled, answer.num_drafts, known))


class FreesTheBlocksOfALoad(Forgetful):
    """A request that is aborted while its load is under way loses its blocks at once."""

    def finish_requests(self, request_ids: Any) -> None:
        self._finished_recving.update(request_ids)
        super().finish_requests(request_ids)


class SchedulesBeforeTheLoadArrives(Forgetful):
    def _is_ready(self, request: SchedulerRequest) -> bool:
        self._finished_recving.add(request.request_id)
        return super()._is_ready(request)


class Withholds(Scheduler):
    """The last of several running requests is passed over."""

    def _schedule_running(self, step: Any) -> bool:
        last = self.running.pop() if len(self.running) > 1 else None
        preempted = super()._schedule_running(step)
        if last is not None:
            self.running.append(last)
        return preempted


class LosesATokenOfEachAnswer(Scheduler):
    """What the last of several accepted drafts brought does not reach its request."""

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        fewer = {request: tokens[:1] for request, tokens in answer.sampled.items()}
        super().update_from_output(output, structs.replace(answer, sampled=fewer))


class EndsATokenEarly(Scheduler):
    def add_request(self, request_id: int, tokens: Any, **how: Any) -> None:
        fewer = max(1, how.pop("max_tokens") - 1)
        super().add_request(request_id, tokens, max_tokens=fewer, **how)


SCHEDULERS: list[tuple[type[Scheduler], Setup]] = [
    (KeepsTheVictimInTheStep, PRIORITY),
    (FreesTheBlocksOfALoad, LOADS),
    (SchedulesBeforeTheLoadArrives, LOADS),
]


def making(scheduler: type[Scheduler]) -> Callable[[Setup, Connector | None, Listener], TorchScheduler]:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        manager = Recording(TorchAllocator(setup.config), listener)
        return TorchScheduler(scheduler(setup.config, setup.scheduler, manager, connector))

    return make


@pytest.mark.parametrize(("scheduler", "setup"), SCHEDULERS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_scheduler_that_is_too_early_is_found(scheduler: type[Scheduler], setup: Setup) -> None:
    found = failure(setup, make=making(scheduler))
    assert found.differences[0].field.startswith(("slot ", "enough-slots: ")), found.differences[0].line


@pytest.mark.parametrize("is_async", [False, True])
def test_a_scheduler_that_asks_for_no_lookahead_is_found(is_async: bool) -> None:
    """The drafter of the engine writes where no slot was asked for."""
    limits = structs.replace(DRAFT_MODEL.scheduler, async_scheduling=is_async)

    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        manager = Recording(TorchAllocator(setup.config), listener)
        without = structs.replace(setup.scheduler, num_lookahead_tokens=0)
        return TorchScheduler(Scheduler(setup.config, without, manager, connector))

    (story,) = failure(structs.replace(DRAFT_MODEL, scheduler=limits), make=make).differences
    assert re.match(r"enough-slots: request \d+ has (\d+) slots, \d+ are written", story.line), story.line
    assert story.got.endswith(": drafted)")


def test_what_leaves_a_step_must_be_unpublished() -> None:
    """As 0.32.0 has it, a request preempted by the pass that scheduled it leaves hashes of unwritten KV."""
    never = structs.replace(PRIORITY.scheduler, unpublish=False)
    (story,) = failure(structs.replace(PRIORITY, scheduler=never), seed=4).differences
    assert "held by nobody" in story.field
    assert "published with positions" in story.got
    assert "released by preempt" in story.got


OWED: list[tuple[type[Scheduler], Setup, str]] = [
    (
        Withholds,
        PLAIN,
        r"work-withheld: expected request \d+ in the step, got none: it has \d+ tokens? of budget",
    ),
    (
        LosesATokenOfEachAnswer,
        ASYNC,
        r"work-lost: expected request \d+ to have \d+ tokens, got \d+: what was",
    ),
    (EndsATokenEarly, PLAIN, r"work-lost: expected request \d+ to have \d+ tokens, got \d+: "),
]


@pytest.mark.parametrize(
    ("scheduler", "setup", "line"), OWED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_scheduler_that_owes_its_requests_is_found(
    scheduler: type[Scheduler], setup: Setup, line: str
) -> None:
    found = failure(setup, make=making(scheduler)).differences[0].line
    assert re.match(line, found), found
