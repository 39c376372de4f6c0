"""The gate agrees with what is right and finds what is wrong, each time in the same way."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotproof.impl.protocol import Allocate, Call, Config, EvictBlocks, Preempt, Result, Snapshot
from slotproof.model.language.rules import RULES, Rules
from slotproof.proofs.campaign.calls import configurations
from slotproof.proofs.gate import gate
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.coverage import ROWS, rows
from slotproof.proofs.gate.exhaustive import exhaust
from slotproof.proofs.gate.gate import Report, Verdict, campaign
from slotproof.proofs.gate.isolation import Isolated, Kind
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.proofs.gate.replay import retell, run_again
from slotproof.proofs.gate.trial import Asked, compare_story, legal_story
from slotproof.proofs.traces.trace import read_trace, write_trace


@pytest.fixture(autouse=True)
def short_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SHRINK_TRIES", 50)


def gated(factory: Any, calls: int = 4000, seed: int = 1, **options: Any) -> Report:
    with closing(Isolated(lambda: factory, 3.0)) as implementation:
        return campaign(implementation, calls=calls, seed=seed, **options)


def without(rule: str) -> Any:
    made = partial(ModelAllocator, rules=Rules().without(rule))
    made.has_groups = made.has_more = True  # type: ignore[attr-defined]
    return made


class Shuffled(ModelAllocator):
    """Numbers its blocks otherwise: the last is the first."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.last = config.num_blocks

    def other(self, block: int) -> int:
        return self.last - block if block else 0

    def step(self, call: Call) -> Result:
        if isinstance(call, EvictBlocks):
            call = EvictBlocks(tuple(map(self.other, call.blocks)))
        result = super().step(call)
        return Result(
            granted=result.granted,
            hits=tuple(map(self.other, result.hits)),
            new_blocks=tuple(map(self.other, result.new_blocks)),
        )

    def snapshot(self) -> Snapshot:
        s = super().snapshot()
        return Snapshot(
            free_queue=tuple(map(self.other, s.free_queue)),
            ref_cnt=(0, *reversed(s.ref_cnt[1:])),
            hashes=(None, *reversed(s.hashes[1:])),
            tables={r: tuple(map(self.other, table)) for r, table in s.tables.items()},
            usage=s.usage,
            to_zero=tuple(map(self.other, s.to_zero)),
        )


def test_the_clean_pair_agrees_and_the_tampered_one_does_not() -> None:
    clean, tampered = gated(ModelAllocator), gated(without("count_idle_hits"))
    assert (clean.verdict, clean.calls, clean.failure) == (Verdict.AGREES, 4000, None)
    assert tampered.verdict is Verdict.DISAGREES
    assert tampered.failure is not None
    assert len(tampered.failure.differences) > 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_that_is_off_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gate.SHRINK_SECONDS, Strictness.EXACT, 0.1)
    assert gated(without(rule), calls=20_000).failure is not None


def test_the_same_seed_finds_the_same() -> None:
    first, second = gated(without("free_tail_first")), gated(without("free_tail_first"))
    assert first.failure is not None
    assert second.failure is not None
    assert (first.failure.trace(), first.calls) == (second.failure.trace(), second.calls)
    assert gated(ModelAllocator, 300).coverage == gated(ModelAllocator, 300).coverage
    assert gated(ModelAllocator, 300).coverage != gated(ModelAllocator, 300, seed=2).coverage


def test_a_failing_sequence_is_made_short_and_replays(tmp_path: Path) -> None:
    failure = gated(without("touch_references")).failure
    assert failure is not None
    assert 3 <= len(failure.story) <= 8
    path = tmp_path / "trace.json"
    write_trace(failure.trace(), path)
    trace = read_trace(path)
    assert retell(trace, path).differences == []
    with closing(Isolated(lambda: without("touch_references"))) as tampered:
        found = run_again(tampered, trace, Strictness.EXACT)
    with closing(Isolated(lambda: ModelAllocator)) as clean:
        agreed = run_again(clean, trace, Strictness.EXACT)
    assert (found.calls, found.differences) == (len(failure.story), failure.differences)
    assert (agreed.calls, agreed.differences) == (len(failure.story), [])


def test_no_call_of_a_shortened_sequence_can_be_left_out() -> None:
    factory = without("watermark_on_admission")
    failure = gated(factory).failure
    assert failure is not None
    calls = [e.call for e in failure.story]
    with closing(Isolated(lambda: factory)) as implementation:
        for i in range(len(calls) - 1):
            story = legal_story(failure.config, calls[:i] + calls[i + 1 :])
            assert compare_story(implementation, failure.config, story, Asked())[1] is None


