"""A user's own rule of admission: followed, told where it differs, and refused where it is not followed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from slotproof.impl.protocol import Allocate
from slotproof.proofs.conform.conform import CONFORMS, DIFFERS, UNKNOWN, UNSUPPORTED, Finding, conform_case
from slotproof.proofs.conform.paths import Budget
from slotproof.proofs.conform.targets.admission import admission

PLAIN = {"lookahead": 0, "reserved": 0, "external": 0, "watermark": 0, "must_fit": False}
of_pages = admission(
    free="free",
    owned="held",
    length="computed",
    more="new",
    page="block_size",
    given=PLAIN,
    caching=[False],
    holds=[True],
)


def answer(rule: Any, **budget: Any) -> Finding:
    target = of_pages(rule)
    return conform_case(target, target.cases[0], budget=Budget(**budget) if budget else None)


def right(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return (length + more + page - 1) // page - owned <= free


def wrong_at_the_edge(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return (length + more + page - 1) // page - owned < free


def rounds_down(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return (length + more) // page - owned <= free


def with_a_float(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return math.ceil((length + more) / page) - owned <= free


def recursive(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return True if more <= 0 else recursive(free, owned, length, more - 1, page)


def endless(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    while True:
        pass


def forever_recursive(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return forever_recursive(free, owned, length, more, page)


def reads_a_file(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return Path("limit").read_text() == "1"


def prints(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    print("asked")
    return True


def in_c(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    return math.gcd(length, page) <= free


def with_another_signature(free: Any) -> Any:
    return free > 0


def raises(free: Any, owned: Any, length: Any, more: Any, page: Any) -> Any:
    raise ValueError("no")


def test_a_rule_that_is_right_conforms() -> None:
    finding = answer(right)
    assert (finding.verdict, finding.what) == (CONFORMS, "")
    assert finding.paths >= 2
    assert {"lookahead is 0", "contract: a-step-has-work", "invariant: table-covers-computed"} <= set(
        finding.assumed
    )


@pytest.mark.parametrize("rule", [wrong_at_the_edge, rounds_down, raises])
def test_a_rule_that_is_wrong_differs_by_a_story(rule: Any) -> None:
    finding = answer(rule)
    assert finding.verdict == DIFFERS, finding.what
    assert finding.failure is not None
    assert isinstance(finding.failure.story[-1].call, Allocate)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        (with_a_float, "float"),
        (recursive, "recursion"),
        (forever_recursive, "recursion"),
        (reads_a_file, "open"),
        (prints, "print"),
        (in_c, "C code"),
    ],
)
def test_what_is_not_followed_is_unsupported(rule: Any, what: str) -> None:
    finding = answer(rule)
    assert finding.verdict == UNSUPPORTED, finding
    assert what in finding.what


def test_a_wrong_signature_is_unsupported() -> None:
    finding = answer(with_another_signature)
    assert finding.verdict == UNSUPPORTED
    assert "unexpected keyword argument" in finding.what


def test_a_loop_without_end_ends_at_the_budget() -> None:
    finding = answer(endless, seconds=1.0)
    assert finding.verdict == UNKNOWN
    assert "test_admission.py" in finding.what
    assert finding.what.endswith("after 1 seconds")


def test_what_cannot_be_is_not_assumed() -> None:
    target = admission(free="free", given={"new": 0}, caching=[False], holds=[True])(lambda free: True)
    finding = conform_case(target, target.cases[0])
    assert finding.verdict == UNKNOWN


def test_it_is_still_the_function() -> None:
    assert of_pages(right)(1, 0, 0, 1, 1)
    assert not of_pages(right)(0, 0, 0, 1, 1)


def test_unknown_terms_are_refused() -> None:
    with pytest.raises(ValueError, match="pages: no term of the model"):
        admission(free="pages")(right)
