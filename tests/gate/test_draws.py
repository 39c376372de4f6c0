"""The same seed plays the same calls, whatever is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from slotproof.proofs.campaign.calls import NUMBER_BYTES

PLAY = """
import sys
sys.path.insert(0, {folder!r})
{imports}
from contextlib import closing
from slotproof.proofs.gate import gate
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated

with closing(Isolated(loader("slotproof.proofs.gate.model_allocator:ModelAllocator"))) as implementation:
    report = gate.campaign(implementation, calls=500, seed=3)
print(report.calls, report.sequences, report.coverage)
"""


def played(folder: Path, imports: str) -> str:
    code = PLAY.format(folder=str(folder), imports=imports)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_what_is_imported_does_not_change_what_a_seed_plays(tmp_path: Path) -> None:
    words = [bytes([n]) * NUMBER_BYTES for n in range(200)]
    (tmp_path / "wordy.py").write_text(f"WORDS = {words}\n")
    assert played(tmp_path, "") == played(tmp_path, "import wordy, slotproof.proofs.explore.explore")
