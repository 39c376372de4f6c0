"""`prove`, `prove --matrix` and `gate` say the same, whatever `--jobs` is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotproof.model.language.rules import RULES
from slotproof.proofs.cli.main import run
from slotproof.proofs.prove import prover


def said(typed: list[str], jobs: int, tmp_path: Path) -> tuple[int, Any]:
    """The exit code and the report, but for what it took."""
    report = tmp_path / f"jobs-{jobs}.json"
    code = run([*typed, "--jobs", str(jobs), "--json", str(report)])
    return code, without_costs(json.loads(report.read_text()))


def without_costs(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_costs(v) for key, v in value.items() if "seconds" not in key and key != "resources"
        }
    return [without_costs(v) for v in value] if isinstance(value, list) else value


def alike(typed: list[str], tmp_path: Path) -> tuple[int, Any]:
    one, three = said(typed, 1, tmp_path), said(typed, 3, tmp_path)
    assert one == three
    return one


@pytest.mark.slow
def test_what_is_proved_and_what_falls_does_not_hang_on_jobs(tmp_path: Path) -> None:
    assert alike(["prove", "usage", "--fresh", "--kind", "full"], tmp_path)[0] == 0
    code, report = alike(
        ["prove", "no-rollback", "--kind", "full", "--fresh", "--without", "count_idle_hits"], tmp_path
    )
    assert code == 1
    assert report["without"] == ["count_idle_hits"]


@pytest.mark.slow
def test_which_rules_are_needed_does_not_hang_on_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("count_idle_hits", "hash_full_blocks_only", "free_tail_first")
    monkeypatch.setattr(prover, "RULES", {rule: RULES[rule] for rule in few})
    code, report = alike(["prove", "usage", "--kind", "full", "--fresh", "--matrix"], tmp_path)
    assert code == 0
    assert list(report["rules"]) == list(few)
    assert all(report["rules"].values())


def test_what_a_gate_finds_does_not_hang_on_jobs(tmp_path: Path) -> None:
    code, report = alike(["gate", "--impl", "torch", "--calls", "500", "--seed", "2"], tmp_path)
    assert report["calls"] == 500
    assert code in (0, 3)
