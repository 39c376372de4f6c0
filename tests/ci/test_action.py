"""The composite action: its steps, run here as a runner would, but for what it installs and uploads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
FAULTY = """
from functools import partial
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.model_allocator import ModelAllocator
allocator = partial(ModelAllocator, rules=Rules().without("free_tail_first"))
"""


def step(
    name: str, folder: Path, binaries: Path = Path(sys.executable).parent, **inputs: str
) -> subprocess.CompletedProcess[str]:
    """Run a step of the action in a folder, with the programs of an environment."""
    action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    given = {key: value["default"] for key, value in action["inputs"].items()} | inputs
    (found,) = [s for s in action["runs"]["steps"] if s.get("id") == name]

    def filled(text: str) -> str:
        text = text.replace("${{ github.action_path }}", str(folder / "source"))
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: given[match[1]], text)

    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "GITHUB_OUTPUT": str(folder / "output.txt"),
        **{key: filled(value) for key, value in found["env"].items()},
    }
    # A runner's `shell: bash` is this.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


def test_a_gate_that_agrees_passes_and_says_so(tmp_path: Path) -> None:
    done = step("gate", tmp_path, impl="torch", calls="200", options="--coverage", jobs="1")
    assert done.returncode in (0, 3), done.stderr  # so few calls do not reach all that is worth having seen
    assert "agrees with the model" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "output.txt").read_text().startswith("verdict=")
    results = tmp_path / "slotproof-results"
    assert json.loads((results / "gate.json").read_text())["calls"] == 200
    assert (results / "junit.xml").exists()
    assert not (results / "trace.json").exists()


def test_a_gate_that_disagrees_fails_with_trace_and_page(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    done = step("gate", tmp_path, impl="faulty:allocator", calls="2000", jobs="1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert (tmp_path / "output.txt").read_text() == "verdict=disagrees\n"
    assert "disagrees" in (tmp_path / "summary.md").read_text()
    results = tmp_path / "slotproof-results"
    assert "<html" in (results / "story.html").read_text()
    assert json.loads((results / "trace.json").read_text())
    assert "<failure" in (results / "junit.xml").read_text()


@pytest.mark.slow
def test_the_steps_install_prove_and_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment of its own; what slotproof depends on is there already, and pip asks no index."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tmp_path / "source", ignore=left_out)
    venv.create(tmp_path / "venv", with_pip=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for older in packages.glob("setuptools*"):  # than what builds slotproof
        shutil.rmtree(older)
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for name, value in {"NO_INDEX": "1", "NO_DEPS": "1", "NO_BUILD_ISOLATION": "0"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PYTHONPATH", "")
    binaries = tmp_path / "venv" / "bin"
    for name in ("install", "prove", "gate"):
        done = step(name, tmp_path, binaries, impl="torch", calls="300", prove="true")
        assert done.returncode == 0 or (name, done.returncode) == ("gate", 3), done.stdout + done.stderr
    assert (binaries / "slotproof").exists()
    summary = (tmp_path / "summary.md").read_text()
    assert "### slotproof prove" in summary
    assert "agrees with the model" in summary


def test_every_input_is_used_and_every_one_used_is_an_input() -> None:
    text = ACTION.read_text()
    used = set(re.findall(r"inputs\.(\w+)", text))
    assert used == set(yaml.safe_load(text)["inputs"])
