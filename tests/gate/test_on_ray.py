"""A campaign on a local Ray of two workers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

from slotproof.proofs.gate import on_ray
from slotproof.proofs.gate.ahead import Played, Turn
from slotproof.proofs.gate.gate import Report, campaign
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.on_ray import OnRay

pytest.importorskip("ray", reason="needs Ray: pip install 'slotproof[ray]'")
pytestmark = pytest.mark.slow


AS_IT_IS = loader("slotproof.proofs.gate.model_allocator:ModelAllocator")


def run(ray: bool) -> Report:
    with closing(Isolated(AS_IT_IS)) as implementation:
        others = partial(OnRay, "local", 2, AS_IT_IS, 60.0) if ray else None
        return campaign(implementation, calls=700, seed=5, others=others)


def test_the_same_seed_finds_the_same_on_a_cluster() -> None:
    alone, together = run(False), run(True)
    assert (alone.calls, alone.sequences, alone.coverage) == (
        together.calls,
        together.sequences,
        together.coverage,
    )


def test_what_a_dead_worker_had_is_dealt_again(tmp_path: Path) -> None:
    once = tmp_path / "died"

    def play(implementation: Isolated, turn: Turn) -> Played:
        if turn.number == 2 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Played(turn, False, calls=turn.number)

    with OnRay("local", 2, AS_IT_IS, 60.0, play) as players:
        played = [players.take(Turn(n)) for n in range(12)]
        assert players.died == 1
    assert once.exists()
    assert [p.calls for p in played if p is not None] == list(range(12))


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    slotproof = [sys.executable, "-c", "from slotproof.proofs.cli.main import main; main()"]
    asked = [*slotproof, "gate", "--impl", "torch", "--ray", "localhost:1"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("slotproof: --ray localhost:1: ")


def test_an_address_of_the_next_protocol_has_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def connect(address: tuple[str, int], timeout: float) -> StringIO:
        asked.append(address)
        return StringIO()

    monkeypatch.setattr(socket, "create_connection", connect)
    on_ray._reach("ray://[::1]:10001")
    assert asked == [("::1", 10001)]