def test_blocks_numbered_otherwise_differ_exactly_but_not_in_counts() -> None:
    exact = gated(Shuffled, 500)
    counts = gated(Shuffled, 8000, strictness=Strictness.COUNTS)
    invariants = gated(Shuffled, 8000, strictness=Strictness.INVARIANTS)
    assert [exact.verdict, counts.verdict, invariants.verdict] == [
        Verdict.DISAGREES,
        Verdict.AGREES,
        Verdict.CONSISTENT,
    ]
    assert counts.coverage["call: evict_blocks"] == 0


def test_counts_see_a_block_too_many() -> None:
    assert gated(without("lookahead_gets_slots"), strictness=Strictness.COUNTS).verdict is Verdict.DISAGREES


def test_a_campaign_that_saw_too_little_fails() -> None:
    report = gated(ModelAllocator, 50)
    assert (report.verdict, report.failure) == (Verdict.UNCOVERED, None)
    assert "engine: prefix caching off" in report.uncovered


def test_rows_that_no_configuration_can_reach_are_not_asked_for() -> None:
    plain = Config(num_blocks=8, block_size=2, max_model_len=8, enable_caching=False)
    asked = rows([plain])
    assert "stage 3: an idle hit" not in asked
    assert "stage 1: a window releases blocks" not in asked
    assert "refused: stage 2, by the watermark alone" not in asked
    report = gated(ModelAllocator, 6000, configs=[plain])
    assert report.verdict is Verdict.AGREES
    assert set(report.coverage) <= set(asked)


def test_every_row_that_is_reached_is_known_and_every_known_row_is_reached() -> None:
    report = gated(ModelAllocator, 8000, seed=3)
    assert set(report.coverage) == set(ROWS) == set(rows(configurations(3, has_groups=True, has_more=True)))


def test_a_campaign_stops_after_its_seconds() -> None:
    with closing(Isolated(lambda: ModelAllocator)) as implementation:
        report = campaign(implementation, seconds=0.5)
    assert 0.5 <= report.seconds < 3
    assert report.calls > 100


class Raises(ModelAllocator):
    def step(self, call: Call) -> Result:
        if isinstance(call, Preempt):
            raise RuntimeError("lost")
        return super().step(call)


class Hangs(ModelAllocator):
    def step(self, call: Call) -> Result:
        while isinstance(call, Preempt):
            pass
        return super().step(call)


class Dies(ModelAllocator):
    def step(self, call: Call) -> Result:
        if isinstance(call, Preempt):
            import os

            os._exit(9)
        return super().step(call)


class Babbles(ModelAllocator):
    def snapshot(self) -> Snapshot:
        s = super().snapshot()
        return msgspec.structs.replace(s, usage="full") if s.usage > 0.6 else s


@pytest.mark.parametrize(
    ("factory", "kind", "line"),
    [
        (Raises, Kind.RAISED, "answer: expected one, got none: raised RuntimeError: lost (test_gate.py:"),
        (Hangs, Kind.HUNG, "answer: expected one, got none: the call hung for 3 s"),
        (Dies, Kind.DIED, "answer: expected one, got none: the process died (exit code 9)"),
        (
            Babbles,
            Kind.NONSENSE,
            "answer: expected one, got none: nonsense: ValidationError: Expected `float`, got `str` - at "
            "`$[1].usage`",
        ),
    ],
)
def test_no_answer_is_a_difference_with_a_trace(factory: Any, kind: Kind, line: str, tmp_path: Path) -> None:
    failure = gated(factory).failure
    assert failure is not None
    (found,) = failure.differences
    assert failure.fault is kind
    assert found.line.startswith(line)
    assert ('raise RuntimeError("lost")' in failure.traceback) == (kind is Kind.RAISED)
    if kind is not Kind.NONSENSE:
        assert isinstance(failure.call, Preempt)
    write_trace(failure.trace(), tmp_path / "trace.json")
    assert len(read_trace(tmp_path / "trace.json").steps) == len(failure.story)
    if kind is not Kind.HUNG:
        assert len(failure.story) < 10


def test_exhaustive_runs_every_sequence() -> None:
    with closing(Isolated(lambda: ModelAllocator)) as implementation:
        report = exhaust(implementation, 3)
    assert report.verdict is Verdict.AGREES
    assert report.sequences > 400


def test_exhaustive_finds_the_shallowest_difference() -> None:
    with closing(Isolated(lambda: without("new_from_front"))) as implementation:
        report = exhaust(implementation, 3)
    assert report.failure is not None
    assert len(report.failure.story) == 2
    assert isinstance(report.failure.call, Allocate)


def test_exhaustive_by_counts_names_no_blocks() -> None:
    with closing(Isolated(lambda: Shuffled)) as implementation:
        report = exhaust(implementation, 3, strictness=Strictness.COUNTS)
    assert report.verdict is Verdict.AGREES
    assert not report.coverage["call: evict_blocks"]
