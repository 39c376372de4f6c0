"""A scheduler of a user's own: gated by its steps alone, on contents, work and progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import CAPABILITIES, GatedScheduler, Setup
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig
from slotproof.impl.scheduler.scheduler_output import SchedulerOutput
from slotproof.proofs.cli.main import run
from slotproof.proofs.gate.gate import Verdict
from slotproof.proofs.gate.schedulers.gate import torch_scheduler
from slotproof.proofs.gate.schedulers.own import Own, own_campaign, own_setups
from slotproof.proofs.traces.trace import read_trace

SMALL: dict[str, Any] = {}
TEMPLATE = Path(__file__).parents[3] / "proofs" / "gate" / "templates" / "scheduler.py.txt"
exec(TEMPLATE.read_text(), SMALL)
PrefillFirst = SMALL["PrefillFirst"]


def gated(factory: Callable[[Setup], Any], steps: int = 300, seed: int = 1, **how: Any) -> Any:
    """The report on it."""

    def make(setup: Setup, connector: Connector | None, listener: Listener) -> GatedScheduler:
        scheduler: GatedScheduler = factory(setup)
        return scheduler

    own = Own("small:PrefillFirst", make, frozenset(getattr(factory, "lacks", ())), "")
    return own_campaign(own, steps=steps, seed=seed, **how)


def test_the_small_one_is_consistent() -> None:
    report = gated(PrefillFirst)
    assert report.failure is None
    assert report.verdict is Verdict.CONSISTENT
    assert set(report.required) == {"aborted: waiting", "aborted: running"}


def test_ours_is_consistent_without_its_calls() -> None:
    """With all that a scheduler may do, but connectors: no false alarm."""
    report = gated(lambda setup: torch_scheduler(setup, None, lambda *_: None), steps=500)
    assert report.failure is None


@pytest.mark.slow
def test_ours_shows_all_that_steps_can_tell() -> None:
    report = gated(lambda setup: torch_scheduler(setup, None, lambda *_: None), steps=5000)
    assert report.verdict is Verdict.CONSISTENT


def test_what_is_lacking_is_not_drawn() -> None:
    for setup in own_setups(3, frozenset(CAPABILITIES)):
        assert not setup.has_connector
        assert setup.config.sliding_window is None
        assert not setup.config.enable_caching
        assert setup.scheduler.policy.value == "fcfs"
        assert setup.scheduler.max_num_scheduled_tokens >= setup.config.max_model_len
        assert (setup.scheduler.num_spec_tokens, setup.steps_in_flight) == (0, 1)


class SharesAPage(PrefillFirst):  # type: ignore[misc,valid-type]
    """The last page of a sequence goes to the next one too."""

    def admit(self) -> Any:
        admitted = super().admit()
        self.free_pages += [sequence.pages[-1] for sequence in admitted]
        return admitted


class GivesAnothersPages(PrefillFirst):  # type: ignore[misc,valid-type]
    """Everybody's tokens go to the pages of the first."""

    def part(self, sequence: Any) -> Any:
        table = (*self.running[0].pages, *sequence.pages)[: len(sequence.pages)]
        return structs.replace(super().part(sequence), table=table)


class LosesATokenNowAndThen(PrefillFirst):  # type: ignore[misc,valid-type]
    def answer(self, output: Any, answer: Any) -> None:
        lost = {r: tokens for r, tokens in answer.sampled.items() if r % 3}
        super().answer(output, structs.replace(answer, sampled=lost))


class SchedulesTheEnded(PrefillFirst):  # type: ignore[misc,valid-type]
    def add(self, arrival: Any) -> None:
        super().add(arrival)
        self.waiting[-1].most += 1


class HasNoPage(PrefillFirst):  # type: ignore[misc,valid-type]
    def part(self, sequence: Any) -> Any:
        return structs.replace(super().part(sequence), table=(99, *sequence.pages))


class HasTooFewPages(PrefillFirst):  # type: ignore[misc,valid-type]
    def part(self, sequence: Any) -> Any:
        return structs.replace(super().part(sequence), table=sequence.pages[:1])


class CountsFromOne(PrefillFirst):  # type: ignore[misc,valid-type]
    def part(self, sequence: Any) -> Any:
        part = super().part(sequence)
        return structs.replace(part, num_computed_tokens=part.num_computed_tokens + 1)


class KnowsNoLimit(PrefillFirst):  # type: ignore[misc,valid-type]
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.max_tokens = 1 << 20


class SaysPreempted(PrefillFirst):  # type: ignore[misc,valid-type]
    def schedule(self) -> Any:
        waiting = tuple(sequence.number for sequence in self.waiting)
        return structs.replace(super().schedule(), preempted=waiting[:1])


class Starves(PrefillFirst):  # type: ignore[misc,valid-type]
    """The longest prompts never have their turn."""

    def add(self, arrival: Any) -> None:
        if len(arrival.tokens) < 6:
            super().add(arrival)


class TwiceInAStep(PrefillFirst):  # type: ignore[misc,valid-type]
    def schedule(self) -> Any:
        output = super().schedule()
        return structs.replace(output, scheduled=output.scheduled * 2)


class MakesNoStep(PrefillFirst):  # type: ignore[misc,valid-type]
    def schedule(self) -> Any:
        return [part.request for part in super().schedule().scheduled]


