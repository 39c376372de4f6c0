"""`slotproof new-adapter` writes a file that is gated as it is, and overwrites none."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotproof.proofs.cli.main import run


def test_what_is_written_is_gated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new-adapter", "mine.py"]) == 0
    said = capsys.readouterr().out
    assert said == "mine.py is written: slotproof gate --impl mine:Paged --compare counts\n"
    command = said.partition("slotproof ")[2].split()
    assert run([*command, "--calls", "4000"]) == 0
    assert "mine:Paged agrees with the model" in capsys.readouterr().out


def test_a_scheduler_is_gated_and_is_the_one_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new-adapter", "mine.py", "--scheduler"]) == 0
    said = capsys.readouterr().out
    assert said == "mine.py is written: slotproof gate --impl-scheduler mine:PrefillFirst\n"
    assert run([*said.partition("slotproof ")[2].split(), "--steps", "120"]) in (0, 3)
    assert "mine:PrefillFirst is consistent by itself" in capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "schedulers.md").read_text()
    assert Path("mine.py").read_text() in page


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.txt", "mine.txt: name a Python module"),
        ("my-own.py", "my-own.py: name a Python module"),
        ("there.py", "there.py: is there already, and is left as it is"),
    ],
)
def test_a_name_that_cannot_be_used(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.py").write_text("mine = 1\n")
    assert run(["new-adapter", name]) == 2
    assert text in capsys.readouterr().err
    assert Path("there.py").read_text() == "mine = 1\n"
