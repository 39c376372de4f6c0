"""The gates of several releases as one table."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slotproof.impl.protocol import Config
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.gate import campaign
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.proofs.gate.releases import main
from slotproof.proofs.gate.report import write_gate_json


def written(path: Path, release: str, *without: str, free: bool = False) -> str:
    """The report of a model that says it is a release, without some rules; if `free`, of one that also
    forgets a block that is given back."""

    class Made(ModelAllocator):
        def snapshot(self) -> Any:
            import msgspec

            s = super().snapshot()
            return msgspec.structs.replace(s, free_queue=s.free_queue[:2]) if free else s

    class Factory:
        def __init__(self) -> None:
            self.release, self.installed = release, f"vLLM {release}"

        def __call__(self, config: Config) -> Made:
            return Made(config, Rules().without(*without))

    with closing(Isolated(Factory)) as implementation:
        report = campaign(implementation, calls=600, seed=1)
    file = path / f"{release}.report.json"
    write_gate_json(file, report, "vllm", 1, path / "trace.json")
    assert json.loads(file.read_text())["explained"] is (bool(without) and not free)
    return str(file)


def test_what_missing_rules_explain_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path, "0.32.0", "release_processed_only")]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["release", "verdict", "calls", "found"]
    assert line.split() == ["vLLM", "0.32.0", "explained", "600", "release_processed_only", "(vllm#47728)"]


def test_a_difference_that_none_explains_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([written(tmp_path, "0.33.0", free=True)]) == 1
    assert "disagrees" in capsys.readouterr().out


def test_a_release_without_a_report_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "0.40.0.report.json")]) == 2
    assert "0.40.0   no report" in capsys.readouterr().out


def test_a_scheduler_is_a_row_of_its_own_and_need_not_be_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocator = Path(written(tmp_path, "0.33.0"))
    told = {**json.loads(allocator.read_text()), "impl": "vllm-scheduler", "verdict": "agrees"}
    gated = tmp_path / "0.33.0.scheduler.json"
    gated.write_text(json.dumps(told))
    assert main([str(gated), str(tmp_path / "0.24.0.scheduler.json")]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("vLLM 0.33.0, scheduler  agrees")
    assert second.startswith("0.24.0, scheduler       not gated")
    gated.write_text(json.dumps({**told, "verdict": "uncovered"}))
    assert main([str(gated)]) == 1
