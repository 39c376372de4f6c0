"""Stories told by hand, one for each fault of the catalogue: a plugin of the tests, for its fixtures."""

from __future__ import annotations

from typing import Any

import pytest

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Group,
    Preempt,
)
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.corpus import CORPUS
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.faults.catalogue import NAMED

Teller = dict[str, Story]


def engine(**changes: Any) -> Config:
    return Config(**{"num_blocks": 6, "block_size": 2, "max_model_len": 16, **changes})


def add(request: int, *tokens: int, **tags: int) -> Call:
    return AddRequest(request, tokens, **tags)


def allocate(request: int, new: int, **options: Any) -> Call:
    return Allocate(request, new, **options)


IDLE_PAIR = (add(0, 1, 1, 2, 2), allocate(0, 4), Finish(0))
"""Blocks 1 and 2 are hashed and idle."""

TOLD: dict[str, tuple[Config, tuple[Call, ...]]] = {
    "whole_prompt_must_fit": (engine(num_blocks=4), (add(0, *[1] * 8), allocate(0, 2, must_fit=True))),
    "whole_prompt_pays_watermark": (
        engine(num_blocks=4, watermark_blocks=1),
        (add(0, *[1] * 6), allocate(0, 2, must_fit=True)),
    ),
    "whole_prompt_caps_window": (
        engine(num_blocks=5, sliding_window=4, max_in_flight_tokens=2),
        (add(0, *[1] * 12), allocate(0, 2, must_fit=True)),
    ),
    "watermark_on_admission": (
        engine(num_blocks=3, watermark_blocks=1),
        (add(0, 1, 1, 2, 2), allocate(0, 4)),
    ),
    "watermark_spares_running": (
        engine(num_blocks=3, watermark_blocks=1),
        (
            add(0, 1, 1),
            allocate(0, 2, has_scheduled=False),
            Complete(0, processed=2, sampled=(1,)),
            allocate(0, 1),
        ),
    ),
    "watermark_spares_lone_admission": (
        engine(num_blocks=3, watermark_blocks=1),
        (add(0, 1, 1, 2, 2), allocate(0, 4, has_scheduled=False)),
    ),
    "release_before_count": (
        engine(sliding_window=3, enable_caching=False),
        (add(0, 1, 1, 2, 2), allocate(0, 4), Complete(0, processed=4, sampled=(1,)), allocate(0, 1)),
    ),
    "release_processed_only": (
        engine(sliding_window=3),
        (add(0, 1, 1, 2, 2), allocate(0, 4), allocate(0, 1)),
    ),
    "count_idle_hits": (
        engine(num_blocks=4),
        (*IDLE_PAIR, add(1, 1, 1, 2, 2, 3, 3, 4, 4), allocate(1, 4)),
    ),
    "count_hits_in_window_only": (
        engine(sliding_window=3),
        (add(0, 1, 1), allocate(0, 2), Finish(0), add(1, *[1] * 10), allocate(1, 2, external=4)),
    ),
    "count_step_uncapped": (
        engine(num_blocks=4, block_size=1, sliding_window=2, max_in_flight_tokens=1),
        (add(0, 1), allocate(0, 1, lookahead=4)),
    ),
    "keep_reserved": (engine(num_blocks=4), (add(0, 1, 1, 2, 2), allocate(0, 4, reserved=2))),
    "lookahead_gets_slots": (engine(), (add(0, 1, 1), allocate(0, 2, lookahead=2))),
    "slots_end_at_max_model_len": (
        engine(max_model_len=4),
        (add(0, 1, 1, 2, 2), allocate(0, 4, lookahead=2)),
    ),
    "check_before_commit": (
        engine(num_blocks=4),
        (*IDLE_PAIR, add(1, 1, 1, 2, 2, 3, 3, 4, 4), allocate(1, 4)),
    ),
    "adopt_all_before_external": CORPUS[0],
    "touch_references": (
        engine(),
        (add(0, 1, 1, 2, 2), allocate(0, 4), add(1, 1, 1, 2, 2, 3), allocate(1, 1)),
    ),
    "touch_leaves_queue": (engine(), (*IDLE_PAIR, add(1, 1, 1, 2, 2, 3), allocate(1, 1))),
    "new_from_front": (engine(), (add(0, 1, 1), allocate(0, 2))),
    "popping_evicts": (
        engine(num_blocks=2),
        (add(0, 1, 1), allocate(0, 2), Finish(0), add(1, 2, 2), allocate(1, 1)),
    ),
    "hash_final_tokens_only": (
        engine(),
        (add(0, 1, 1), allocate(0, 2), Complete(0, processed=2, sampled=(2,)), allocate(0, 2)),
    ),
    "hash_full_blocks_only": (engine(), (add(0, 1), allocate(0, 1))),
    "delay_cache_blocks": (engine(), (add(0, 1, 1, 1), allocate(0, 0, external=2, delay_cache=True))),
    "retention_keeps_resumed": (
        engine(block_size=1, retention_interval=0, groups=(Group(block_size=1, sliding_window=2),)),
        (add(0, 1, 1),),
    ),
    "null_block_set_aside": (engine(), (add(0, 1),)),
    "free_tail_first": (engine(num_blocks=4), IDLE_PAIR),
    "unhashed_to_front": (engine(num_blocks=4), (add(0, 1, 1, 2), allocate(0, 3), Finish(0))),
    "free_unreferenced_only": (
        engine(),
        (add(0, 1, 1), allocate(0, 2), add(1, 1, 1, 2), allocate(1, 1), Finish(1)),
    ),
    "lookup_leaves_a_token": (engine(), (add(0, 1, 1), allocate(0, 2), add(1, 1, 1))),
    "lookup_stops_at_miss": (
        engine(),
        (add(0, 1, 1, 2, 2), allocate(0, 4), EvictBlocks((1,)), add(1, 1, 1, 2, 2, 3)),
    ),
    "lookup_run_covers_window": (
        engine(sliding_window=4),
        (add(0, 1, 1, 2, 2), allocate(0, 4), EvictBlocks((1,)), add(1, 1, 1, 2, 2, 3)),
    ),
    "lookup_drops_last_block": (
        engine(block_size=1, is_eagle=True, groups=(Group(block_size=1, sliding_window=2),)),
        (add(0, 1, 1), allocate(0, 2), add(1, 1, 1, 2)),
    ),
    "lookup_agrees_on_a_length": (
        engine(block_size=1, groups=(Group(block_size=1),)),
        (add(0, 1, 1), allocate(0, 2), EvictBlocks((3,)), add(1, 1, 1)),
    ),
    "lookup_is_aligned": (
        engine(block_size=1, groups=(Group(block_size=2),)),
        (add(0, 1, 1), allocate(0, 2), add(1, 1, 1)),
    ),
    "key_covers_prefix": (engine(), (add(0, 1, 1, 1, 1), allocate(0, 4))),
    "key_covers_salt": (
        engine(),
        (add(0, 1, 1, salt=1), allocate(0, 2), add(1, 1, 1, 2, salt=2), allocate(1, 1)),
    ),
    "key_covers_group": (
        engine(block_size=1, groups=(Group(block_size=1),)),
        (add(0, 1), allocate(0, 1)),
    ),
    "key_tags_kinds": (
        engine(),
        (add(0, 1, 1, lora=1), allocate(0, 2), add(1, 1, 1, 2, salt=1), allocate(1, 1)),
    ),
    "key_covers_lora_path": (
        engine(),
        (add(0, 1, 1, lora=1), allocate(0, 2), add(1, 1, 1, 2, lora=2), allocate(1, 1)),
    ),
}


@pytest.fixture(scope="session")
def stories() -> Teller:
    """By fault, a story in which its statement falls."""
    found = {}
    for name, (config, calls) in TOLD.items():
        fault = NAMED[name]
        story = tell(config, calls, fault.bent, fault.statement)
        assert story is not None, f"{name}: {fault.statement} does not fall"
        assert story.calls == calls, f"{name}: it falls after {len(story.calls)} calls"
        found[name] = story
    return found


@pytest.fixture(scope="session")
def dropped() -> Story:
    """Request 0's blocks are written. Request 1 is preempted before the step runs in which it is scheduled,
    and hits the block that nobody wrote."""
    calls = (
        *(add(0, 3, 3, 3), allocate(0, 3), Execute()),
        *(add(1, 1, 1, 2), allocate(1, 2), Preempt(1), allocate(1, 1)),
    )
    allowed = ALLOWANCES["drop"]
    story = tell(engine(), calls, Rules(), allowed.statement, (allowed.check,))
    assert story is not None
    assert story.calls == calls
    return story
