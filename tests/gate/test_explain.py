"""Releases of vLLM: their behaviours are the model's, and a difference behind them is named."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from slotproof.impl.protocol import Config
from slotproof.model.language.behaviours import APPENDS_UNCACHED, BEHAVIOURS, BUGS, profile
from slotproof.model.language.groups import SLIDING_WINDOW, Group
from slotproof.model.language.rules import Rules
from slotproof.model.running import Running
from slotproof.proofs.gate.gate import Report, Verdict, campaign
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator


class Release:
    """The model as a release: with its behaviours, and with what is broken in it."""

    def __init__(self, release: str, *broken: str) -> None:
        self.release = release
        self.installed = f"vLLM {release}"
        self.has_groups = False
        self._behaviours = (*profile(release), *(name for name in broken if name in BEHAVIOURS))
        self._rules = Rules().without(*(name for name in broken if name not in BEHAVIOURS))

    def __call__(self, config: Config) -> ModelAllocator:
        import msgspec

        return ModelAllocator(msgspec.structs.replace(config, behaviours=self._behaviours), self._rules)


def gated(factory: Any, calls: int = 6000) -> Report:
    with closing(Isolated(lambda: factory)) as implementation:
        return campaign(implementation, calls=calls, seed=1)


def test_profiles() -> None:
    assert profile("0.32.0") == profile("0.33.0") == profile("0.28.0") == profile("0.33.1.dev7+g12") == ()
    assert profile("0.27.1+cpu") == ("window-not-zeroed",)
    assert len(profile("0.19.1")) == len(BEHAVIOURS) - len(BUGS)


@pytest.mark.parametrize(("release", "has_groups"), [("0.19.1", True), ("0.23.0", False)])
def test_a_release_with_its_profile_agrees(release: str, has_groups: bool) -> None:
    factory = Release(release)
    factory.has_groups = has_groups
    report = gated(factory, 1500 if has_groups else 6000)
    assert (report.failure, report.findings) == (None, [])
    assert report.verdict in (Verdict.AGREES, Verdict.UNCOVERED if has_groups else Verdict.AGREES)


def test_a_bug_that_no_profile_has_is_reported_by_its_name() -> None:
    report = gated(Release("0.27.0", APPENDS_UNCACHED))
    assert report.verdict is Verdict.DISAGREES
    assert [finding.names for finding in report.findings] == [(APPENDS_UNCACHED,)]


def test_the_gate_goes_on_behind_what_it_has_found() -> None:
    report = gated(Release("0.25.1", "release_processed_only", "key_tags_kinds"), 8000)
    found = {name for finding in report.findings for name in finding.names}
    assert found == {"release_processed_only", "key_tags_kinds"}
    assert report.verdict is Verdict.DISAGREES
    assert report.failure == report.findings[0].failure


def test_a_call_that_an_implementation_fails_half_way_through_is_explained() -> None:
    """As the model does without the rule; from then on such calls are not made (vllm#45856)."""
    report = gated(Release("0.20.1", "count_step_uncapped"), 2500)
    assert [finding.names for finding in report.findings] == [("count_step_uncapped",)]
    assert report.calls == 2500


def test_what_is_played_first_is_explained_too() -> None:
    factory = Release("0.23.0", "adopt_all_before_external")
    factory.has_groups = True
    report = gated(factory, 500)
    assert [finding.names for finding in report.findings] == [("adopt_all_before_external",)]
    assert report.calls == 500


def test_only_a_release_is_explained() -> None:
    report = gated(partial(ModelAllocator, rules=Rules().without("free_tail_first")), 1000)
    assert (report.verdict, report.findings) == (Verdict.DISAGREES, [])


def test_a_tag_that_is_missing_confuses_what_the_first_tokens_are_hashed_with() -> None:
    """vLLM hashes the salt with the first block alone, and the LoRA with each."""
    running = Running(
        num_blocks=8,
        block_size=1,
        max_model_len=8,
        rules=Rules().without("key_tags_kinds", "key_covers_lora_path"),
    )
    running.step("add_request", request=0, tokens=(1, 2, 3), salt=1)
    running.step("add_request", request=1, tokens=(1, 2, 3), lora=1)
    running.step("allocate", request=0, new=3)
    assert running.hits(1).tokens == 1


def test_the_first_block_of_a_group_is_confused_if_it_is_one_hash_unit() -> None:
    def hit(first: int, second: int) -> int:
        running = Running(
            num_blocks=20,
            max_model_len=16,
            groups=(Group(first), Group(second, SLIDING_WINDOW, 8)),
            rules=Rules().without("key_tags_kinds", "key_covers_lora_path"),
        )
        running.step("add_request", request=0, tokens=(1,) * 9, salt=1)
        running.step("add_request", request=1, tokens=(1,) * 9, lora=1)
        running.step("allocate", request=0, new=9)
        return int(running.hits(1).tokens)

    assert (hit(2, 2), hit(2, 4)) == (2, 0)
