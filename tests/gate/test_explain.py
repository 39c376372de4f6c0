"""Releases of vLLM: their behaviours are the model's, and a difference behind them is named."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from slotproof.impl.protocol import Config
from slotproof.model.language.behaviours import APPENDS_UNCACHED, BEHAVIOURS, BUGS, profile
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.gate import Report, Verdict, campaign
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator


class Release:
    """The model as a release: with its behaviours, and with what is broken in it."""

    def __init__(self, release: str, *broken: str) -> None:
        self.release = release
        self.installed = f"vLLM {release}"
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


@pytest.mark.parametrize("release", ["0.19.1", "0.23.0"])
def test_a_release_with_its_profile_agrees(release: str) -> None:
    assert gated(Release(release)).verdict is Verdict.AGREES


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


def test_only_a_release_is_explained() -> None:
    report = gated(partial(ModelAllocator, rules=Rules().without("free_tail_first")), 1000)
    assert (report.verdict, report.findings) == (Verdict.DISAGREES, [])
