"""What groups may be: each refusal names the group and the field."""

from __future__ import annotations

import re
from typing import Any

import pytest

from slotproof.impl.group_checks import check_groups
from slotproof.impl.protocol import Config, Group

FULL = Group(block_size=2)
WINDOW = Group(block_size=2, sliding_window=3)


def config(**changes: Any) -> Config:
    return Config(**{"num_blocks": 6, "block_size": 2, "max_model_len": 12, "groups": (WINDOW,), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "group 0: block_size is 0: it must be at least 1"),
        ({"groups": (Group(block_size=2, sliding_window=0),)}, "group 1: sliding_window is 0: "),
        ({"groups": (Group(block_size=2, attention_chunk_size=3),)}, "group 1: attention_chunk_size is 3: "),
        (
            {"block_size": 3, "groups": (Group(block_size=2, attention_chunk_size=4),)},
            "group 1: block_size is 2: with chunks it must be that on which all groups agree, 6",
        ),
        (
            {"groups": (Group(block_size=2, attention_chunk_size=4, is_eagle=True),)},
            "group 1: is_eagle is True: ",
        ),
        (
            {"groups": (Group(block_size=2, attention_chunk_size=4, sliding_window=4),)},
            "group 1: attention_chunk_size is 4: a group has a window or chunks, not both",
        ),
        ({"extra_retained_tokens": 1}, "group 0: extra_retained_tokens is 1: "),
        ({"retention_interval": 3}, "retention_interval is 3: it must be 0 or a multiple of 2"),
        ({"retention_interval": 2, "groups": (FULL,)}, "retention_interval is 2: no group has a window"),
        ({"num_prefill_lookahead": 2}, "num_prefill_lookahead is 2: "),
        ({"num_prefill_lookahead": 3, "is_eagle": True}, "num_prefill_lookahead is 3: it must be at most 2"),
    ],
)
def test_what_no_engine_can_have_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}[^\\n]*$"):
        check_groups(config(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"retention_interval": 0},
        {"retention_interval": 4},
        {"is_eagle": True, "num_prefill_lookahead": 2},
        {"groups": (Group(block_size=2, attention_chunk_size=4),)},
    ],
)
def test_what_vllm_takes_is_taken(changes: dict[str, Any]) -> None:
    check_groups(config(**changes))
