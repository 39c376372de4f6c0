"""What a test suite can assert of an allocator, and of the model."""

from __future__ import annotations

from functools import partial

import pytest

from slotproof.impl.protocol import Config, Snapshot
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.testing import assert_agrees, assert_consistent, assert_proved

WITHOUT = partial(ModelAllocator, rules=Rules().without("free_tail_first"))


class Forgetful(ModelAllocator):
    """Shows no references."""

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        return Snapshot(**{f: getattr(shown, f) for f in shown.__struct_fields__} | {"ref_cnt": (7,) * 99})


def test_who_decides_as_the_model_agrees() -> None:
    assert_agrees(ModelAllocator, calls=150, seed=1)
    assert_agrees("slotproof.proofs.gate.model_allocator:ModelAllocator", calls=50)


def test_who_does_otherwise_is_told_the_calls() -> None:
    with pytest.raises(AssertionError, match=r"(?s)seed 3.*add_request.*expected.*got"):
        assert_agrees(WITHOUT, calls=400, seed=3)


def test_another_order_breaks_no_statement_by_itself() -> None:
    def factory(config: Config) -> Forgetful:
        return Forgetful(config)

    with pytest.raises(AssertionError, match="ref_cnt"):
        assert_consistent(factory, calls=50)
    assert_consistent(ModelAllocator, calls=60)


def test_names_that_are_none_are_said() -> None:
    with pytest.raises(ValueError, match="'usag' is no statement"):
        assert_proved("usag")
    with pytest.raises(ValueError, match="'count' is no rule"):
        assert_proved("usage", without=["count"])


@pytest.mark.slow
def test_a_statement_is_proved_or_falls() -> None:
    assert_proved("usage")
    with pytest.raises(AssertionError, match="refuted: no-rollback"):
        assert_proved("no-rollback", without=["count_idle_hits"])
