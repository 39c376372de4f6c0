"""The search: shortest stories, told again by the running reading; and nothing where nothing is wrong."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import Config
from slotproof.model.rules import Rules
from slotproof.proofs.bounded import CORE, LOADS, RARE, Bounds, breaks, search
from slotproof.proofs.explore import engines, explore_faults, explore_state
from slotproof.proofs.expression import parse
from slotproof.proofs.stories import tell

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
    expression = parse("preempted(r1) and idle_cached == 2", 2)
    answer = explore_state(Rules(), expression, (ENGINE,), Bounds(calls=4, seconds=100))
    assert [type(call).__name__ for call in answer.calls] == ["AddRequest", "Allocate", "Preempt"]


def test_a_state_that_cannot_be_reached_is_not() -> None:
    expression = parse("free > 4", 2)
    answer = explore_state(Rules(), expression, (ENGINE,), Bounds(calls=2, seconds=100))
    assert answer.config is None
    assert answer.complete
    assert "2 calls" in answer.searched
