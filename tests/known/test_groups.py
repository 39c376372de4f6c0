"""What several groups of vLLM 0.32.0 do less than one would expect (KNOWN.md)."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Config, EvictBlocks, Finish, Group
from slotproof.impl.vllm import adapter
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import model_config

NINE = tuple(range(1, 10))


def sent_twice(config: Config) -> tuple[int, int]:
    """The tokens that a prompt of nine hits when it is sent again: on vLLM, and in the model."""
    allocator, running = adapter.vllm_allocator(config), Running(**model_config(config))
    calls = (AddRequest(0, NINE), Allocate(0, 9), Finish(0), AddRequest(1, NINE))
    for call in calls:
        allocator.step(call)
    running.step("add_request", request=0, tokens=NINE)
    running.step("allocate", request=0, new=9)
    running.step("finish", request=0)
    running.step("add_request", request=1, tokens=NINE)
    return allocator.find(allocator.ledger.entry(Finish(1))).num_tokens, running.hits(1).tokens


@pytest.mark.vllm
@pytest.mark.parametrize(("interval", "hit"), [(None, 8), (0, 4)])
def test_with_a_draft_head_a_resend_may_lose_a_unit(interval: int | None, hit: int) -> None:
    config = Config(
        num_blocks=30,
        block_size=4,
        sliding_window=2,
        max_model_len=12,
        groups=(Group(block_size=1, sliding_window=2, is_eagle=True),),
        retention_interval=interval,
    )
    assert sent_twice(config) == (hit, hit)


@pytest.mark.vllm
def test_of_two_kinds_of_windows_one_may_not_drop_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(
        num_blocks=30,
        block_size=1,
        sliding_window=2,
        is_eagle=True,
        max_model_len=12,
        groups=(Group(block_size=1, sliding_window=3, is_eagle=True),),
    )
    with pytest.raises(ValueError, match="group 1: is_eagle is True"):
        adapter.vllm_allocator(config)
    monkeypatch.setattr(adapter, "check_groups", lambda config: None)
    allocator = adapter.vllm_allocator(config)
    allocator.step(AddRequest(0, NINE[:6]))
    allocator.step(Allocate(0, 6))
    tables = allocator.snapshot().tables
    allocator.step(EvictBlocks((tables[0][3], tables[1][4])))
    allocator.step(AddRequest(1, NINE[:7]))
    found = allocator.find(allocator.ledger.entry(Finish(1)))
    assert found.num_tokens == 3  # and the first group's block of the fourth token is gone


@pytest.mark.vllm
def test_full_attention_with_blocks_of_several_units_keys_a_prompts_last_block_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = Config(
        num_blocks=30, block_size=2, max_model_len=12, groups=(Group(block_size=1, sliding_window=2),)
    )
    with pytest.raises(ValueError, match="group 0: block_size is 2: vLLM, which hashes 1 token"):
        adapter.vllm_allocator(config)
    monkeypatch.setattr(adapter, "_check_units", lambda config: None)
    allocator = adapter.vllm_allocator(config)
    allocator.step(AddRequest(0, NINE[:8]))
    allocator.step(Allocate(0, 8))
    state = allocator.snapshot()
    last = state.tables[0][3]
    assert state.copies is not None
    assert state.copies.count((last,)) == 2  # under the key of eight tokens, and under that of seven
