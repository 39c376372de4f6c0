"""`slotproof prove` and `slotproof check-receipt`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slotproof.proofs.cli import second_opinions
from slotproof.proofs.cli.main import run
from slotproof.proofs.output.errors import Exit
from slotproof.proofs.prove import prover


def test_a_statement_alone_brings_what_it_leans_on_and_its_receipt_is_of_this_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt, outcome = tmp_path / "receipt.json", tmp_path / "outcome.json"
    typed = ["prove", "usage", "--kind", "full", "--receipt", str(receipt)]
    assert run([*typed, "--json", str(outcome)]) == Exit.GOOD
    told = capsys.readouterr().out
    assert "what they lean on" in told
    found = json.loads(outcome.read_text())
    assert [statement["name"] for statement in found["statements"]] == ["usage"]
    assert {"free-count", "ref-count", "arithmetic"} <= {o["statement"] for o in found["obligations"]}

    assert run(["check-receipt", str(receipt)]) == Exit.GOOD
    assert "this model: " in capsys.readouterr().out

    changed = json.loads(receipt.read_text())
    changed["obligations"][0]["problem"] = "0" * 64
    changed["versions"]["z3"] = "another"
    receipt.write_text(json.dumps(changed))
    assert run(["check-receipt", str(receipt)]) == Exit.BAD
    told = capsys.readouterr().out
    assert "another problem: " in told
    assert "note: z3 was another" in told
    assert "another model: " in told

    assert run(typed) == Exit.GOOD
    assert "kept from an earlier run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["prove", "--seeds", "0"], "--seeds"),
        (["prove", "--cross-check", "yices"], "--cross-check"),
        (["prove", "--smt2", "{tmp}/no/folder"], "there is no folder"),
        (["prove", "--smt2", "{tmp}"], "is not empty"),
        (["check-receipt", "{tmp}/none"], "cannot be read"),
        (["check-receipt", "{tmp}/file"], "is no receipt"),
    ],
)
def test_bad_input_gets_one_line(
    typed: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("{}")
    assert run([word.format(tmp=tmp_path) for word in typed]) == Exit.USAGE
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


def test_a_group_whose_worker_is_lost_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prover, "run", lambda tasks: ((task, None) for task in tasks))
    assert run(["prove", "--fresh", "--kind", "full"]) == Exit.UNKNOWN
    told = capsys.readouterr().out
    assert told.count("unknown: take: not answered (full): nothing is known of any statement") == 1
    groups = told.count(": not answered (")
    assert f"unknown: 0 of 0 obligations proved, and {groups} groups of them not answered, in " in told


def test_a_second_solver_that_is_not_there_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(second_opinions, "is_installed", lambda: False)
    assert run(["prove", "--cross-check", "cvc5"]) == Exit.USAGE
    assert "pip install 'slotproof[cvc5]'" in capsys.readouterr().err
