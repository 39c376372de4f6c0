"""`slotproof gate` and `slotproof replay`, as they are typed."""

from __future__ import annotations

import codecs
import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from slotproof.impl.protocol import Config
from slotproof.proofs.cli.main import run
from slotproof.proofs.gate import gate
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.oracle import trace_of
from slotproof.proofs.traces.trace import write_trace

TRACE = "slotproof-trace-mine-tampered-1.json"
"""Where a difference of mine:tampered goes if nobody says otherwise."""
MODEL = "slotproof.proofs.gate.model_allocator:ModelAllocator"

ALLOCATORS = """
import os
import time
from functools import partial

from slotproof.impl.protocol import Finish
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.model_allocator import ModelAllocator

tampered = partial(ModelAllocator, rules=Rules().without("free_tail_first"))
number = 5


def on_finish(act):
    class Allocator(ModelAllocator):
        def step(self, call):
            return act() if isinstance(call, Finish) else super().step(call)

    return Allocator


def boom():
    raise RuntimeError("boom")


raises = on_finish(boom)
hangs = on_finish(lambda: time.sleep(60))
dies = on_finish(lambda: os._exit(3))
babbles = on_finish(lambda: 42)


def factory_raises(config):
    raise RuntimeError("no room")


def factory_hangs(config):
    time.sleep(60)


def factory_dies(config):
    os._exit(3)


def factory_babbles(config):
    return "allocator"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a user's module in it."""
    (tmp_path / "mine.py").write_text(ALLOCATORS)
    (tmp_path / "quits.py").write_text("import sys\nsys.exit('bye')")
    (tmp_path / "stops.py").write_text("class Stop(BaseException): pass\nraise Stop('here')")
    (tmp_path / "marked.json").write_bytes(codecs.BOM_UTF8 + b"{}")
    (tmp_path / "broken_module.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gate, "SHRINK_TRIES", 50)
    monkeypatch.setitem(gate.SHRINK_SECONDS, Strictness.EXACT, 1.0)
    return tmp_path


def slotproof(*arguments: object) -> int:
    return run([str(argument) for argument in arguments])


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, if it was one line on standard error."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.strip()


def test_agreement(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert slotproof("gate", "--impl", MODEL, "--calls", 4000, "--seed", 1) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{MODEL} agrees with the model: 4000 calls in ")
    assert (out.count("\n"), err) == (1, "")
    assert not list(folder.glob("slotproof*"))


def test_a_difference_is_told_and_replays(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert slotproof("gate", "--impl", "mine:tampered", "--calls", 4000, "--seed", 1) == 1
    out = capsys.readouterr().out
    assert out.startswith("mine:tampered disagrees with the model at: ")
    assert "  free_queue: expected b" in out
    assert "  again: slotproof gate --impl mine:tampered --calls 4000 --seed 1\n" in out
    assert f"slotproof replay {TRACE} --impl mine:tampered\n" in out

    assert slotproof("replay", TRACE, "--impl", "mine:tampered") == 1
    out = capsys.readouterr().out
    assert "mine:tampered disagrees with the trace at call " in out
    assert slotproof("replay", TRACE, "--impl", MODEL) == 0
    assert f"{MODEL} agrees with the trace: " in capsys.readouterr().out
    assert slotproof("replay", TRACE) == 0
    out = capsys.readouterr().out
    assert "   1. add_request request=" in out
    assert "the model agrees with the trace: " in out


def test_too_few_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof("gate", "--impl", MODEL, "--calls", 20) == 3
    out = capsys.readouterr().out
    assert "too small to tell" in out
    assert "\n  never reached: refused: stage 0\n" in out
    assert f"\n  give it more: slotproof gate --impl {MODEL} --calls 40 --seed 0\n" in out


def test_coverage_is_told_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof("gate", "--impl", MODEL, "--calls", 20, "--coverage") == 3
    told = capsys.readouterr().out.splitlines()
    more = next(n for n, line in enumerate(told) if line.startswith("  give it more: "))
    rows = dict(line.rsplit(maxsplit=1) for line in told[more + 1 :])
    assert rows["  refused: stage 0"] == "0"
    assert len({len(line) for line in told[more + 1 :]}) == 1


@pytest.mark.parametrize(("calls", "interrupted"), [(9, False), (9, True), (0, True), (0, False)])
def test_a_terminal_is_told_the_coverage_of_a_whole_campaign_alone(
    calls: int, interrupted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = gate.Report(
        ["call: finish"], calls, coverage=Counter({"call: finish": 7}), interrupted=interrupted
    )
    monkeypatch.setattr(gate, "campaign", lambda *_, **__: report)
    monkeypatch.setattr(Console, "is_terminal", True)
    slotproof("gate", "--impl", MODEL)
    assert ("  call: finish         7\n" in capsys.readouterr().out) is (calls > 0 and not interrupted)


def test_a_difference_comes_before_the_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof("gate", "--impl", "mine:tampered", "--exhaustive", 4, "--coverage") == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("mine:tampered disagrees with the model at: ")
    assert told.index("  again: slotproof gate --impl mine:tampered --exhaustive 4") < next(
        n for n, line in enumerate(told) if line.startswith("  call: finish")
    )


def test_what_to_type_next_repeats_every_option(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    how = ["--compare", "counts", "--patience", "7"]
    trace = folder / "a trace.json"
    assert slotproof("gate", "--impl", "mine:raises", "--calls", 500, *how, "--trace", trace) == 1
    out = capsys.readouterr().out
    assert f"  again: slotproof gate --impl mine:raises --calls 500 --seed 0 {' '.join(how)}\n" in out
    replay = f"slotproof replay '{trace}' --impl mine:raises {' '.join(how)}"
    assert f": {replay}\n" in out
    assert slotproof(*shlex.split(replay)[1:]) == 1


def test_nothing_compared_is_no_agreement(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert slotproof("gate", "--impl", MODEL, "--seconds", 1e-9, "--json", "j.json", "--junit", "j.xml") == 3
    out = capsys.readouterr().out
    assert out.startswith(f"{MODEL}: nothing was compared: 0 calls in 0 sequences")
    assert "agrees" not in out
    assert json.loads((folder / "j.json").read_text())["verdict"] == "nothing"
    assert ElementTree.parse(folder / "j.xml").getroot().get("failures") == "1"

    config = Config(num_blocks=4, block_size=2, max_model_len=8)
    write_trace(trace_of(config, []), folder / "start.json")
    for implementation in ([], ["--impl", MODEL]):
        assert slotproof("replay", "start.json", *implementation, "--json", "replay.json") == 3
        out = capsys.readouterr().out
        assert "nothing was compared: the trace has no calls\nwrote replay.json\n" in out
        assert json.loads((folder / "replay.json").read_text())["verdict"] == "nothing"


def test_reports_for_machines(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    for implementation, code in ((MODEL, 0), ("mine:tampered", 1)):
        options = ("--calls", 4000, "--seed", 1, "--json", "-", "--junit", "junit.xml", "--trace", "t.json")
        assert slotproof("gate", "--impl", implementation, *options) == code
        out, err = capsys.readouterr()
        report = json.loads(out)
        assert err.startswith(implementation)
        assert err.endswith("wrote t.json\nwrote junit.xml\n" if code else "wrote junit.xml\n")
        assert report["partial"] is False
        assert report["verdict"] == ("disagrees" if code else "agrees")
        assert {"calls", "coverage", "differences", "seed"} <= set(report)
        assert bool(report["differences"]) == bool(code) == (folder / "t.json").exists()
        suite = ElementTree.parse(folder / "junit.xml").getroot()
        assert (suite.get("tests"), suite.get("failures")) == ("2", str(code))
    assert report["differences"][0]["field"] == "free_queue"
    assert report["call"]["call"] in ("finish", "preempt")
    assert slotproof("replay", "t.json", "--impl", "mine:tampered", "--json", "replay.json") == 1
    replayed = json.loads((folder / "replay.json").read_text())
    assert (replayed["verdict"], replayed["differences"]) == ("disagrees", report["differences"])


def test_exhaustive(capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof("gate", "--impl", MODEL, "--exhaustive", 2) == 0
    assert slotproof("gate", "--impl", "mine:tampered", "--exhaustive", 4) == 1
    assert "again: slotproof gate --impl mine:tampered --exhaustive 4\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raises", "raised RuntimeError: boom (mine.py:23)"),
        ("hangs", "the call hung for 2 s"),
        ("dies", "the process died (exit code 3)"),
        ("babbles", "nonsense: 42 is no Result"),
        ("factory_hangs", "the factory hung for 2 s"),
        ("factory_dies", "the process died (exit code 3)"),
        ("factory_babbles", "raised AttributeError: 'str' object has no attribute 'snapshot'"),
    ],
)
def test_an_implementation_that_gives_no_answer(
    name: str, text: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert slotproof("gate", "--impl", f"mine:{name}", "--calls", 500, "--patience", 2) == 1
    out = capsys.readouterr().out
    assert f"  answer: expected one, got none: {text}\n" in out
    trace = f"slotproof-trace-mine-{name}-0.json"
    again = f"slotproof replay {trace} --impl mine:{name} --patience 2"
    assert f": {again}\n" in out
    assert f"\nwrote {trace}\n" in out
    assert slotproof("replay", trace) == (3 if name.startswith("factory") else 0)  # 3: a start state alone
    assert slotproof(*shlex.split(again)[1:]) == 1
    assert f"  answer: expected one, got none: {text}\n" in capsys.readouterr().out


USAGE: dict[str, tuple[list[str], str]] = {
    "no implementation": (["gate"], "say what to gate: --impl"),
    "an unknown one": (["gate", "--impl", "jax"], "--impl jax: name torch, vllm, or MODULE:FACTORY"),
    "no module": (["gate", "--impl", "nowhere:f"], "nowhere cannot be imported: ModuleNotFoundError"),
    "a module that fails": (["gate", "--impl", "broken_module:f"], "No module named 'nothing_of_this_name'"),
    "a module that quits": (["gate", "--impl", "quits:f"], "quits cannot be imported: SystemExit: bye"),
    "a module that stops": (["gate", "--impl", "stops:f"], "stops:f: stops cannot be imported: Stop: here"),
    "no attribute": (["gate", "--impl", "mine:nothing"], "mine has no nothing"),
    "no factory": (["gate", "--impl", "mine:number"], "it is no factory"),
    "a factory that raises": (
        ["gate", "--impl", "mine:factory_raises"],
        "the factory raised RuntimeError: no room",
    ),
    "no calls": (["gate", "--impl", MODEL, "--calls", "0"], "'--calls': 0 is not in the range"),
    "words for calls": (["gate", "--impl", MODEL, "--calls", "many"], "'many' is not a valid integer"),
    "a mode that is none": (["gate", "--impl", MODEL, "--compare", "roughly"], "'roughly' is not one of"),
    "two kinds of campaign": (
        ["gate", "--impl", MODEL, "--exhaustive", "2", "--calls", "9"],
        "leave out --calls",
    ),
    "a device for another": (["gate", "--impl", MODEL, "--device", "cuda"], "only --impl torch has devices"),
    "one file for two": (
        ["gate", "--impl", MODEL, "--json", "a.json", "--junit", "./a.json"],
        "--junit and --json: a.json can be only one of them: name two files",
    ),
    "the default trace for another": (
        ["gate", "--impl", "mine:tampered", "--seed", "1", "--json", TRACE],
        f"--trace and --json: {TRACE} can be only one of them",
    ),
    "a trace to write over": (
        ["replay", "mine.py", "--json", "mine.py"],
        "TRACE and --json: mine.py can be only",
    ),
    "no folder": (["gate", "--impl", MODEL, "--json", "no/where.json"], "there is no folder no"),
    "a folder for a file": (["gate", "--impl", MODEL, "--trace", "."], "is a folder"),
    "no trace": (["replay"], "Missing argument 'TRACE'"),
    "a trace that is not there": (["replay", "nowhere.json"], "nowhere.json: cannot be read: No such file"),
    "a trace that is none": (["replay", "mine.py"], "mine.py: not a trace: JSON is malformed"),
    "a byte-order mark": (
        ["replay", "marked.json"],
        "marked.json: not a trace: it starts with a byte-order mark",
    ),
    "an unknown command": (["gaet"], "No such command 'gaet'"),
    "an unknown option": (["gate", "--implementation", "torch"], "No such option"),
}


@pytest.mark.parametrize(("arguments", "text"), USAGE.values(), ids=USAGE)
def test_what_cannot_be_used(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof(*arguments) == 2
    assert text in only_line(capsys)


def test_a_trace_with_a_call_that_no_caller_may_make(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert slotproof("gate", "--impl", "mine:tampered", "--calls", 4000, "--seed", 1) == 1
    content = json.loads((folder / TRACE).read_text())
    content["states"][1]["call"] = {"call": "preempt", "request": 77}
    (folder / "bad.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert slotproof("replay", "bad.json") == 2
    line = only_line(capsys)
    assert (
        line == "slotproof: bad.json: $.states[1].call: preempt: outside the caller's contract: request-runs"
    )


def test_a_trace_that_the_model_tells_otherwise(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert slotproof("gate", "--impl", "mine:tampered", "--calls", 4000, "--seed", 1) == 1
    content = json.loads((folder / TRACE).read_text())
    content["states"][1]["to_zero"] = [1]
    (folder / "bad.json").write_text(json.dumps(content))
    capsys.readouterr()
    assert slotproof("replay", "bad.json", "--impl", MODEL) == 1
    assert (
        "the model disagrees with the trace at call 1\n  to_zero: expected b1, got none"
        in capsys.readouterr().out
    )


def test_an_error_of_its_own_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(gate, "campaign", fail)
    assert slotproof("gate", "--impl", MODEL) == 3
    assert "an error of its own: ZeroDivisionError: oh" in only_line(capsys)


def test_as_a_process(folder: Path) -> None:
    """Standard output holds nothing but JSON, whatever an implementation prints."""
    (folder / "noisy.py").write_text(
        "print('importing')\nfrom slotproof.proofs.gate.model_allocator import ModelAllocator\n"
        "def factory(config):\n    print('making')\n    return ModelAllocator(config)\n"
    )
    command = "from slotproof.proofs.cli.main import main; main()"
    arguments = ["gate", "--impl", "noisy:factory", "--calls", "200", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["verdict"] == "uncovered"
    assert "making" in done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert slotproof("--help") == 0
    out = capsys.readouterr().out
    assert "gate" in out
    assert "replay" in out
