"""`slotproof explore` as it is typed."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotproof.proofs.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["slotproof", "explore", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_a_fault_is_told_written_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {option: tmp_path / option for option in ("html", "trace", "test", "json")}
    options = [word for option, path in files.items() for word in (f"--{option}", str(path))]
    assert run(monkeypatch, "--without", "keep_reserved", "--kind", "full", *options) == 0
    out = capsys.readouterr().out
    assert "watermark falls" in out
    assert all(out.count(f"wrote {path}\n") == 1 for path in files.values())
    assert all(path.stat().st_size for path in files.values())
    report: dict[str, Any] = msgspec.json.decode(files["json"].read_bytes())
    assert report["verdict"] == "found"
    assert len(report["calls"]) == 2
    command = shlex.join(["slotproof", "explore", "--without", "keep_reserved", "--kind", "full"])
    made_by = re.search(r"<code>(slotproof .*)</code>", files["html"].read_text())
    assert made_by is not None
    assert set(shlex.split(html.unescape(made_by[1]))) == {*shlex.split(command), *options}


def test_an_alias_of_the_catalogue_names_its_rule(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--without", "vllm-39734") == 0
    assert "whole_prompt_caps_window" in capsys.readouterr().out


def test_nothing_found_is_said_with_how_far_it_was_looked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--reach", "free > 4", "--kind", "full", "--depth", "1") == 1
    assert "nothing found: 2 requests, 1 call, engines of 4, 4" in capsys.readouterr().out


def test_a_lack_of_time_names_the_option_that_gives_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--reach", "free > 9", "--time", "0.001") == 3
    assert "nothing found before time ran out (--time gives it longer): " in capsys.readouterr().out


def test_a_setting_is_fixed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--set", "blocks=3", "--reach", "free == 2", "--kind", "full") == 0
    assert "num_blocks=3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--without", "nonsense"], "nonsense: there is no such rule"),
        (["--breaks", "nonsense"], "nonsense: there is no such statement"),
        (["--allow", "nonsense"], "nonsense: there is no such allowance"),
        (["--question", "nonsense"], "nonsense: there is no such question"),
        (["--reach", "free ="], "character 6"),
        (["--set", "colour=3", "--reach", "free == 1"], "write NAME=NUMBER"),
        ([], "--breaks, or --allow, or --reach, or --question (see --questions)"),
        (["--reach", "free == 0", "--test", "t.py"], "use it with --without"),
        (["--allow", "drop", "--test", "t.py"], "use it with --without"),
        (["--allow", "hits", "--without", "keep_reserved"], "with all rules on"),
    ],
)
def test_a_wrong_question_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
