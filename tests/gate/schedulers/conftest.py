"""Failing workloads are made small only where that is what is tested: it takes seconds."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_made_small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.module.__name__.endswith("test_shrink"):
        monkeypatch.setattr("slotproof.proofs.gate.schedulers.gate.SHRINK_STEPS", 0)
