"""Schedulers of other releases: what they do otherwise without harm, and what a missing rule explains."""

from __future__ import annotations

import pytest
from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.protocol import AddRequest, Allocate, Call, Result
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.gated import TorchScheduler
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_output import Load, SchedulerOutput
from slotproof.proofs.gate.gate import Verdict
from slotproof.proofs.gate.schedulers.coverage import schedule_rows
from slotproof.proofs.gate.schedulers.episode import Make
from slotproof.proofs.gate.schedulers.gate import ScheduleReport, campaign
from slotproof.proofs.gate.schedulers.workload import setups
from slotproof.proofs.gate.trial import Asked

LOADS = tuple(setup for setup in setups(0) if setup.has_connector)


class ListsLoads(Recording):
    """vLLM before 0.32.0: a load's blocks are listed for zeroing."""

    def step(self, call: Call) -> Result:
        return super().step(structs.replace(call, skip_zeroing=False) if isinstance(call, Allocate) else call)


class LeavesOut(Scheduler):
    """And its scheduler leaves out blocks of the step's loads."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        loads = [load for load in output.loads if load.is_async]
        left_out = {block for load in loads for block in self.blocks_of(load)}
        zeroed = tuple(block for block in output.new_block_ids_to_zero if block not in left_out)
        return structs.replace(output, new_block_ids_to_zero=zeroed)

    def blocks_of(self, load: Load) -> tuple[int, ...]:
        tables = zip((load.blocks, *load.more_blocks), self.config.all_groups, strict=True)
        return tuple(
            block
            for table, group in tables
            for block in table[load.start // group.block_size : -(-load.end // group.block_size)]
        )


class LeavesOutMore(LeavesOut):
    """One that leaves out what no load writes, too."""

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        zeroed = output.new_block_ids_to_zero[1:] if output.loads else output.new_block_ids_to_zero
        return structs.replace(output, new_block_ids_to_zero=zeroed)


def older(scheduler: type[Scheduler]) -> Make:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        manager = ListsLoads(TorchAllocator(setup.config), listener)
        return TorchScheduler(scheduler(setup.config, setup.scheduler, manager, connector))

    return make


def test_what_a_load_writes_need_not_be_zeroed() -> None:
    report = campaign(older(LeavesOut), steps=400, engines=LOADS)
    assert report.failure is None
    assert report.coverage["load: asynchronous"]


def test_what_it_does_not_write_must_be() -> None:
    report = campaign(older(LeavesOutMore), steps=400, engines=LOADS)
    assert report.failure is not None
    assert report.failure.differences[0].field == "blocks to zero"


def test_a_manager_that_cannot_leave_a_load_out_is_not_asked_to() -> None:
    row = "external: blocks not to be zeroed"
    assert row in schedule_rows(LOADS)
    assert row not in schedule_rows(LOADS, frozenset({"skip_zeroing"}))


def of_release(manager: type[TorchAllocator], release: str = "0.28.0", steps: int = 150) -> ScheduleReport:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        recording = Recording(manager(setup.config), listener)
        return TorchScheduler(Scheduler(setup.config, setup.scheduler, recording, connector))

    asked = Asked(scheduler="torch-scheduler", release=release)
    return campaign(make, steps=steps, asked=asked, engines=setups(0)[:1])


class PaysNothing(TorchAllocator):
    """Without `watermark_on_admission`."""

    def step(self, call: Call) -> Result:
        return super().step(
            structs.replace(call, has_scheduled=False) if isinstance(call, Allocate) else call
        )


class OneLora(TorchAllocator):
    """Without `key_covers_lora_path` (vllm#30931)."""

    def step(self, call: Call) -> Result:
        one = isinstance(call, AddRequest) and call.lora == 2
        return super().step(structs.replace(call, lora=1) if one else call)


@pytest.mark.parametrize(
    ("manager", "rule"), [(PaysNothing, "watermark_on_admission"), (OneLora, "key_covers_lora_path")]
)
def test_a_missing_rule_is_named_and_the_gate_goes_on(
    manager: type[TorchAllocator], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproof.proofs.gate.schedulers.gate.SHRINK_STEPS", 500)
    report = of_release(manager)
    assert [finding.names for finding in report.findings] == [(rule,)]
    assert report.explained
    assert report.verdict is Verdict.DISAGREES
    assert report.steps >= 150


def test_only_a_release_is_explained() -> None:
    report = of_release(PaysNothing, release="")
    assert (report.findings, report.verdict) == ([], Verdict.DISAGREES)
    assert report.steps < 150
