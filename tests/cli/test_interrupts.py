"""An interrupt ends a command, whoever is at work in it: one line, and the exit code of an interrupt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from ctypes import ArgumentError
from functools import partial
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest
import z3

from slotproof.impl.protocol import AddRequest, Allocate, Call, Config, Finish
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.cli import main as cli
from slotproof.proofs.cli.commands import explore, prove
from slotproof.proofs.explore import bounded
from slotproof.proofs.explore.explore import engines
from slotproof.proofs.gate.oracle import expect_all, trace_of
from slotproof.proofs.prove.prover import Report
from slotproof.proofs.traces.trace import write_trace

SLOTPROOF = str(Path(sys.executable).parent / "slotproof")


def test_the_workers_of_prove_leave_it_to_the_command(tmp_path: Path) -> None:
    """As a terminal does it: every process of the group is interrupted."""
    command = subprocess.Popen(
        [SLOTPROOF, "prove", "--json", str(tmp_path / "proved.json")],
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
    assert (command.returncode, err) == (130, "")
    assert "\ninterrupted: this is what was known by then\n" in out
    left = r"\nunknown: interrupted with \d+ obligations? proved and \d+ groups? of them left, in "
    assert re.search(left, out)
    report = json.loads((tmp_path / "proved.json").read_text())
    assert (report["verdict"], report["partial"]) == ("unknown", True)
    assert all(statement["verdict"] == "unknown" for statement in report["statements"])


HANGS = """
import time
from slotproof.impl.protocol import Finish
from slotproof.proofs.gate.model_allocator import ModelAllocator

class Allocator(ModelAllocator):
    def step(self, call):
        if isinstance(call, Finish):
            open("hangs", "w").close()
            time.sleep(60)
        return super().step(call)
"""


def stopped(
    folder: Path, command: str, when: Callable[[], bool], how: signal.Signals
) -> tuple[int, str, str]:
    """Exit code and output of a command in a folder, which is sent a signal at some moment."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{BEATS}\ncli.main()", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    while process.poll() is None and not when():
        time.sleep(0.05)
    time.sleep(1)  # it has the time for a heartbeat
    process.send_signal(how)
    start = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    return process.returncode, out, err


BEATS = """
from slotproof.proofs.cli import main as cli, working
working.HEARTBEAT = 0.1
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_gate_tells_and_writes_what_is_known(how: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HANGS)
    command = "gate --impl mine:Allocator --exhaustive 4 --json gate.json --junit gate.xml"
    code, out, err = stopped(tmp_path, command, (tmp_path / "hangs").exists, how)
    assert code == 130
    assert out.startswith("mine:Allocator agrees with the model so far: ")
    assert re.search(
        r"^  interrupted, while it waited for .*: this is what was known by then$", out, re.MULTILINE
    )
    assert re.search(r"^slotproof: gate: \d+ calls? in \d+ sequences?, after \d s$", err, re.MULTILINE)
    report = json.loads((tmp_path / "gate.json").read_text())
    assert (report["verdict"], report["partial"]) == ("interrupted", True)
    assert report["calls"] > 0
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_a_replay_tells_the_calls_that_agreed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HANGS)
    calls: list[Call] = [AddRequest(request=0, tokens=(1,)), Allocate(request=0, new=1), Finish(request=0)]
    config = Config(num_blocks=4, block_size=2, max_model_len=8)
    write_trace(trace_of(config, expect_all(config, calls)), tmp_path / "t.json")
    command = "replay t.json --impl mine:Allocator --json replay.json"
    code, out, _ = stopped(tmp_path, command, (tmp_path / "hangs").exists, signal.SIGTERM)
    assert code == 130
    assert "\n   2. allocate request=0 new=1 -> " in out
    assert "finish" not in out
    assert "mine:Allocator: interrupted after 2 calls, without a difference so far\n" in out
    report = json.loads((tmp_path / "replay.json").read_text())
    assert (report["verdict"], report["partial"], report["calls"]) == ("interrupted", True, 2)


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
    assert bounded.search(engines("full")[:1], Rules(), bounded.breaks(()), bounded.Bounds()).interrupted
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "timeout")
    assert bounded.search(engines("full")[:1], Rules(), bounded.breaks(()), bounded.Bounds()).out_of_time


def test_an_interrupt_on_the_way_to_z3_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise ArgumentError("argument 1: KeyboardInterrupt: ")

    def broken(*_: object) -> NoReturn:
        raise ArgumentError("argument 1: wrong type")

    search = partial(bounded.search, engines("full")[:1], Rules(), bounded.breaks(()), bounded.Bounds())
    for method in ("__init__", "deepen"):
        monkeypatch.setattr(bounded.Search, method, interrupted)
        found = search()
        assert (found.interrupted, found.depth) == (True, 0)
        monkeypatch.undo()
    monkeypatch.setattr(bounded.Search, "deepen", broken)
    with pytest.raises(ArgumentError):
        search()


def test_explore_tells_how_far_it_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(z3.Solver, "check", lambda self: z3.unknown)
    monkeypatch.setattr(z3.Solver, "reason_unknown", lambda self: "interrupted from keyboard")
    file = tmp_path / "explored.json"
    assert cli.run(["explore", "--reach", "free == 0", "--kind", "full", "--json", str(file)]) == 130
    assert capsys.readouterr().out.startswith(
        "nothing found before it was interrupted: 2 requests, 0 calls, "
    )
    report = json.loads(file.read_text())
    assert (report["verdict"], report["partial"]) == ("unknown", True)


def test_the_matrix_keeps_the_rules_that_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_rule(*_: object) -> Generator[tuple[str, dict[str, Story]], None, None]:
        yield "keep_reserved", {}
        assert "keep_reserved (stage 2): NOTHING FALLS\n" in capsys.readouterr().out  # said at once
        raise KeyboardInterrupt

    monkeypatch.setattr(prove, "matrix", one_rule)
    monkeypatch.setattr(prove, "prove_statements", lambda *_: Report("proved", []))
    file = tmp_path / "proved.json"
    assert cli.run(["prove", "--matrix", "--json", str(file)]) == 130
    assert "interrupted: this is what was known by then\n" in capsys.readouterr().out
    report = json.loads(file.read_text())
    assert (report["partial"], report["rules"]) == (True, {"keep_reserved": []})


SWALLOWED = """
import time
from ctypes import ArgumentError
from slotproof.proofs.cli import main as cli

class Term:
    def __del__(self):
        raise {error}

def work(*_, **__):
    Term()
    time.sleep(20)

cli.slotproof.main = work
cli.main()
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", 'ArgumentError("argument 1: KeyboardInterrupt: ")'])
def test_an_interrupt_that_a_finalizer_swallowed_comes_again(error: str) -> None:
    program = SWALLOWED.format(error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (130, "slotproof: interrupted\n")


FORKS = """
import os, signal, threading
from slotproof.proofs.cli import interrupts

interrupts.watch()
interrupts.watch()
def fork_and_end():
    for _ in range(400):
        child = os.fork()
        if not child:
            signal.pause()
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
thread = threading.Thread(target=fork_and_end)
thread.start()
thread.join()
print("to the end")
"""


def test_who_ends_a_process_that_was_just_forked_does_not_interrupt_itself() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "to the end\n"), done.stderr
