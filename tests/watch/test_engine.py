"""A real engine is recorded while it serves, killed or not, and what it did is followed to the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from slotproof.impl.vllm.live.recorder import FLUSH_SECONDS
from slotproof.proofs.watch.recording import Recording, recordings
from slotproof.proofs.watch.summary import Summary

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
ENGINE = Path(__file__).with_name("engine.py")
OVERHEAD = Path(__file__).with_name("overhead.py")


def serve(folder: Path, rounds: int, *, killed: bool = False) -> subprocess.CompletedProcess[str]:
    (folder / "run").mkdir()
    if killed:
        (folder / "run" / "kill").touch()
    path = [os.environ.get("PYTHONPATH", "")]
    if not entry_points(group="vllm.general_plugins", name="slotproof"):  # as an installation declares it
        declared = folder / "slotproof_watch-0.dist-info"
        declared.mkdir()
        (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: slotproof-watch\nVersion: 0\n")
        (declared / "entry_points.txt").write_text(
            "[vllm.general_plugins]\nslotproof = slotproof.impl.vllm.live.plugin:register\n"
        )
        path.insert(0, str(folder))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "SLOTPROOF_WATCH": str(folder / "recorded"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [sys.executable, str(ENGINE), str(folder / "run"), str(rounds)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )


def followed(folder: Path) -> tuple[list[Recording], Summary]:
    summary = Summary()
    found = [Recording(path, summary) for path in recordings(folder / "recorded")]
    for recording in found:
        recording.advance()
    return found, summary


def events(path: Path) -> Counter[str]:
    """How often what was written down; a line that is torn is not counted."""
    seen: Counter[str] = Counter()
    for line in path.read_text().split("\n")[:-1]:
        kind, event, *_ = json.loads(line)
        if kind == "made":
            seen[event[0]] += 1
            seen[f"free {event[2][4]}" if event[0] == "free" else ""] += 1
            seen["hit"] += event[0] == "lookup" and event[3] > 0
    return seen


def test_what_an_engine_did_is_followed_to_the_end(tmp_path: Path) -> None:
    done = serve(tmp_path, 2)
    assert done.returncode == 0, done.stderr[-2000:]
    found, summary = followed(tmp_path)
    assert [r.follower.violation for r in found if r.follower] == [None] * len(found)
    assert (summary.violations, summary.managers) == (0, 1)
    assert not summary.not_followed
    assert summary.calls > 800
    seen = events(found[0].path)
    # vLLM frees a victim that still runs, and then says that it was preempted.
    for what in ("free RUNNING", "free FINISHED_ABORTED", "free FINISHED_LENGTH_CAPPED", "hit"):
        assert seen[what], what


def test_what_a_killed_engine_flushed_is_followed(tmp_path: Path) -> None:
    done = serve(tmp_path, 6, killed=True)
    assert done.returncode == -9
    ages = json.loads(done.stdout.splitlines()[-1])["ages"]
    found, summary = followed(tmp_path)
    assert (summary.violations, summary.managers) == (0, 1)
    assert summary.calls > 300
    assert not summary.not_followed
    kept = events(found[0].path)["allocate"]
    first = ages[kept] if kept < len(ages) else 0.0
    print(f"{len(ages)} calls of allocate_slots, lost the last {len(ages) - kept}, of {first:.2f} s")
    assert 300 < kept <= len(ages)
    assert first < FLUSH_SECONDS + 0.25  # a busy machine wakes a thread late


def test_recording_takes_less_than_a_twentieth_of_a_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(OVERHEAD), str(tmp_path), "1"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found["violations"] == 0
    assert found["followed_calls"] > 2000
    assert found["recorded"]["own"] < 0.05