class Raises(PrefillFirst):  # type: ignore[misc,valid-type]
    def abort(self, request: int) -> None:
        raise KeyError(request)


ENGINES = (
    Setup(
        Config(num_blocks=18, block_size=2, max_model_len=12, enable_caching=False),
        SchedulerConfig(max_num_scheduled_tokens=12),
    ),
)
BROKEN: list[tuple[type, str]] = [
    (SharesAPage, "slot "),
    (GivesAnothersPages, "slot "),
    (LosesATokenNowAndThen, "the step: expected a token or more of each request"),
    (SchedulesTheEnded, "the step: expected requests that are alive, got request "),
    (HasNoPage, "the block table of request "),
    (HasTooFewPages, "enough-slots: request "),
    (CountsFromOne, "computed tokens of request "),
    (KnowsNoLimit, "the step: expected at most "),
    (SaysPreempted, "preempted: expected requests that run, got request "),
    (Starves, "progress: expected every request to finish"),
    (TwiceInAStep, "the step: expected a request once"),
    (MakesNoStep, "the step: expected a SchedulerOutput, got a list"),
    (Raises, "scheduler: expected an answer, got raised KeyError"),
]


@pytest.mark.parametrize(("factory", "line"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_one_is_found(factory: type, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproof.proofs.gate.schedulers.gate.PATIENCE", 60)
    failure = gated(factory, steps=600, engines=ENGINES).failure
    assert failure is not None, "nothing was noticed"
    assert failure.differences[0].line.startswith(line)


def test_what_it_raises_has_its_lines() -> None:
    failure = gated(Raises).failure
    assert "in abort" in failure.traceback
    assert "raise KeyError" in failure.traceback or "test_own.py" in failure.traceback


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_small.py").write_text(TEMPLATE.read_text())
    broken = """
from own_small import PrefillFirst

class Sharing(PrefillFirst):
    def admit(self):
        admitted = super().admit()
        self.free_pages += [sequence.pages[-1] for sequence in admitted]
        return admitted

class Methodless:
    def __init__(self, setup): pass
    def add(self, arrival): pass

class Odd(PrefillFirst):
    lacks = {"everything"}

class Never(PrefillFirst):
    def __init__(self, setup): raise RuntimeError("no GPU")

number = 7
"""
    (tmp_path / "own_broken.py").write_text(broken)
    return tmp_path


def test_the_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "--impl-scheduler", "own_small:PrefillFirst", "--steps", "300"]) == 0
    assert "own_small:PrefillFirst is consistent by itself" in capsys.readouterr().out
    assert run(["gate", "--impl-scheduler", "own_broken:Sharing", "--steps", "300", "--trace", "t.json"]) == 1
    out = capsys.readouterr().out
    assert "own_broken:Sharing breaks a statement by itself, the model aside in step " in out
    assert "slotproof replay t.json --impl-scheduler own_broken:Sharing" in out
    assert ": arrives before step " in out
    assert read_trace(here / "t.json").followed
    assert run(["replay", "t.json", "--impl-scheduler", "own_broken:Sharing"]) == 1
    assert "slot " in capsys.readouterr().out
    assert run(["replay", "t.json", "--impl-scheduler", "own_small:PrefillFirst"]) == 0
    assert run(["replay", "t.json"]) == 0
    assert "replay t.json --impl-scheduler own_broken:Sharing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--impl-scheduler", "own_small"], "name MODULE:FACTORY"),
        (["--impl-scheduler", "nowhere:X"], "nowhere cannot be imported"),
        (["--impl-scheduler", "own_small:X"], "own_small has no X"),
        (["--impl-scheduler", "own_broken:number"], "FACTORY(setup) must return a scheduler"),
        (["--impl-scheduler", "own_broken:Methodless"], "a Methodless, has no method schedule"),
        (["--impl-scheduler", "own_broken:Odd"], "lacks names 'everything': name some of "),
        (["--impl-scheduler", "own_broken:Never"], "the factory raised RuntimeError: no GPU for Setup("),
        (["--impl-scheduler", "own_small:PrefillFirst", "--calls", "5"], "give --steps alone"),
        (["--impl-scheduler", "own_small:PrefillFirst", "--impl", "torch"], "say what to gate"),
        ([], "say what to gate"),
    ],
)
def test_errors_are_one_line(
    words: list[str], line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gate", *words]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told


def test_a_step_may_be_told_as_vllm_does() -> None:
    """New blocks and tokens, or whole tables: the gate takes both."""

    class Tables:
        def __init__(self, setup: Setup) -> None:
            self._scheduler = torch_scheduler(setup, None, lambda *_: None)
            self._tables: dict[int, tuple[int, ...]] = {}
            for name in ("add", "abort", "reset", "answer"):
                setattr(self, name, getattr(self._scheduler, name))

        def schedule(self) -> SchedulerOutput:
            output = self._scheduler.schedule()
            parts = []
            for part in output.scheduled:
                old = () if part.tokens is not None else self._tables[part.request]
                table = self._tables[part.request] = (*old, *part.new_blocks)
                whole = structs.replace(part, new_blocks=(), tokens=None, table=table)
                parts.append(whole)
            return structs.replace(output, step=0, finished=(), scheduled=tuple(parts))

    plain = tuple(s for s in own_setups(1, frozenset({"steps_in_flight"})) if s.steps_in_flight == 1)[:8]
    assert gated(Tables, engines=plain, steps=400).failure is None
