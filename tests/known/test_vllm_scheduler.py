"""The cases of KNOWN.md about vLLM's `Scheduler`, told to it alone: nothing of slotproof is in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm_alone import abort, answer, come, hear

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]


def test_a_victim_of_the_pass_that_scheduled_it_leaves_hashes_of_what_nobody_wrote(make: Make) -> None:
    scheduler = make(9, 1, policy="priority", max_num_scheduled_tokens=3, long_prefill_token_threshold=2)
    victim = come(scheduler, "v", 7, priority=2)
    scheduled = []
    for arrival in (None, "a", None):
        if arrival is not None:
            come(scheduler, arrival, 1, priority=1)
        output = scheduler.schedule()
        scheduled.append(output.num_scheduled_tokens)
        answer(scheduler, output)
    assert scheduled == [{"v": 3}, {"v": 2, "a": 1}, {"a": 1}]  # 5 tokens of the victim have run
    assert victim.status.name == "PREEMPTED"
    assert scheduler.kv_cache_manager.get_computed_blocks(victim)[1] == 6
    abort(scheduler, "a")
    resumed = scheduler.schedule().scheduled_cached_reqs
    assert (resumed.req_ids, resumed.num_computed_tokens) == (["v"], [6])


def test_a_request_that_preempts_itself_ends_the_pass_for_those_behind_it(make: Make) -> None:
    scheduler = make(3, 4, policy="priority")
    come(scheduler, "a", 3, priority=2)
    answer(scheduler, scheduler.schedule())
    behind = come(scheduler, "b", 1, priority=1)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    answer(scheduler, output)
    output = scheduler.schedule()  # the fifth token of "a" needs a block
    assert (output.preempted_req_ids, output.num_scheduled_tokens) == ({"a"}, {})
    assert (behind.status.name, behind.num_tokens, behind.num_computed_tokens) == ("RUNNING", 2, 1)
    assert len(scheduler.kv_cache_manager.get_blocks("b").blocks[0]) == 1  # room for four tokens


def test_a_padded_decode_that_the_threshold_cuts_stops_the_scheduler(make: Make) -> None:
    scheduler = make(8, 4, drafts=1, long_prefill_token_threshold=1)
    come(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    come(scheduler, "b", 1)
    with pytest.raises(AssertionError):
        scheduler.schedule()


def test_drafts_outlive_a_preemption_and_are_scheduled_without_the_token_before_them(make: Make) -> None:
    scheduler = make(3, 4, drafts=1, steps_in_flight=2, long_prefill_token_threshold=4)
    come(scheduler, "a", 8)
    victim = come(scheduler, "v", 1)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"a": 4, "v": 1}, {"a": 4})
    assert second.preempted_req_ids == {"v"}
    answer(scheduler, first)  # its token for the victim is kept, and so is the draft that follows it
    answer(scheduler, second)
    abort(scheduler, "a")
    assert scheduler.schedule().num_scheduled_tokens == {"v": 2}  # this step samples the victim's third token
    assert victim.num_tokens == 2
    beside = scheduler.schedule()
    assert beside.num_scheduled_tokens == {"v": 1}
    assert beside.scheduled_spec_decode_tokens == {"v": [9]}
    assert beside.scheduled_cached_reqs.num_computed_tokens == [2]  # where the unknown token belongs


def test_a_delayed_load_of_the_whole_prompt_is_granted_and_its_last_token_computed_again(make: Make) -> None:
    scheduler = make(8, 4, offer=lambda request, computed: (request.num_tokens - computed, True))
    request = come(scheduler, "a", 8)
    assert scheduler.schedule().num_scheduled_tokens == {}
    assert (request.status.name, request.num_computed_tokens) == (
        "WAITING_FOR_REMOTE_KVS",
        request.num_tokens,
    )
    hear(scheduler, arrived={"a"})
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1}
    assert output.scheduled_new_reqs[0].num_computed_tokens == 7
    last = scheduler.kv_cache_manager.get_blocks("a").blocks[0][1]
    assert last.block_hash is not None  # published, and the eighth token's slot is in it


def test_an_admission_of_one_token_beside_a_decode_is_padded_with_drafts(make: Make) -> None:
    scheduler = make(8, 4, drafts=3)
    come(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    request = come(scheduler, "b", 1)
    assert scheduler.schedule().num_scheduled_tokens["b"] == 4
    assert request.num_tokens == 1
