"""The lesson's trace, and that a model with a rule off is noticed in it."""

from __future__ import annotations

import pytest

from slotproof.model.language.rules import Rules
from slotproof.proofs.lesson.questions import (
    all_hits_held,
    check_yourself,
    lookahead_on_every_step,
    without_watermark,
)
from slotproof.proofs.lesson.trace import LESSON_TRACE, differences, start, trace


def test_the_model_arrives_at_the_lessons_figures() -> None:
    pool, found = start()
    lines = trace(pool)
    assert differences(found, lines) == []
    assert [line.name for line in lines] == list(LESSON_TRACE)
    assert (found.total, found.free, found.hits, found.idle_hits) == (100, 40, 8, 6)

    admission, chunk, *decode, lookahead, second = lines
    assert (admission.new_blocks, admission.taken, admission.free, admission.table) == (7, 13, 27, 15)
    assert (chunk.taken, chunk.free) == (4, 23)
    assert [(line.taken, line.free) for line in decode] == [(0, 23)] * 4 + [(1, 22), (0, 22)]
    assert (lookahead.taken, lookahead.free) == (1, 21)
    assert not second.granted
    assert (second.stage, second.arithmetic) == (0, "38 + 5 > 21")


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("count_idle_hits", "admission: the lesson says need 13, the model 7"),
        ("watermark_on_admission", "admission: the lesson says watermark 5, the model 0"),
        ("watermark_spares_running", "second chunk: the lesson says watermark 0, the model 5"),
        ("whole_prompt_must_fit", "second request: the lesson says granted False, the model True"),
        ("lookahead_gets_slots", "lookahead: the lesson says taken 1, the model 0"),
        ("unhashed_to_front", None),
    ],
)
def test_a_rule_switched_off_shows_in_its_line(rule: str, line: str | None) -> None:
    pool, found = start(rules=Rules().without(rule))
    wrong = differences(found, trace(pool))
    assert line in wrong if line else wrong == []


def test_a_wrong_start_is_named() -> None:
    pool, found = start(held_hits=3)
    assert "start: the lesson says idle_hits 6, the model 5" in differences(found, trace(pool))


def test_a_missing_line_is_named() -> None:
    pool, found = start()
    assert differences(found, trace(pool)[:-1]) == ["second request: the model has no such line"]


def test_without_a_watermark_the_next_block_is_at_risk() -> None:
    answer = without_watermark()
    second, boundary, again, spared = answer.lines
    assert (second.granted, second.arithmetic) == (False, "38 > 21")
    assert (boundary.name, boundary.granted, boundary.stage, boundary.arithmetic) == (
        "token 337",
        False,
        2,
        "1 > 0",
    )
    assert again.granted
    assert (spared.name, spared.granted, spared.available) == ("token 337", True, 5)
    assert answer.answer.startswith("No: 38 > 21. A prompt of 336 tokens")


def test_held_hits_cost_nothing() -> None:
    (line,) = all_hits_held().lines
    assert (line.taken, line.new_blocks, line.free) == (7, 7, 33)


def test_a_lookahead_of_a_block_costs_a_block() -> None:
    assert lookahead_on_every_step().answer.startswith("1 more on average, over 640")


def test_what_one_can_check_by_running() -> None:
    release, idle, drafts = check_yourself()
    assert [line.granted for line in release.lines] == [True, False]
    assert [line.taken - line.new_blocks for line in idle.lines] == [8]
    assert "offers 0 blocks" in drafts.answer
    assert drafts.answer.endswith("request.num_tokens, 1.")
