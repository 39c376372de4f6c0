"""Failures of schedulers are made small, told with the call and the request at fault, and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.protocol import Allocate, Config
from slotproof.impl.scheduler.connector import Connector, Match
from slotproof.impl.scheduler.gated import TorchScheduler
from slotproof.impl.scheduler.manager import Listener, Recording
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.proofs.cli.main import run
from slotproof.proofs.gate.replay import retell
from slotproof.proofs.gate.schedulers.episode import Episode, Make
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure
from slotproof.proofs.gate.schedulers.gate import again, campaign, torch_scheduler
from slotproof.proofs.gate.schedulers.telling import lines
from slotproof.proofs.gate.schedulers.workload import setups
from slotproof.proofs.gate.trial import Asked
from slotproof.proofs.traces.script import Add
from slotproof.proofs.traces.trace import TraceError, read_trace, write_trace

PLAIN = Setup(
    Config(num_blocks=12, block_size=4, max_model_len=40),
    SchedulerConfig(max_num_scheduled_tokens=24, scheduler_reserve_full_isl=False),
)
DRAFTS = structs.replace(PLAIN, scheduler=structs.replace(PLAIN.scheduler, num_spec_tokens=2))
LOADS = structs.replace(PLAIN, has_connector=True)


class LosesATokenOfEachAnswer(Scheduler):
    """What the last of several accepted drafts brought does not reach its request."""

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        fewer = {request: tokens[:1] for request, tokens in answer.sampled.items()}
        super().update_from_output(output, structs.replace(answer, sampled=fewer))


class FreesTheBlocksOfALoad(Scheduler):
    """A request that is aborted while its load is under way loses its blocks at once."""

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        known = tuple(request for request in answer.finished_recving if request in self.requests)
        super().update_from_output(output, structs.replace(answer, finished_recving=known))

    def finish_requests(self, request_ids: Any) -> None:
        self._finished_recving.update(request_ids)
        super().finish_requests(request_ids)


class LoadsEverything(Scheduler):
    """A request that was preempted is said to have all its tokens."""

    def _computed_elsewhere(self, request: Any) -> Any:
        local, match = super()._computed_elsewhere(request)
        return local, Match(request.num_tokens - local) if request.num_preemptions else match


class NeverResumes(Scheduler):
    """Who was preempted stays so."""

    def _is_ready(self, request: Any) -> bool:
        return not request.num_preemptions and super()._is_ready(request)


def making(scheduler: type[Scheduler]) -> Make:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> TorchScheduler:
        recording = Recording(TorchAllocator(setup.config), listener)
        return TorchScheduler(scheduler(setup.config, setup.scheduler, recording, connector))

    return make


def found(scheduler: type[Scheduler], setup: Setup) -> ScheduleFailure:
    report = campaign(making(scheduler), steps=2000, seed=3, engines=(setup,))
    assert isinstance(report.failure, ScheduleFailure)
    return report.failure


CASES: list[tuple[type[Scheduler], Setup, str, int, int]] = [
    (LosesATokenOfEachAnswer, DRAFTS, "work-lost", 2, 12),
    (LoadsEverything, PLAIN, "scheduler", 4, 30),
]
SLOW: list[tuple[type[Scheduler], Setup, str, int, int]] = [
    (FreesTheBlocksOfALoad, LOADS, "slot ", 2, 16),
    (NeverResumes, PLAIN, "progress", 4, 40),
]


@pytest.mark.parametrize(
    ("scheduler", "setup", "field", "requests", "calls"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_failure_is_made_small_and_shown_again(
    scheduler: type[Scheduler], setup: Setup, field: str, requests: int, calls: int, tmp_path: Path
) -> None:
    failure = found(scheduler, setup)
    assert failure.differences[0].field.startswith(field)
    arrivals = [event.arrival for event in failure.events if isinstance(event, Add)]
    assert [arrival.request for arrival in arrivals] == list(range(len(arrivals)))
    assert len(arrivals) <= requests
    if not failure.never_finishes:
        assert len(failure.story) <= calls
    assert all(arrival.salt == arrival.lora == 0 for arrival in arrivals)
    write_trace(failure.trace(Asked(scheduler="torch-scheduler")), tmp_path / "trace.json")
    trace = read_trace(tmp_path / "trace.json")
    assert retell(trace, tmp_path / "trace.json").differences == []  # the manager did nothing wrong
    assert trace.script is not None
    shown = again(making(scheduler))(trace.script.setup, trace.script.events)
    assert shown is not None
    assert shown.differences == failure.differences
    assert (shown.where, shown.history) == (failure.where, failure.history)
    assert again(torch_scheduler)(trace.script.setup, trace.script.events) is None


def test_the_call_that_the_contract_forbids_comes_last_with_the_history_of_its_request() -> None:
    failure = found(LoadsEverything, PLAIN)
    assert isinstance(failure.refused, Allocate)
    assert failure.where.startswith(f"at: allocate request={failure.refused.request} ")
    assert failure.history.startswith(f"request {failure.refused.request}: arrives before step ")
    for part in ("admitted in step", "preempted in step", "it is preempted, 0 of "):
        assert part in failure.history
    episode = Episode(failure.setup, making(LoadsEverything))
    told = list(lines(episode, episode.play(failure.events)))
    assert told[0].startswith("request 0 arrives with tokens ")
    assert "allocate" in told[-1]
    assert "->" not in told[-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A trace of the commonest failure, by a scheduler that has no name here."""
    failure = found(LosesATokenOfEachAnswer, DRAFTS)
    path = tmp_path / "trace.json"
    write_trace(failure.trace(Asked(scheduler="torch-scheduler")), path)
    return path


def test_the_command_drives_the_scheduler_again(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["replay", str(file), "--impl", "torch-scheduler"]) == 0  # ours is right
    out = capsys.readouterr().out
    assert "scheduler: max_num_scheduled_tokens=24 num_spec_tokens=2" in out
    assert "request 0 arrives with tokens 1, " in out
    assert "torch-scheduler agrees with the trace" in out
    for other in ([], ["--impl", "torch"]):
        assert run(["replay", str(file), *other]) == 0
        assert f"slotproof replay {file} --impl torch-scheduler" in capsys.readouterr().out
    monkeypatch.setattr(
        "slotproof.proofs.gate.schedulers.replay.torch_scheduler", making(LosesATokenOfEachAnswer)
    )
    assert run(["replay", str(file), "--impl", "torch-scheduler"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "work-lost: expected request 0 to have " in told[-2]
    assert told[-1].strip().startswith("request 0: arrives before step 1 (1 token, ")


def test_a_trace_without_a_scheduler_drives_none(capsys: pytest.CaptureFixture[str]) -> None:
    old = Path(__file__).parents[2] / "known" / "unwritten-hit.itf.json"
    assert run(["replay", str(old), "--impl", "torch-scheduler"]) == 2
    assert "no scheduler made it: drive a manager" in capsys.readouterr().err


def test_the_script_of_another_engine_is_no_trace(file: Path) -> None:
    trace = read_trace(file)
    assert trace.script is not None
    other = structs.replace(trace.script, setup=setups(1)[0])
    write_trace(structs.replace(trace, script=other), file)
    with pytest.raises(TraceError, match="its engine is not that of the first state"):
        read_trace(file)
