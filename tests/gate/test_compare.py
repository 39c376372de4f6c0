"""Each thing that can differ is seen, as strictly as asked and no stricter."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from slotproof.impl.protocol import Config, Result, Snapshot
from slotproof.proofs.gate.by_itself.consistency import Consistency
from slotproof.proofs.gate.compare import (
    KeyMatch,
    Strictness,
    difference,
    list_difference,
    result_differences,
    snapshot_differences,
)

CONFIG = Config(num_blocks=6, block_size=2, max_model_len=8)
STATE = Snapshot(
    free_queue=(3, 4, 2),
    ref_cnt=(0, 2, 0, 0, 0, 1),
    hashes=(None, 11, 12, None, None, None),
    tables={0: (1, 5), 1: (0, 1)},
    usage=1 - 3 / 5,
    to_zero=(5,),
)


def changed(**fields: Any) -> Snapshot:
    return msgspec.structs.replace(STATE, **fields)


def fields_that_differ(strictness: Strictness, got: Snapshot) -> list[str]:
    return [found.field for found in snapshot_differences(strictness, STATE, got, KeyMatch())]


@pytest.mark.parametrize("strictness", [Strictness.EXACT, Strictness.COUNTS])
def test_equal_states_do_not_differ(strictness: Strictness) -> None:
    renamed = changed(hashes=(None, b"a", b"b", None, None, None))
    assert fields_that_differ(strictness, STATE) == []
    assert fields_that_differ(strictness, renamed) == []


# Each change, and whether a comparison of counts, and a look at the state alone, sees it; an exact one does.
CHANGES: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("free_queue", {"free_queue": (4, 3, 2)}, False, False),
    ("free_queue", {"free_queue": (3, 4)}, True, True),
    ("free_queue", {"free_queue": (3, 4, 4)}, False, True),
    ("free_queue", {"free_queue": (3, 4, 0)}, True, True),
    ("ref_cnt", {"ref_cnt": (0, 1, 0, 0, 0, 1)}, True, True),
    ("ref_cnt", {"ref_cnt": (0, 1, 0, 0, 0, 2)}, False, True),
    ("hashes[1]", {"hashes": (None, None, 12, None, None, None)}, True, False),
    ("hashes[3]", {"hashes": (None, 11, 12, 13, None, None)}, True, False),
    ("hashes[2]", {"hashes": (None, 11, 11, None, None, None)}, False, False),
    ("hashes", {"hashes": (None, 11, 12)}, False, True),
    ("tables[0]", {"tables": {0: (5, 1), 1: (0, 1)}}, False, False),
    ("tables[0]", {"tables": {0: (1,), 1: (0, 1)}}, True, True),
    ("tables[1]", {"tables": {0: (1, 5)}}, True, True),
    ("tables[1]", {"tables": {0: (1, 5), 1: (1, 0)}}, False, False),
    ("usage", {"usage": 0.5}, True, True),
    ("usage", {"usage": float("nan")}, True, True),
    ("to_zero", {"to_zero": ()}, True, False),
    ("to_zero", {"to_zero": (9,)}, False, True),
]


@pytest.mark.parametrize(("field", "change", "by_counts", "by_itself"), CHANGES)
def test_a_change_is_seen(field: str, change: dict[str, Any], by_counts: bool, by_itself: bool) -> None:
    got = changed(**change)
    assert fields_that_differ(Strictness.EXACT, got)[0].startswith(field)
    assert bool(fields_that_differ(Strictness.COUNTS, got)) == by_counts
    assert bool(Consistency(CONFIG, frozenset()).state(got)) == by_itself


@pytest.mark.parametrize(("field", "change", "by_counts", "by_itself"), CHANGES)
def test_a_field_that_is_hidden_is_not_looked_at(
    field: str, change: dict[str, Any], by_counts: bool, by_itself: bool
) -> None:
    got, hidden = changed(**change), frozenset(change)
    assert snapshot_differences(Strictness.EXACT, STATE, got, KeyMatch(), hidden) == []
    assert Consistency(CONFIG, hidden).state(got) == []


def test_a_usage_in_single_precision_is_the_same_and_a_block_of_a_million_is_not() -> None:
    single = float(np.float32(STATE.usage))
    assert single != STATE.usage
    assert fields_that_differ(Strictness.EXACT, changed(usage=single)) == []
    assert fields_that_differ(Strictness.EXACT, changed(usage=STATE.usage + 1e-6)) == ["usage"]


def test_a_key_keeps_its_meaning_between_snapshots() -> None:
    keys = KeyMatch()
    assert keys.differences((None, 1, None), (None, b"a", None)) == []
    assert keys.differences((None, None, 1), (None, None, b"a")) == []
    assert [found.line for found in keys.differences((None, 2, None), (None, b"a", None))] == [
        "hashes[1]: expected a key of its own, got the key of other tokens"
    ]
    assert [found.line for found in keys.differences((None, 1, None), (None, b"c", None))] == [
        "hashes[1]: expected the key of equal tokens before, got another key"
    ]


def test_results() -> None:
    ours = Result(hits=(0, 4), new_blocks=(1, 2))
    other = Result(hits=(0, 5), new_blocks=(2, 1))
    fewer = Result(granted=False, hits=(4, 5))
    assert [d.field for d in result_differences(Strictness.EXACT, ours, other)] == [
        "result.hits",
        "result.new_blocks",
    ]
    assert result_differences(Strictness.COUNTS, ours, other) == []
    assert [d.line for d in result_differences(Strictness.COUNTS, ours, fewer)] == [
        "result.granted: expected True, got False",
        "result.hits: expected 2 blocks (1 null), got 2 blocks",
        "result.new_blocks: expected 2 blocks, got 0 blocks",
    ]
    assert [d.field for d in result_differences(Strictness.EXACT, ours, fewer, frozenset({"hits"}))] == [
        "result.granted",
        "result.new_blocks",
    ]


def test_of_long_lists_the_entries_that_differ_are_told() -> None:
    ours = tuple(range(1, 32))
    theirs = (*ours[:3], 5, 4, *ours[5:])
    assert (
        list_difference("free_queue", ours, theirs).line
        == "free_queue: expected [3] b4 [4] b5, got [3] b5 [4] b4"
    )
    shorter = list_difference("ref_cnt", (1,) * 32, (1,) * 30)
    assert shorter.line == "ref_cnt: expected [30] 1 [31] 1, got [30] nothing [31] nothing"
    many = list_difference("to_zero", ours, ours[1:]).line
    assert many.startswith("to_zero: expected [0] b1 [1] b2 ")
    assert "[7] b8 and 23 more, got [0] b2 " in many
    assert list_difference("to_zero", (1, 2), (2,)).line == "to_zero: expected b1 b2, got b2"


def test_a_difference_is_one_short_line() -> None:
    line = difference("tables[1]", tuple(range(1000)), "a\nb").line
    assert "\n" not in line
    assert len(line) < 300
