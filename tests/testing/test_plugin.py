"""The plugin in a pytest of its own, as a user's project has it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PROJECT = """
from slotproof.impl.protocol import AddRequest, Allocate, Config, Finish
from slotproof.impl.vllm.adapter import VllmAllocator

CONFIG = Config(num_blocks=8, block_size=2, max_model_len=16)

def use(allocator):
    for r in range(3):
        allocator.step(AddRequest(r, tuple(range(10 * r, 10 * r + 7))))
        allocator.step(Allocate(r, 7))
        allocator.step(Finish(r))

def test_as_it_is(slotproof_watch):
    use(VllmAllocator(CONFIG))
    assert slotproof_watch.summary.calls == 9

def test_with_a_fault(slotproof_watch):
    allocator = VllmAllocator(CONFIG)
    pool = allocator._manager.block_pool
    original = pool.free_blocks
    pool.free_blocks = lambda blocks: original(list(blocks)[::-1])
    use(allocator)

def test_that_asks_for_nothing():
    use(VllmAllocator(CONFIG))
"""


def run(folder: Path, *arguments: str) -> str:
    (folder / "test_project.py").write_text(PROJECT)
    return pytest_in(folder, *arguments)


def pytest_in(folder: Path, *arguments: str) -> str:
    """Run pytest there, with the plugin: where slotproof is installed anew, it is loaded by itself."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    if not entry_points(group="pytest11", name="slotproof"):
        command += ["-p", "slotproof.testing.plugin"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.vllm
def test_a_violation_fails_the_test_that_made_it_and_the_end_counts(tmp_path: Path) -> None:
    printed = run(tmp_path, "--slotproof-watch")
    assert re.search("3 passed, .*1 error", printed)
    assert "ERROR test_project.py::test_with_a_fault" in printed
    assert "the call:" in printed
    assert "breaks" in printed or "expected" in printed
    assert "of 3 managers (2 to the end): 1 violation" in printed


def test_nothing_is_imported_for_who_does_not_ask(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n"
        "    assert not {'torch', 'z3', 'vllm', 'slotproof.proofs.watch'} & sys.modules.keys()\n"
    )
    assert "1 passed" in pytest_in(tmp_path)
