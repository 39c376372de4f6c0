"""What a recorder writes, and `slotproof watch` reads: as it is, torn, at its bound, and altered."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Config, Finish
from slotproof.impl.vllm.adapter import VllmAllocator
from slotproof.impl.vllm.live.recorder import Recorder
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, configurations, decode, model_config
from slotproof.proofs.cli.main import run
from slotproof.proofs.watch.recording import Recording
from slotproof.proofs.watch.summary import Summary

pytestmark = pytest.mark.vllm
SMALL = Config(num_blocks=8, block_size=2, max_model_len=16)


def use(allocator: VllmAllocator, requests: int = 3) -> None:
    for r in range(requests):
        allocator.step(AddRequest(r, tuple(range(10 * r, 10 * r + 7))))
        allocator.step(Allocate(r, 7))
        allocator.step(Finish(r))


def recorded(folder: Path, config: Config = SMALL) -> tuple[VllmAllocator, Recorder]:
    allocator = VllmAllocator(config)
    return allocator, Recorder(allocator._manager, folder)


def followed(path: Path) -> tuple[Recording, Summary]:
    summary = Summary()
    recording = Recording(path, summary)
    recording.advance()
    return recording, summary


def test_a_recording_is_followed_to_its_end(tmp_path: Path) -> None:
    for index, config in enumerate(configurations(4, has_groups=True, has_more=True)[:8]):
        allocator, recorder = recorded(tmp_path, config)
        running, random = Running(**model_config(config)), Random(index)
        for _ in range(60):
            call = decode(running, random.getrandbits(8 * NUMBER_BYTES))
            name, fields = call_fields(call)
            running.step(name, **fields)
            allocator.step(call)
        recorder._whole()
        recorder.flush()
        recording, summary = followed(recorder.path)
        assert recording.follower is not None
        assert recording.follower.violation is None
        assert summary.calls > 20
        assert not summary.not_followed


def test_a_torn_end_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator, recorder = recorded(tmp_path)
    use(allocator)
    recorder.flush()
    whole = recorder.path.read_bytes()
    recorder.path.write_bytes(whole[:-20])
    assert run(["watch", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "its last line has no end" in printed
    assert "followed 8 calls of 1 manager: none in disagreement" in printed


def test_an_altered_answer_is_a_violation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allocator, recorder = recorded(tmp_path)
    use(allocator)
    recorder.flush()
    lines = recorder.path.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"allocate"' in line)
    made = json.loads(lines[index])
    assert made[1][-2] == [[1, 2, 3, 4]]
    made[1][-2] = [[1, 2, 4, 3]]
    lines[index] = json.dumps(made)
    recorder.path.write_text("\n".join(lines) + "\n")
    assert run(["watch", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "result.new_blocks: expected b1 b2 b3 b4, got b1 b2 b4 b3" in printed
    assert "1 violation" in printed


def test_a_file_ends_at_its_bound_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLOTPROOF_WATCH_MB", "0.004")
    allocator, recorder = recorded(tmp_path)
    use(allocator, requests=40)
    recorder.flush()
    assert recorder.path.stat().st_size < 5000
    assert run(["watch", str(tmp_path)]) == 0
    assert "the file has come to its bound of 4194 bytes" in capsys.readouterr().out


def test_who_cannot_be_followed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from slotproof.impl.vllm.parts import kv_cache_config

    Recorder(KVCacheManager(kv_cache_config(SMALL), 16, 4, 4, dcp_world_size=2), tmp_path)
    assert run(["watch", str(tmp_path)]) == 3
    assert "1 manager not followed at all: a block is spread" in capsys.readouterr().out


def test_no_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["watch", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
