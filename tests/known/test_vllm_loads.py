"""The cases of KNOWN.md about loads, told to vLLM's `Scheduler` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm_alone import abort, answer, blocks, come, found, hear, num_free

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]


def all_but_one(request: Any, computed: int) -> tuple[int, bool]:
    """A connector that brings request "a" all its tokens but the last at once, and others nothing."""
    return (request.num_tokens - 1 - computed if request.request_id == "a" else 0), False


def all_but_one_later(request: Any, computed: int) -> tuple[int, bool]:
    return request.num_tokens - 1 - computed, True


def test_what_did_not_come_is_found_if_its_request_ends_before_it_is_computed_again(make: Make) -> None:
    scheduler = make(4, 1, offer=all_but_one)
    first = come(scheduler, "a", 2)
    output = scheduler.schedule()
    answer(scheduler, output, bad=blocks(scheduler, "a")[:1])
    assert first.num_computed_tokens == 0  # it is to be computed again
    abort(scheduler, "a")
    second = come(scheduler, "b", first.prompt_token_ids)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"b": 1}
    assert output.scheduled_new_reqs[0].num_computed_tokens == 1
    assert blocks(scheduler, second.request_id)[0] == 1  # the block that nobody has written


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_did_not_come_is_found_if_its_request_ends_before_it_is_told(make: Make, policy: str) -> None:
    scheduler = make(4, 1, offer=all_but_one, policy_of_loads=policy)
    first = come(scheduler, "a", 2)
    output = scheduler.schedule()
    bad = blocks(scheduler, "a")[:1]
    abort(scheduler, "a")
    answer(scheduler, output, bad=bad)
    assert found(scheduler, come(scheduler, "b", first.prompt_token_ids)) == 1


def test_what_did_not_come_is_found_beside_its_request_that_computes_it_in_chunks(make: Make) -> None:
    scheduler = make(8, 1, offer=all_but_one, long_prefill_token_threshold=1)
    first = come(scheduler, "a", 3)
    output = scheduler.schedule()
    answer(scheduler, output, bad=blocks(scheduler, "a")[:2])
    second = come(scheduler, "b", first.prompt_token_ids)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}  # "a" writes its first block
    assert output.scheduled_new_reqs[0].num_computed_tokens == 2
    assert blocks(scheduler, second.request_id)[:2] == blocks(scheduler, "a")[:2]  # "b" reads the second


def test_what_a_sharer_computed_on_top_of_it_stays_published(make: Make) -> None:
    scheduler = make(8, 1, offer=all_but_one, policy_of_loads="fail")
    come(scheduler, "a", [1, 2])
    come(scheduler, "b", [1, 3, 4])  # hits the first block in the pass that grants it to "a"
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1, "b": 2}
    shared, above = blocks(scheduler, "b")[:2]
    answer(scheduler, output, bad={shared})
    assert scheduler.requests == {}  # both have failed
    come(scheduler, "c", [1, 5])  # computes the first block again
    answer(scheduler, scheduler.schedule())
    again = come(scheduler, "d", [1, 3, 4])
    assert found(scheduler, again) == 2
    assert scheduler.kv_cache_manager.get_computed_blocks(again)[0].get_block_ids()[0][1] == above


def test_a_window_is_computed_again_without_the_tokens_before_it(make: Make) -> None:
    scheduler = make(6, 1, window=2, offer=all_but_one)
    request = come(scheduler, "a", 4)
    output = scheduler.schedule()
    null, _, first, _ = blocks(scheduler, "a")
    assert (null, blocks(scheduler, "a")[1]) == (0, 0)  # out of the window of the fourth token
    answer(scheduler, output, bad={first})
    assert request.num_computed_tokens == 2
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 2}
    assert blocks(scheduler, "a")[1] == 0  # the third token attends to the second


def test_a_prompt_of_one_token_is_loaded_again_and_again(make: Make) -> None:
    scheduler = make(3, 1, offer=lambda request, computed: (request.num_tokens - computed, True))
    request = come(scheduler, "a", 1)
    for _ in range(4):
        assert scheduler.schedule().num_scheduled_tokens == {}
        assert request.status.name == "WAITING_FOR_REMOTE_KVS"
        hear(scheduler, arrived={"a"})


def test_a_window_that_is_loaded_whole_lacks_a_token_that_its_last_attends_to(make: Make) -> None:
    scheduler = make(4, 1, window=2, offer=lambda request, computed: (request.num_tokens - computed, True))
    request = come(scheduler, "a", 2)
    scheduler.schedule()
    hear(scheduler, arrived={"a"})
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1}  # the second token, with the first in sight
    assert request.num_computed_tokens == 2
    assert blocks(scheduler, "a")[0] == 0


def test_a_load_that_failed_and_is_offered_again_waits_for_itself(make: Make) -> None:
    scheduler = make(4, 1, offer=all_but_one_later)
    come(scheduler, "a", 3)
    scheduler.schedule()
    hear(scheduler, failed={"a"}, arrived={"a"})
    for _ in range(3):
        assert scheduler.schedule().num_scheduled_tokens == {}
        assert num_free(scheduler) == 3  # all of them
        assert scheduler._inflight_prefill_reserved_blocks() == 3  # for nobody but itself
    come(scheduler, "b", 1)
    assert scheduler.schedule().num_scheduled_tokens == {}  # and nobody is admitted behind it


def test_a_step_in_flight_answers_with_what_it_made_of_a_load_that_failed(make: Make) -> None:
    scheduler = make(8, 1, steps_in_flight=2, max_num_scheduled_tokens=1, offer=lambda r, n: (1 - n, False))
    request = come(scheduler, "a", 3)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"a": 1}, {"a": 1})
    answer(scheduler, first, bad=blocks(scheduler, "a")[:1])
    assert (request.num_computed_tokens, request.num_tokens) == (0, 3)
    answer(scheduler, second)
    assert (request.num_computed_tokens, request.num_tokens) == (0, 4)  # sampled from what is not there


def test_asynchronous_scheduling_goes_on_past_the_tokens_of_a_request_whose_load_failed(make: Make) -> None:
    scheduler = make(12, 1, is_async=True, offer=all_but_one)
    request = come(scheduler, "a", 3)
    first, second = scheduler.schedule(), scheduler.schedule()
    answer(scheduler, first, bad=blocks(scheduler, "a")[:1])
    output = scheduler.schedule()
    # Four tokens with what the second step samples; the one that the first would have sampled is counted on.
    assert output.num_scheduled_tokens == {"a": 5}
    answer(scheduler, second)
    assert (request.num_tokens, request.num_computed_tokens) == (4, 5)
