"""What the proofs assume is reached by short campaigns, in good time."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import KINDS
from slotproof.proofs.prove.witnesses import FEW_CALLS, witnesses

GOLDEN = Path(__file__).parent / "obligations.txt"


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_campaign_reaches_all_that_proofs_assume(kind: str) -> None:
    """Where it does not, `prove` goes on for many more calls: choose its seed again."""
    lines = (line.split(" | ") for line in GOLDEN.read_text().splitlines())
    assumed = {witness for of, _, _, witness, _ in lines if of == kind and witness != "-"}
    reached, violations = witnesses(kind, Rules(), FEW_CALLS)
    assert assumed
    assert violations == []
    assert assumed <= reached
