"""Output that is no ordinary file, and readers that stop reading."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.output.files import write_file

SLOTPROOF = str(Path(sys.executable).parent / "slotproof")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"report")
    reader.join()
    assert read == [b"report"]
    assert pipe.is_fifo()


def test_a_device_stays_a_device() -> None:
    write_file(Path(os.devnull), b"report")
    assert Path(os.devnull).is_char_device()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    write_file(link, b"after")
    assert link.is_symlink()
    assert target.read_text() == "after"


@pytest.mark.parametrize("command", ["lesson", "prove --list"])
def test_a_reader_that_stops_reading_is_no_refutation(command: str) -> None:
    shell = f"set -o pipefail; {SLOTPROOF} {command} | head -n 1 > {os.devnull}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


FAILS = """
from slotproof.proofs.gate.model_allocator import ModelAllocator

class Allocator(ModelAllocator):
    def reset(self):
        raise ValueError("not today")
"""


def test_a_reader_that_stops_reading_hides_no_difference(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAILS)
    gate = f"{SLOTPROOF} gate --impl mine:Allocator --trace t.json --json g.json --junit g.xml"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {gate} | true"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert all((tmp_path / name).exists() for name in ("t.json", "g.json", "g.xml"))


def test_a_report_that_nobody_reads_is_no_error() -> None:
    shell = f"set -o pipefail; {SLOTPROOF} prove --list --json - | true"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_between_colons_stays_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    Outputs({}).console().print("mine:x: agrees", markup=False)
    assert capsys.readouterr().out == "mine:x: agrees\n"


@pytest.mark.parametrize("option", ["--seconds nan", "--patience nan"])
def test_nan_is_no_number_of_seconds(option: str) -> None:
    command = [SLOTPROOF, "gate", "--impl", "torch", *option.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nan is no number of seconds" in done.stderr


def test_standard_output_may_be_closed() -> None:
    for command, code, said in (
        ("lesson", 0, ""),
        ("lesson --json -", 2, "slotproof: -: standard output is closed: name a file\n"),
    ):
        shell = f"{SLOTPROOF} {command} >&-"
        done = subprocess.run(["bash", "-c", shell], stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (code, said)


def test_standard_output_is_for_one_report() -> None:
    command = [SLOTPROOF, "gate", "--impl", "torch", "--json", "-", "--junit", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--junit and --json: - can be only one of them" in done.stderr
