"""Faults are what they say, judged in a tree of their own, and judged once."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from slotproof.proofs.mutate import mutate
from slotproof.proofs.mutate.argued import ARGUED
from slotproof.proofs.mutate.faults import Fault, faults
from slotproof.proofs.mutate.mutate import Judged, judge_all, sample
from slotproof.proofs.output.errors import UserError

SOURCE = """
def f(s, n):
    low = n + 1
    if_less = ite(n < 2, s.a, s.b)
    return s.replace(a=both(low <= n, n > 0), b=minimum(low, n - 1))
"""


def test_each_fault_is_one_change() -> None:
    lines = {}
    for fault in faults("f.py", SOURCE):
        changed = fault.applied(SOURCE)
        ast.parse(changed)
        lines[fault.kind, fault.line] = [
            new.strip() for new in changed.splitlines() if new not in SOURCE.splitlines()
        ]
    assert lines == {
        ("off by one", 3): ["low = n"],
        ("comparison", 4): ["if_less = ite((n <= 2), s.a, s.b)"],
        ("swapped branches", 4): ["if_less = ite(n < 2, s.b, s.a)"],
        ("dropped update of a", 5): ["return s.replace(b=minimum(low, n - 1))"],
        ("dropped update of b", 5): ["return s.replace(a=both(low <= n, n > 0))"],
        ("dropped condition 1", 5): ["return s.replace(a=both(n > 0), b=minimum(low, n - 1))"],
        ("dropped condition 2", 5): ["return s.replace(a=both(low <= n), b=minimum(low, n - 1))"],
        ("comparison", 5): ["return s.replace(a=both(low <= n, (n >= 0)), b=minimum(low, n - 1))"],
        ("off by one", 5): ["return s.replace(a=both(low <= n, n > 0), b=minimum(low, n))"],
        ("maximum for minimum", 5): ["return s.replace(a=both(low <= n, n > 0), b=maximum(low, n - 1))"],
    }


def test_a_seed_is_a_sample() -> None:
    assert sample(mutate.ROOT, 5, seed=1) == sample(mutate.ROOT, 5, seed=1)
    assert sample(mutate.ROOT, 5, seed=1) != sample(mutate.ROOT, 5, seed=2)


def reset_anyway() -> Fault:
    """The fault by which a reset drops the hashes of blocks that are held."""
    path = mutate.MODEL / "system" / "pool.py"
    found = faults("model/system/pool.py", path.read_text())
    lines = path.read_text().splitlines()
    return next(f for f in found if f.kind == "comparison" and "num_held == 0" in lines[f.line - 1])


def of_faults_alone(file: str) -> Callable[[str, Path], str]:
    """Asks a judge as ever, but not about the file as it is, in which none sees anything in half a minute."""
    ask, original = mutate._ask, (mutate.ROOT / file).read_text()
    return lambda judge, tree: ask(judge, tree) if (tree / file).read_text() != original else ""


def test_a_fault_is_seen_and_not_judged_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a campaign in a copy of the tree; the tree itself is as it was."""
    monkeypatch.setattr(mutate, "judges", lambda: ["campaign"])
    fault, path = reset_anyway(), tmp_path / "judged"
    monkeypatch.setattr(mutate, "_ask", of_faults_alone(fault.file))
    monkeypatch.setattr(mutate, "sample", lambda root, count, seed: [fault])
    before = (mutate.ROOT / fault.file).read_text()
    (judged,) = judge_all(1, 1, path)
    assert judged.seen["campaign"].startswith("refusal-leaves-no-trace: ")
    assert "s.num_held != 0" in judged.diff
    assert (mutate.ROOT / fault.file).read_text() == before
    monkeypatch.setattr(mutate, "_ask", lambda judge, tree: "")
    assert list(judge_all(1, 1, path)) == [judged]


def test_a_model_that_is_wrong_already_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "_ask", lambda judge, tree: "broken")
    with pytest.raises(UserError, match="without any fault"):
        list(judge_all(1, 1, tmp_path / "judged"))


def test_a_file_of_something_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "judged").write_text("{}\n")
    with pytest.raises(UserError, match="name another"):
        mutate.read(tmp_path / "judged")


def test_what_does_not_run_is_seen_by_nobody_in_particular(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "judges", lambda: ["campaign"])
    fault = reset_anyway()
    monkeypatch.setattr(mutate, "_ask", of_faults_alone(fault.file))
    broken = Fault(fault.file, "no such name", *(1, 0, 1, 0), "no_such_name\n")
    monkeypatch.setattr(mutate, "sample", lambda root, count, seed: [broken])
    (judged,) = judge_all(1, 1, tmp_path / "judged")
    assert judged.is_broken
    assert "SyntaxError" in judged.seen["campaign"]


def test_a_fault_that_nothing_saw_survives() -> None:
    assert Judged("f", "", {"campaign": "", "proof": ""}).survives
    assert not Judged("f", "", {"campaign": "", "proof": "x"}).survives


def test_what_makes_no_difference_is_a_fault_that_there_is_and_survives_no_more() -> None:
    there = {
        (fault.file, fault.function, fault.kind)
        for file in {file for file, _, _ in ARGUED}
        for fault in faults(file, (mutate.ROOT / file).read_text())
    }
    assert set(ARGUED) <= there
    unseen = Judged("f", "", {"campaign": "", "proof": ""}, "nobody asks")
    assert unseen.is_unseen
    assert not unseen.survives
