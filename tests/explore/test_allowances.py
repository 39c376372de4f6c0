"""What a statement needs, it needs: without it there is a story, and ours and the model agree on it."""

from __future__ import annotations

import pytest

from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import tell
from slotproof.proofs.explore.bounded import CORE, LOADS, RARE, Bounds
from slotproof.proofs.explore.explore import engines, explore_faults

CALLS = {"evict_blocks": 4, "release": 4, "hits": 4, "lookahead": 3, "reserve": 3, "drop": 4}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (CALLS[name] > 3)) for name in ALLOWANCES]
)
def test_without_its_need_a_statement_is_false(name: str) -> None:
    allowed = ALLOWANCES[name]
    bounds = Bounds(calls=5, actions=(*CORE, *LOADS, *RARE), seconds=300)
    answer = explore_faults(Rules(), (allowed.statement,), engines(None), bounds, allowed)
    assert answer.complete
    assert answer.story is not None
    assert len(answer.calls) == CALLS[name]
    assert answer.story.violation.claim == allowed.check.name
    assert tell(answer.story.config, answer.calls, Rules(), allowed.statement) is None
