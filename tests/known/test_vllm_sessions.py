"""The cases of KNOWN.md about sessions, told to vLLM's `Scheduler` alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from vllm_alone import abort, answer, blocks, come, found, num_free

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]
turn = partial(come, max_tokens=1, resumable=True)


def test_two_sessions_that_wait_for_each_others_blocks_wait_for_ever(make: Make) -> None:
    scheduler = make(5, 1)
    sessions = [turn(scheduler, "a", 1), turn(scheduler, "b", 1)]
    answer(scheduler, scheduler.schedule())
    assert [session.status.name for session in sessions] == ["WAITING_FOR_STREAMING_REQ"] * 2
    for name in "ab":
        turn(scheduler, name, 3)  # each alone fits the pool
    for _ in range(3):
        assert scheduler.schedule().num_scheduled_tokens == {}
    assert num_free(scheduler) == 2


def test_a_session_that_pauses_keeps_its_blocks_from_all_others(make: Make) -> None:
    scheduler = make(3, 1)
    turn(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    come(scheduler, "b", 2)
    for _ in range(3):
        assert scheduler.schedule().num_scheduled_tokens == {}


def test_a_turn_that_ends_before_an_accepted_draft_takes_the_next_turns_token_for_it(make: Make) -> None:
    scheduler = make(12, 1, drafts=2)
    session = come(scheduler, "a", [1, 2], max_tokens=2, resumable=True)
    answer(scheduler, scheduler.schedule())
    output = scheduler.schedule()
    assert output.scheduled_spec_decode_tokens == {"a": [9, 9]}
    answer(scheduler, output, sampled={"a": [9, 9, 8]})  # the turn ends with the first of the drafts
    assert (list(session.all_token_ids), session.num_computed_tokens) == ([1, 2, 7, 9], 5)
    come(scheduler, "a", [5, 6], max_tokens=2, resumable=True)
    assert scheduler.schedule().num_scheduled_tokens == {
        "a": 3
    }  # token 6, padded; token 5 is taken for computed
    written = blocks(scheduler, "a")[4]  # with the draft's KV
    other = come(scheduler, "b", [1, 2, 7, 9, 5, 5])
    assert found(scheduler, other) == 5
    assert scheduler.kv_cache_manager.get_computed_blocks(other)[0].get_block_ids()[0][4] == written


def test_a_turn_of_one_token_after_such_an_end_stops_the_engine(make: Make) -> None:
    scheduler = make(8, 1, drafts=2)
    come(scheduler, "a", [1, 2], max_tokens=2, resumable=True)
    answer(scheduler, scheduler.schedule())
    answer(scheduler, scheduler.schedule(), sampled={"a": [9, 9, 8]})
    come(scheduler, "a", [5], max_tokens=2, resumable=True)
    with pytest.raises(AssertionError):
        scheduler.schedule()


def test_a_session_whose_turn_ends_while_it_is_preempted_is_lost_with_its_tokens(make: Make) -> None:
    scheduler = make(4, 1, steps_in_flight=2, long_prefill_token_threshold=2)
    come(scheduler, "a", 3)
    session = turn(scheduler, "b", [5])
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (first.num_scheduled_tokens, second.preempted_req_ids) == ({"a": 2, "b": 1}, {"b"})
    answer(scheduler, first)  # the turn's one token
    answer(scheduler, second)
    abort(scheduler, "a")
    turn(scheduler, "b", [6])
    assert list(session.all_token_ids) == [6]  # the first turn is gone
    for _ in range(3):
        assert scheduler.schedule().num_scheduled_tokens == {}
    assert num_free(scheduler) == 3
    assert scheduler.get_request_counts() == (0, 0)  # it is in no queue


def test_a_session_outgrows_the_model(make: Make) -> None:
    scheduler = make(8, 1, max_model_len=4)
    turn(scheduler, "a", 3)
    answer(scheduler, scheduler.schedule())
    turn(scheduler, "a", 3)
    assert scheduler.schedule().num_scheduled_tokens == {"a": 3}  # six tokens
    assert len(blocks(scheduler, "a")) == 4


def test_a_reset_that_preempts_stops_the_engine_while_a_session_pauses(make: Make) -> None:
    scheduler = make(4, 1)
    turn(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        scheduler.reset_prefix_cache(reset_running_requests=True)
