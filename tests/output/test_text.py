"""Calls and answers as people read them."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Call, EvictBlocks, Result, TakeNewBlockIds
from slotproof.proofs.gate.compare import difference
from slotproof.proofs.output.text import block_names, call_line, result_line


@pytest.mark.parametrize(
    ("call", "result", "line"),
    [
        (Allocate(0, 1), Result(new_blocks=(2,), hits=(1,)), "new blocks b2, hits b1"),
        (Allocate(0, 1), Result(new_blocks=()), "new blocks none"),
        (Allocate(0, 1), Result(granted=False, hits=(1, 4)), "None, hits b1 b4"),
        (TakeNewBlockIds(), Result(new_blocks=(3,)), "to zero: b3"),
    ],
)
def test_no_block_of_an_answer_looks_like_a_count(call: Call, result: Result, line: str) -> None:
    assert result_line(call, result) == line


def test_no_block_of_a_call_looks_like_a_count() -> None:
    assert call_line(EvictBlocks((1, 3))) == "evict_blocks blocks=b1,b3"
    assert call_line(AddRequest(0, (1, 3))) == "add_request request=0 tokens=1,3"
    assert block_names((0, 12)) == "null b12"


@pytest.mark.parametrize(
    ("field", "expected", "got", "line"),
    [
        ("result.hits", (1,), (), "result.hits: expected b1, got none"),
        ("free_queue[3]", 4, 1, "free_queue[3]: expected b4, got b1"),
        ("tables[0]", (0, 2), "no table", "tables[0]: expected null b2, got no table"),
        ("ref_cnt", (0, 1), (0, 2), "ref_cnt: expected (0, 1), got (0, 2)"),
    ],
)
def test_no_block_of_a_difference_looks_like_a_count(
    field: str, expected: object, got: object, line: str
) -> None:
    assert difference(field, expected, got).line == line
