"""The cases of KNOWN.md about frees that wait, told to vLLM's `Scheduler` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm_alone import answer, come

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]


def nothing(request: Any, computed: int) -> tuple[int, bool]:
    """A connector, with which a pipeline defers what it frees; it has nothing."""
    return 0, False


def test_a_victim_that_cannot_be_freed_ends_the_pass_for_those_behind(make: Make) -> None:
    scheduler = make(3, 4, steps_in_flight=2, long_prefill_token_threshold=3, offer=nothing)
    assert scheduler.defer_block_free
    come(scheduler, "a", 5)
    behind = come(scheduler, "b", 4)
    first = scheduler.schedule()
    assert first.num_scheduled_tokens == {"a": 3, "b": 3}
    output = scheduler.schedule()  # "a" needs a block, and the step of "b" has not been answered
    assert (output.num_scheduled_tokens, output.preempted_req_ids) == ({}, set())
    assert (behind.num_tokens, behind.num_computed_tokens) == (4, 3)  # and its block has room for four


def test_the_first_in_line_starves_behind_a_stream_of_short_requests(make: Make) -> None:
    scheduler = make(7, 1, steps_in_flight=2, long_prefill_token_threshold=3, offer=nothing)
    first = come(scheduler, "a", 6, max_tokens=1)  # alone it fits
    come(scheduler, "b", 1)
    steps = [scheduler.schedule()]
    assert steps[0].num_scheduled_tokens == {"a": 3, "b": 1}
    for name in "cdefghijkl":  # each takes a block for a step, and is in flight when the next pass looks
        come(scheduler, name, 1, max_tokens=1)
        steps.append(scheduler.schedule())
        assert steps[-1].num_scheduled_tokens == {name: 1}
        answer(scheduler, steps.pop(0))
    assert (first.status.name, first.num_computed_tokens) == ("RUNNING", 3)


def test_a_reset_that_preempts_stops_the_engine_with_a_step_in_flight(make: Make) -> None:
    scheduler = make(4, 1, steps_in_flight=2, offer=nothing)
    come(scheduler, "a", 2)
    scheduler.schedule()
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        scheduler.reset_prefix_cache(reset_running_requests=True)


def test_a_block_that_is_named_twice_is_owed_a_reference(make: Make) -> None:
    pool = make(4, 1).kv_cache_manager.block_pool
    (block,) = pool.get_new_blocks(1)
    pool.free_blocks([block, block])
    assert (block.ref_cnt, pool.get_num_free_blocks()) == (-1, 3)
    with pytest.raises(AssertionError):
        pool.get_new_blocks(3)
