"""The language of `explore --reach`: what it says of a state, and where an error is pointed at."""

from __future__ import annotations

import pytest

from slotproof.model.language.rules import Rules
from slotproof.model.running import Running
from slotproof.proofs.explore.bounded import Bounds, reaches, search
from slotproof.proofs.explore.explore import engines
from slotproof.proofs.explore.expression import (
    MAX_DEPTH,
    MAX_WORDS,
    NUMBERS,
    OF_REQUEST,
    ExpressionError,
    parse,
)


@pytest.fixture(scope="module")
def running() -> Running:
    """Request 0 runs on three of four blocks, two of them hashed; request 1 waits."""
    model = Running(num_blocks=5, block_size=2, max_model_len=12, ghosts=True)
    model.step("add_request", request=0, tokens=(1, 1, 1, 1, 1))
    model.step("allocate", request=0, new=5)
    model.step("add_request", request=1, tokens=(2,))
    return model


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("free == 1", True),
        ("free != 1", False),
        ("held == 3 and cached == 2", True),
        ("usage > 0.7 and usage < 0.8", True),
        ("usage == 0.75", True),
        ("running(r0) and waiting(r1)", True),
        ("not waiting(r1) or free > 1", False),
        ("not (waiting(r1) and free > 1)", True),
        ("computed(r0) - in_flight(r0) == 0", True),
        ("2 * blocks(r0) + 1 == 7", True),
        ("-free + 2 == 1", True),
        ("tokens(r0) == 5 and published(r0) == 2 and drafts(r0) == 0", True),
        ("free == 1 or free == 2 and free == 3", True),
        ("idle_cached == 0 and shared == 0", True),
        ("unwritten == 2", True),
        ("loading(r0) or preempted(r1)", False),
    ],
)
def test_an_expression_says_what_it_means(running: Running, text: str, holds: bool) -> None:
    assert parse(text, 2)(running.state) is holds


def test_requests_are_numbered_as_in_calls(running: Running) -> None:
    for request, tokens in ((0, 5), (1, 1)):
        assert parse(f"tokens(r{request}) == {tokens}", 2)(running.state)
    with pytest.raises(ExpressionError, match="'r1' is no request: there is r0"):
        parse("waiting(r1)", 1)


def test_what_is_written_counts_no_more() -> None:
    model = Running(num_blocks=5, block_size=2, max_model_len=12, ghosts=True)
    model.step("add_request", request=0, tokens=(1, 1, 1, 1, 1))
    model.step("allocate", request=0, new=3)
    model.step("execute")
    assert parse("cached == 1 and unwritten == 0", 1)(model.state)
    model.step("allocate", request=0, new=1)
    assert parse("cached == 2 and unwritten == 1", 1)(model.state)


@pytest.mark.parametrize(
    ("text", "character", "says"),
    [
        ("free == ", 9, "something is missing"),
        ("fre == 0", 1, "'fre' is not a name"),
        ("free == 0 waiting(r0)", 11, "put `and` or `or` before it"),
        ("free $ 0", 6, "'$' has no meaning here"),
        ("waiting(r2)", 9, "they are r0 to r1"),
        ("waiting", 8, "write waiting(r0)"),
        ("waiting(r0", 11, "`)` is missing"),
        ("free", 1, "a number stands where a condition is needed"),
        ("waiting(r0) + 1 == 2", 1, "a condition stands where a number is needed"),
        ("free == 0 and", 14, "something is missing"),
        ("__import__('os')", 12, "has no meaning here"),
        ("(" * 100 + "free == 0" + ")" * 100, 41, "nested too deep"),
        ("(" * 5000 + "free == 0" + ")" * 5000, 501, "too long"),
        ("not " * 100 + "free == 0", 161, "nested too deep"),
        ("-" * 100 + "free == 0", 41, "nested too deep"),
        (" and ".join(["free == 0"] * 3000), 1751, "too long"),
    ],
)
def test_a_wrong_expression_points_at_the_character(text: str, character: int, says: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text, 2)
    assert error.value.position + 1 == character
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_the_longest_expressions_are_understood(running: Running) -> None:
    nested = "(" * MAX_DEPTH + "free == 0" + ")" * MAX_DEPTH
    long = " and ".join(["free >= 0"] * (MAX_WORDS // 4))
    assert parse(nested, 2)(running.state) in (True, False)
    assert parse(long, 2)(running.state) is True


@pytest.mark.parametrize("name", [*NUMBERS, *OF_REQUEST])
def test_every_listed_name_can_be_used(running: Running, name: str) -> None:
    text = name if name in NUMBERS else f"{name}(r0)"
    truths = ("waiting", "loading", "running", "preempted")
    assert parse(text if name in truths else f"{text} >= 0", 2)(running.state) in (True, False)


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("free * 1000 > 3000", True),
        ("free == 1028", False),
        ("free + 1024 == 4", False),
        ("free - 1020 - 1020 > 0", False),
        ("usage * 1000000 + 0.5 > 0", True),
        ("-free * free * free * free < -200", True),
        ("free * 99999999999999999 == 399999999999999996", True),
    ],
)
def test_no_number_wraps_around_where_z3_looks(text: str, reached: bool) -> None:
    found = search(engines("full"), Rules(), reaches(parse(text, 1)), Bounds(requests=1, calls=1))
    assert (found.calls is not None) is reached


def test_a_number_has_an_end() -> None:
    with pytest.raises(ExpressionError, match="character 9: too long a number: 18 digits are the most"):
        parse(f"free == {'1' * 5000}", 1)
