"""A difference to the model names the statement that falls, and what follows."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.ledger import Entry
from slotproof.impl.protocol import AddRequest, Allocate, Call, Config, Finish, Group, Snapshot
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.gate import Report
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.proofs.gate.page import gate_page
from slotproof.proofs.gate.trial import Asked, Failure, try_calls

ENGINE = Config(num_blocks=6, block_size=1, max_model_len=8, watermark_blocks=1)
SHARED: list[Call] = [AddRequest(0, (1, 2)), Allocate(0, 2), AddRequest(1, (1, 2, 3)), Allocate(1, 1)]


def failure(factory: Any, *calls: Call, config: Config = ENGINE) -> Failure:
    with closing(Isolated(lambda: factory)) as implementation:
        implementation.start()
        found = try_calls(implementation, config, list(calls), Asked()).failure
    assert found is not None
    return found


class FreesShared(TorchAllocator):
    """Gives back a shared block with its first reference."""

    def free(self, entry: Entry) -> None:
        (first, *_) = self.snapshot().tables[entry.number]
        super().free(entry)
        self.manager.block_pool.free_blocks([first])


class LosesACopy(TorchAllocator):
    """Forgets the later blocks of a key."""

    def snapshot(self) -> Snapshot:
        self.manager.block_pool._duplicates.clear()
        return super().snapshot()


def without(*names: str) -> Any:
    def factory(config: Config) -> ModelAllocator:
        return ModelAllocator(config, Rules().without(*names))

    return factory


def test_a_block_that_is_free_and_held_is_told_with_what_follows() -> None:
    found = failure(FreesShared, *SHARED, Finish(0))
    lines = [difference.line for difference in found.differences]
    assert lines[:2] == [
        "ref-count: ref_cnt[1]: expected 1, by the table entries, got 0",
        "free-count: block 1: expected free or held, got free, and in request 1's table: the next taker "
        "writes over it",
    ]
    assert lines[2].startswith("free_queue: expected ")


@pytest.mark.parametrize(
    ("rule", "call", "line"),
    [
        (
            "watermark_on_admission",
            Allocate(0, 5),
            "watermark: allocate: expected a refusal: 5 needed of 5 blocks free, watermark 1 and 0 reserved, "
            "got a grant: what was to stay free for others is taken",
        ),
        (
            "whole_prompt_must_fit",
            Allocate(0, 1, must_fit=True),
            "admission-suffices: allocate: expected a refusal: the whole prompt does not fit, got a grant: a "
            "later chunk cannot be had",
        ),
    ],
)
def test_a_grant_that_should_be_a_refusal(rule: str, call: Call, line: str) -> None:
    found = failure(without(rule), AddRequest(0, (1,) * 7), call)
    assert found.differences[0].line == line
    assert found.differences[1].line == "result.granted: expected False, got True"


def test_an_order_that_evicts_what_somebody_would_have_hit() -> None:
    found = failure(without("free_tail_first"), AddRequest(0, (1, 2, 3)), Allocate(0, 3), Finish(0))
    assert found.differences[0].line == (
        "queue-order: free_queue: expected block 3 taken before block 1, got block 1 first: who would have "
        "hit it computes it again"
    )


def test_a_lost_copy_shows_at_the_call_that_lost_it() -> None:
    twice = (AddRequest(1, (1, 2, 3)), Allocate(1, 2, skip_cache=True))
    found = failure(LosesACopy, AddRequest(0, (1, 2)), Allocate(0, 2), *twice)
    (only,) = found.differences
    assert only.line == "copies under a key: expected b1 b3, b2 b4, got b1, b2"


def test_the_page_of_a_difference_has_its_story() -> None:
    report = Report(calls=5, sequences=1, failure=failure(FreesShared, *SHARED, Finish(0)))
    report.engines = [ENGINE]
    page = gate_page(report, "mine:FreesShared", ["it <differs>"], "slotproof gate --impl mine:FreesShared")
    assert "ref-count falls" in page
    assert "the next taker writes over it" in page
    assert page.count('class="part"') == 6
    assert "it &lt;differs&gt;" in page
    assert "num_blocks=6" in page


def test_the_page_of_several_groups_has_its_story_too() -> None:
    engine = structs.replace(ENGINE, groups=(Group(block_size=1, sliding_window=2),))
    found = failure(without("key_covers_group"), AddRequest(0, (1, 2)), Allocate(0, 2), config=engine)
    report = Report(calls=2, sequences=1, failure=found, engines=[engine])
    page = gate_page(report, "mine:Own", ["it differs"], "slotproof gate --impl mine:Own")
    assert page.count('class="part"') == 3


@pytest.mark.parametrize("calls", [SHARED, []])
def test_a_page_without_a_story_says_why(calls: list[Call]) -> None:
    told = failure(FreesShared, *SHARED, Finish(0))
    untold = replace(told, story=told.story[: len(calls)], followed=Snapshot())
    report = Report(calls=5, sequences=1, failure=untold, engines=[ENGINE])
    page = gate_page(report, "mine:Own", ["it breaks"], "slotproof gate --impl mine:Own")
    why = "what follows the implementation" if calls else "no call of an allocator comes before"
    assert f"There is no story to click through: {why}" in page
    assert 'class="part"' not in page


def test_the_page_of_what_agrees_has_its_coverage(tmp_path: Path) -> None:
    report = Report(calls=5, sequences=1, required=("call: finish", "refused"))
    report.coverage.update({"call: finish": 3})
    page = gate_page(report, "torch", ["it agrees"], "slotproof gate --impl torch")
    assert "<tr><td>call: finish</td>" in page
    assert '<tr class="missed"><td>refused</td>' in page
    assert 'class="part"' not in page
    assert "<script>" not in page
    assert "There is no story" not in page
