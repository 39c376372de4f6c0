"""The gate on whole schedulers, and what it runs on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.device.worker import Worker
from slotproof.impl.protocol import Call, Config, Result, TakeNewBlockIds
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.gated import TorchScheduler
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_output import SchedulerOutput
from slotproof.proofs.cli.main import run
from slotproof.proofs.gate.gate import Verdict
from slotproof.proofs.gate.schedulers.coverage import schedule_rows
from slotproof.proofs.gate.schedulers.episode import Episode, Make
from slotproof.proofs.gate.schedulers.gate import campaign, torch_scheduler
from slotproof.proofs.gate.schedulers.workload import setups


def making(scheduler: type[Scheduler] = Scheduler, manager: type[TorchAllocator] = TorchAllocator) -> Make:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        recording = Recording(manager(setup.config), listener)
        return TorchScheduler(scheduler(setup.config, setup.scheduler, recording, connector))

    return make


def test_our_scheduler_agrees() -> None:
    report = campaign(steps=400, seed=11)
    assert report.failure is None
    assert report.steps >= 400
    assert report.verdict is Verdict.UNCOVERED  # so few steps cannot show all


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 5, 16])
def test_our_scheduler_shows_all(seed: int) -> None:
    """Of a campaign that waits for rare rows, 5 and 16 missed some."""
    assert campaign(steps=6000, seed=seed).verdict is Verdict.AGREES


def test_the_same_seed_draws_the_same_workload() -> None:
    reports = [campaign(steps=50, seed=5) for _ in range(2)]
    assert reports[0].coverage == reports[1].coverage
    assert reports[0].calls == reports[1].calls


def test_every_row_belongs_to_some_setup() -> None:
    assert len(schedule_rows(setups(0))) == len(schedule_rows(setups(1)))


def test_a_manager_that_answers_otherwise_is_found() -> None:
    class Liar(TorchAllocator):
        def step(self, call: Call) -> Result:
            result = super().step(call)
            return Result(new_blocks=result.new_blocks[1:]) if isinstance(call, TakeNewBlockIds) else result

    report = campaign(making(manager=Liar), steps=50)
    assert report.failure is not None
    assert report.failure.differences[0].field == "result.new_blocks"


def test_a_call_outside_the_contract_is_found() -> None:
    setup = next(setup for setup in setups(0) if setup.config.max_in_flight_tokens > 1)
    tight = structs.replace(setup, config=structs.replace(setup.config, max_in_flight_tokens=1))
    report = campaign(steps=200, engines=(tight,))
    assert report.failure is not None
    assert "exceed max_in_flight_tokens" in report.failure.differences[0].got

    class AllowsAll(TorchAllocator):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.ledger.check_allocate = lambda *_: None  # type: ignore[method-assign]

    report = campaign(making(manager=AllowsAll), steps=200, engines=(tight,))
    assert report.failure is not None
    assert "in-flight-is-bounded" in report.failure.differences[0].got


def test_a_scheduler_that_raises_is_found() -> None:
    class Raises(Scheduler):
        def finish_requests(self, request_ids: object) -> None:
            raise KeyError(7)

    report = campaign(making(Raises), steps=200)
    assert report.failure is not None
    assert report.failure.differences[0].line == "scheduler: expected an answer, got raised KeyError: 7"


def test_a_step_that_does_not_zero_what_it_must_is_found() -> None:
    class Keeps(Scheduler):
        def schedule(self) -> SchedulerOutput:
            output = super().schedule()
            return structs.replace(output, new_block_ids_to_zero=output.new_block_ids_to_zero[1:])

    report = campaign(making(Keeps), steps=50)
    assert report.failure is not None
    assert report.failure.differences[0].field == "blocks to zero"


def test_a_step_of_tokens_that_nobody_knows_is_found() -> None:
    class Guesses(Scheduler):
        def schedule(self) -> SchedulerOutput:
            output = super().schedule()
            more = tuple(
                structs.replace(s, num_scheduled_tokens=s.num_scheduled_tokens + 1) for s in output.scheduled
            )
            return structs.replace(output, scheduled=more)

    report = campaign(making(Guesses), steps=50)
    assert report.failure is not None
    assert report.failure.differences[0].expected == "known tokens, then drafts"


def test_requests_that_never_finish_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproof.proofs.gate.schedulers.gate.PATIENCE", 20)

    class Idle(Scheduler):
        def _schedule_waiting(self, step: object) -> None:
            pass

    report = campaign(making(Idle), steps=10)
    assert report.failure is not None
    assert report.failure.differences[0].field == "progress"


def test_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["gate", "--impl", "torch-scheduler", "--steps", "30", "--seed", "4"]) == 3
    assert " steps, " in capsys.readouterr().out
    for wrong in (["--impl", "torch-scheduler", "--calls", "5"], ["--impl", "torch", "--steps", "5"]):
        assert run(["gate", *wrong]) == 2
        assert "--steps" in capsys.readouterr().err


@pytest.mark.cuda
def test_the_same_on_a_gpu() -> None:
    assert campaign(steps=300, seed=2, device="cuda").failure is None


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_step_does_not_wait_for_the_gpu(dtype: torch.dtype) -> None:
    """Every wait inside the worker's step raises."""

    class Watched(Worker):
        def execute(self, output: SchedulerOutput, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
            torch.cuda.set_sync_debug_mode("error")
            try:
                super().execute(output, *args, **kwargs)
            finally:
                torch.cuda.set_sync_debug_mode("default")

    episode = Episode(setups(2)[22], torch_scheduler, Watched, seed=1, device="cuda", dtype=dtype)
    assert episode.run(60) is None
