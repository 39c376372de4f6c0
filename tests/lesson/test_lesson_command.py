"""`slotproof lesson` for people, pipes and machines."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from slotproof.proofs.cli.commands.lesson import Report, run, show
from slotproof.proofs.cli.main import slotproof
from slotproof.proofs.lesson import trace as the_lesson
from slotproof.proofs.output.errors import Exit, UserError


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(slotproof, ["lesson", *arguments], standalone_mode=False)


def test_a_pipe_gets_plain_lines() -> None:
    result = invoke()
    assert result.return_value == Exit.GOOD
    lines = result.stdout.splitlines()
    assert sum("  free " in line and "stage " in line for line in lines) == 10
    admission = next(line for line in lines if line.startswith("admission"))
    assert " ".join(admission.split()) == (
        "admission allocate_slots(new=100, hit=128) 7 new, 13 taken free 27 table 15"
        " stage 2, this step: 13 + 5 <= 40"
    )
    assert next(line for line in lines if line.startswith("second request")).endswith("38 + 5 > 21")
    assert lines[-1] == "the model agrees with the lesson"
    assert "\x1b" not in result.stdout


def test_a_terminal_gets_a_table() -> None:
    console = Console(force_terminal=True, width=80, record=True, file=io.StringIO())
    show(run(), console)
    text = console.export_text()
    assert "need <= free" in text
    assert "lookahead=16)" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_json_alone_on_standard_output() -> None:
    code = "from slotproof.proofs.cli.main import main; main()"
    command = [sys.executable, "-c", code, "lesson", "--json", "-"]
    result = subprocess.run(command, capture_output=True, timeout=60)
    report = msgspec.json.decode(result.stdout, type=Report)
    assert (result.returncode, report.verdict) == (0, "agrees")
    assert len(report.trace) == 10
    assert [len(report.try_it), len(report.check_yourself)] == [3, 3]
    assert b"admission" in result.stderr


def test_json_to_a_file_beside_the_lines(tmp_path: Path) -> None:
    result = invoke("--json", str(tmp_path / "lesson.json"))
    assert "admission" in result.stdout
    assert msgspec.json.decode((tmp_path / "lesson.json").read_bytes(), type=Report).start.free == 40


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = invoke("--json", str(tmp_path / "no" / "lesson.json"))
    assert isinstance(result.exception, UserError)
    assert "lesson.json" in str(result.exception)


def test_a_figure_that_differs_is_bad_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    told = the_lesson.LESSON_TRACE["token 305"]._replace(free=21)
    monkeypatch.setitem(the_lesson.LESSON_TRACE, "token 305", told)
    result = invoke()
    assert result.return_value == Exit.BAD
    assert result.stdout.splitlines()[-2:] == [
        "disagrees: token 305: the lesson says free 21, the model 22",
        "the model disagrees with the lesson",
    ]
