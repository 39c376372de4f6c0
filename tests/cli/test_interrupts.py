"""An interrupt ends a command, whoever is at work in it: one line, and the exit code of an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from ctypes import ArgumentError
from pathlib import Path
from typing import NoReturn

import pytest
import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.cli import main as cli
from slotproof.proofs.cli.commands import explore
from slotproof.proofs.explore import bounded
from slotproof.proofs.explore.explore import engines

SLOTPROOF = str(Path(sys.executable).parent / "slotproof")


def test_the_workers_of_prove_leave_it_to_the_command() -> None:
    """As a terminal does it: every process of the group is interrupted."""
    command = subprocess.Popen(
        [SLOTPROOF, "prove"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    while command.poll() is None and not children.read_text():
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(command.pid, signal.SIGINT)
    out, err = command.communicate(timeout=30)
    assert (command.returncode, out, err.strip()) == (130, "", "slotproof: interrupted")


def test_an_error_that_stands_for_an_interrupt_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise ArgumentError("argument 1: KeyboardInterrupt: ")

    monkeypatch.setattr(explore, "explore_faults", interrupted)
    assert cli.run(["explore", "--allow", "drop"]) == 130
    assert capsys.readouterr().err == "slotproof: interrupted\n"


def test_an_interrupt_that_z3_keeps_for_itself_is_not_a_lack_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(z3.Solver, "check", lambda self: z3.unknown)
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "interrupted from keyboard")
    with pytest.raises(KeyboardInterrupt):
        bounded.search(engines("full")[:1], Rules(), bounded.breaks(()), bounded.Bounds())
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "timeout")
    assert bounded.search(engines("full")[:1], Rules(), bounded.breaks(()), bounded.Bounds()).out_of_time


SWALLOWED = """
import time
from slotproof.proofs.cli import main as cli

class Term:
    def __del__(self):
        raise KeyboardInterrupt

def work(*_, **__):
    Term()
    time.sleep(20)

cli.slotproof.main = work
cli.main()
"""


def test_an_interrupt_that_a_finalizer_swallowed_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (130, "slotproof: interrupted\n")
