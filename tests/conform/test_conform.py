"""Ours conforms, and does not any more with a line broken: by a story that both tell, within seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from recompiled import recompiled

from slotproof.impl.allocator.kv_cache_manager import KVCacheManager
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.model.language.rules import Rules
from slotproof.proofs.conform.conform import (
    CONFORMS,
    DIFFERS,
    UNKNOWN,
    UNSUPPORTED,
    conform_case,
    is_possible,
)
from slotproof.proofs.conform.paths import Budget
from slotproof.proofs.conform.situation import Case
from slotproof.proofs.conform.targets.torch import TorchTarget
from slotproof.proofs.gate.replay import retell
from slotproof.proofs.traces.trace import read_trace, write_trace

NONE = Case("full", caching=False, holds=False)
HOLDS = Case("full", caching=False, holds=True)
CACHED = Case("full", caching=True, holds=True)

BROKEN = {
    "slots past max_model_len": (
        KVCacheManager,
        "allocate_slots",
        "min(num_tokens_main_model + num_lookahead_tokens, self.max_model_len)",
        "num_tokens_main_model + num_lookahead_tokens",
        HOLDS,
    ),
    "no slots for lookahead": (
        KVCacheManager,
        "allocate_slots",
        "num_tokens_main_model + num_lookahead_tokens",
        "num_tokens_main_model",
        HOLDS,
    ),
    "reserved blocks are given away": (
        KVCacheManager,
        "allocate_slots",
        "block_pool.get_num_free_blocks() - reserved_blocks",
        "block_pool.get_num_free_blocks()",
        HOLDS,
    ),
    "a negative count": (
        SingleTypeKVCacheManager,
        "get_num_blocks_to_allocate",
        "num_missing if num_missing > 0 else 0",
        "num_missing",
        HOLDS,
    ),
    "a block too few": (
        SingleTypeKVCacheManager,
        "_append_new_blocks",
        "-(-num_tokens // self.block_size)",
        "num_tokens // self.block_size",
        HOLDS,
    ),
    "external blocks are zeroed": (
        SingleTypeKVCacheManager,
        "_append_new_blocks",
        "if record_for_zeroing",
        "if not record_for_zeroing",
        NONE,
    ),
    "a check that is off by one": (
        KVCacheManager,
        "allocate_slots",
        "> block_pool.get_num_free_blocks() - reserved_blocks",
        ">= block_pool.get_num_free_blocks() - reserved_blocks",
        HOLDS,
    ),
    "a check of the whole prompt that is off by one": (
        KVCacheManager,
        "allocate_slots",
        "> block_pool.get_num_free_blocks():",
        ">= block_pool.get_num_free_blocks():",
        NONE,
    ),
    "a full table is not hashed": (
        SingleTypeKVCacheManager,
        "cache_blocks",
        "num_full > len(held.blocks)",
        "num_full >= len(held.blocks)",
        CACHED,
    ),
    "drafts are hashed": (
        KVCacheManager,
        "allocate_slots",
        "min(num_tokens_main_model, request.num_tokens)",
        "num_tokens_main_model",
        CACHED,
    ),
}


@contextmanager
def broken(owner: type, name: str, old: str, new: str) -> Iterator[None]:
    """The method has a text replaced while the context lasts."""

    def replaced(source: str) -> str:
        assert source.count(old) == 1, f"{name} has {source.count(old)} times: {old}"
        return source.replace(old, new)

    original: Any = vars(owner)[name]
    setattr(owner, name, recompiled(original, replaced))
    try:
        yield
    finally:
        setattr(owner, name, original)


@pytest.mark.parametrize("case", [NONE, HOLDS], ids=str)
def test_ours_conforms(case: Case) -> None:
    finding = conform_case(TorchTarget(), case)
    assert (finding.verdict, finding.what) == (CONFORMS, "")
    assert finding.paths >= 20


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
def test_a_broken_line_differs_by_a_story(fault: tuple[type, str, str, str, Case], tmp_path: Path) -> None:
    owner, name, old, new, case = fault
    with broken(owner, name, old, new):
        finding = conform_case(TorchTarget(), case)
    assert finding.verdict == DIFFERS
    assert finding.failure is not None
    path = tmp_path / "trace.json"
    write_trace(finding.failure.trace(), path)
    assert not retell(read_trace(path), path).differences


def test_a_model_without_a_rule_is_not_shown_to_agree() -> None:
    finding = conform_case(TorchTarget(), HOLDS, Rules().without("keep_reserved"))
    assert finding.verdict == UNKNOWN  # the story is told by the model with all rules: it agrees
    assert "not shown to agree" in finding.what


def test_budgets_are_told() -> None:
    finding = conform_case(TorchTarget(), HOLDS, budget=Budget(paths=3))
    assert finding.verdict == UNKNOWN
    assert finding.what.endswith("after 3 paths")


def test_what_is_not_followed_is_told_with_its_line() -> None:
    with broken(
        KVCacheManager,
        "allocate_slots",
        "watermark_blocks = 0\n",
        "watermark_blocks = hash(num_new_tokens)\n",
    ):
        finding = conform_case(TorchTarget(), HOLDS)
    assert finding.verdict == UNSUPPORTED
    assert "allocate_slots:" in finding.what


@pytest.mark.parametrize("case", TorchTarget.cases, ids=str)
def test_every_case_comes_up(case: Case) -> None:
    assert is_possible(case)
