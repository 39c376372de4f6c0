"""The search: shortest stories, told again by the running reading; and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Complete, Config
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.shrink import made_small
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.explore.bounded import CORE, LOADS, RARE, Bounds, breaks, search
from slotproof.proofs.explore.explore import engines, explore_faults, explore_state
from slotproof.proofs.explore.expression import parse

ENGINE = Config(num_blocks=5, block_size=1, max_model_len=5, watermark_blocks=1)
EVERYTHING = (*CORE, *LOADS, *RARE)


@pytest.mark.parametrize(
    ("rule", "statement", "calls"),
    [
        ("null_block_set_aside", "null-block", 1),
        ("keep_reserved", "watermark", 2),
        ("new_from_front", "queue-order", 2),
        ("hash_final_tokens_only", "drafts-never-hashed", 3),
        ("unhashed_to_front", "queue-order", 3),
        ("key_covers_prefix", "hash-soundness", 2),
    ],
)
def test_the_first_story_is_a_shortest_one(rule: str, statement: str, calls: int) -> None:
    rules = Rules().without(rule)
    answer = explore_faults(rules, (statement,), engines("full"), Bounds(calls=3, seconds=100))
    assert answer.complete
    assert answer.story is not None
    assert len(answer.calls) == calls
    assert answer.story.violation.statement == statement
    assert tell(answer.story.config, answer.calls, rules, statement) == answer.story
    assert tell(answer.story.config, answer.calls, Rules(), statement) is None


@pytest.mark.parametrize("window", [None, 2])
def test_nothing_breaks_with_all_rules_on(window: int | None) -> None:
    config = Config(num_blocks=4, block_size=1, max_model_len=4, sliding_window=window)
    statements = ("no-rollback", "exact-count", "free-count", "drafts-never-hashed", "window-kept")
    found = search((config,), Rules(), breaks(statements), Bounds(calls=2, actions=EVERYTHING, seconds=100))
    assert found.calls is None
    assert not found.out_of_time
    assert found.depth == 2


def test_a_search_that_is_cut_short_says_so() -> None:
    found = search((ENGINE,), Rules(), breaks(("usage",)), Bounds(calls=6, seconds=0.5))
    assert found.calls is None
    assert found.out_of_time


def test_a_state_is_reached_by_calls_that_lead_to_it() -> None:
    expression = parse("preempted(r0) and idle_cached == 2", 2)
    answer = explore_state(Rules(), expression, (ENGINE,), Bounds(calls=4, seconds=100))
    assert [type(call).__name__ for call in answer.calls] == ["AddRequest", "Allocate", "Preempt"]


def test_what_is_not_written_can_be_asked_for() -> None:
    expression = parse("unwritten > 0 and preempted(r0)", 2)
    answer = explore_state(Rules(), expression, (ENGINE,), Bounds(calls=4, seconds=100))
    assert [type(call).__name__ for call in answer.calls] == ["AddRequest", "Allocate", "Preempt"]
    expression = parse("cached > 0 and unwritten == 0", 2)
    bounds = Bounds(calls=4, actions=EVERYTHING, seconds=100)
    answer = explore_state(Rules(), expression, (ENGINE,), bounds)
    assert [type(call).__name__ for call in answer.calls[:2]] == ["AddRequest", "Allocate"]
    assert len(answer.calls) == 3


DRAFTS = (AddRequest(0, (1, 1)), Allocate(0, 2), Allocate(0, 2), Complete(0, processed=3, rejected=1))
"""With drafts hashed, a block that a rejected draft leaves behind is never written."""


def test_a_statement_asked_for_by_name_may_fall_after_another() -> None:
    rules, statement = Rules().without("hash_final_tokens_only"), "published-is-written"
    first = tell(ENGINE, DRAFTS, rules, "drafts-never-hashed")
    assert first is not None
    assert first.calls == DRAFTS[:3]
    assert tell(ENGINE, DRAFTS, rules, statement) is None
    story = tell(ENGINE, DRAFTS, rules, statement, past_others=True)
    assert story is not None
    assert (story.calls, story.violation.claim) == (DRAFTS, "hashed-blocks-are-written")
    small = made_small(story, rules, past_others=True)
    assert (len(small.calls), small.violation.statement) == (len(DRAFTS), statement)
    assert tell(ENGINE, DRAFTS, Rules(), statement, past_others=True) is None


def test_no_story_goes_on_past_a_call_that_failed_half_way(stories: dict[str, Story]) -> None:
    failing = stories["count_idle_hits"]
    more = Allocate(1, 1, reserved=1)
    rules = Rules().without("count_idle_hits", "keep_reserved")
    calls = (*failing.calls[:-1], more)
    assert tell(failing.config, calls, rules, "watermark", past_others=True) is not None
    calls = (*failing.calls, more)
    assert tell(failing.config, calls, rules, "watermark", past_others=True) is None


@pytest.mark.slow
def test_the_search_for_a_statement_by_name_ends_in_its_story() -> None:
    rules, statement = Rules().without("hash_final_tokens_only"), "published-is-written"
    answer = explore_faults(rules, (statement,), engines("full"), Bounds(calls=4, seconds=200))
    assert answer.story is not None
    assert len(answer.calls) == 4
    assert answer.story.violation.statement == statement


def test_a_state_that_cannot_be_reached_is_not() -> None:
    expression = parse("free > 4", 2)
    answer = explore_state(Rules(), expression, (ENGINE,), Bounds(calls=2, seconds=100))
    assert answer.config is None
    assert answer.complete
    assert "2 calls" in answer.searched


@pytest.mark.parametrize(
    ("asked", "preconditions"),
    [
        ("loading(r0) and tokens(r0) == 1", {"a-load-leaves-a-token", "a-step-has-work"}),
        ("running(r0) and in_flight(r0) > 1", {"in-flight-is-bounded"}),
    ],
)
def test_where_the_contract_forbids_a_state_it_says_by_what(asked: str, preconditions: set[str]) -> None:
    narrow = Config(num_blocks=4, block_size=1, max_model_len=3, max_in_flight_tokens=1)
    bounds = Bounds(calls=2, actions=(*CORE, *LOADS), seconds=100)
    answer = explore_state(Rules(), parse(asked, 2), (narrow,), bounds)
    assert (answer.config, answer.complete) == (None, True)
    assert set(answer.forbidden) == preconditions
    assert answer.beyond == 2


def test_what_no_contract_forbids_and_cannot_be_names_nothing() -> None:
    answer = explore_state(Rules(), parse("free > 4", 2), (ENGINE,), Bounds(calls=1, seconds=100))
    assert (answer.config, answer.forbidden) == (None, ())
