"""Every fault has a shortest story: which statement falls, and after how many calls. A change that loses a
story, or finds a shorter one, is seen here."""

from __future__ import annotations

from typing import Any

import pytest

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import HYBRID
from slotproof.proofs.campaign.story import tell
from slotproof.proofs.explore.bounded import CORE, LOADS, RARE, Bounds
from slotproof.proofs.explore.explore import engines, explore_faults
from slotproof.proofs.faults.catalogue import FAULTS, NAMED, Fault

CALLS = {
    "whole_prompt_must_fit": 2,
    "whole_prompt_pays_watermark": 2,
    "whole_prompt_caps_window": 2,
    "watermark_on_admission": 2,
    "watermark_spares_running": 3,
    "watermark_spares_lone_admission": 2,
    "release_before_count": 4,
    "release_processed_only": 3,
    "count_idle_hits": 4,
    "count_hits_in_window_only": 4,
    "count_step_uncapped": 2,
    "keep_reserved": 2,
    "lookahead_gets_slots": 2,
    "slots_end_at_max_model_len": 2,
    "check_before_commit": 4,
    "touch_references": 4,
    "touch_leaves_queue": 4,
    "new_from_front": 2,
    "popping_evicts": 4,
    "hash_final_tokens_only": 3,
    "hash_full_blocks_only": 2,
    "delay_cache_blocks": 2,
    "null_block_set_aside": 1,
    "free_tail_first": 3,
    "unhashed_to_front": 3,
    "free_unreferenced_only": 5,
    "lookup_leaves_a_token": 3,
    "lookup_stops_at_miss": 4,
    "lookup_run_covers_window": 3,
    "key_covers_prefix": 2,
    "key_covers_salt": 4,
    "key_tags_kinds": 4,
    "key_covers_lora_path": 4,
}
"""The calls of the shortest story, by fault."""


OF_ONE_GROUP = [fault for fault in FAULTS if fault.kind != HYBRID]
OF_SEVERAL = dict.fromkeys(("adopt_all_before_external", "lookup_agrees_on_a_length"), 4)
OF_SEVERAL |= {"lookup_is_aligned": 3, "key_covers_group": 2}
"""The calls of a short story that is known, by fault; the search is for shorter ones."""


def test_every_fault_is_here() -> None:
    assert set(CALLS) == {fault.name for fault in OF_ONE_GROUP}
    assert len(CALLS) >= 20


def _param(fault: Fault) -> Any:
    """A story of two calls is soon found."""
    return pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] * (CALLS[fault.name] > 2))


@pytest.mark.parametrize("fault", [_param(fault) for fault in OF_ONE_GROUP])
def test_the_shortest_story_of_a_fault(fault: Fault) -> None:
    bounds = Bounds(calls=6, actions=(*CORE, *LOADS, *RARE), seconds=300)
    answer = explore_faults(fault.bent, (fault.statement,), engines(None), bounds)
    assert answer.complete
    assert answer.story is not None
    assert answer.story.violation.statement == fault.statement
    assert len(answer.calls) == CALLS[fault.name]
    assert tell(answer.story.config, answer.calls, fault.bent, fault.statement) == answer.story
    assert tell(answer.story.config, answer.calls, Rules(), fault.statement) is None


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_a_story_of_several_groups_is_known(name: str) -> None:
    """However little time there is to look for a shorter one."""
    fault = NAMED[name]
    answer = explore_faults(fault.bent, (fault.statement,), engines(HYBRID), Bounds(seconds=0.03))
    assert answer.story is not None
    assert answer.story.violation.statement == fault.statement
    assert len(answer.calls) == OF_SEVERAL[name]
    assert tell(answer.story.config, answer.calls, Rules(), fault.statement) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lookup_is_aligned", "key_covers_group"])
def test_no_shorter_story_of_several_groups(name: str) -> None:
    fault = NAMED[name]
    bounds = Bounds(requests=1, actions=CORE, seconds=900)
    answer = explore_faults(fault.bent, (fault.statement,), engines(HYBRID), bounds)
    assert answer.complete
    assert len(answer.calls) == OF_SEVERAL[name]
