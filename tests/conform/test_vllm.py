"""vLLM's own `allocate_slots` conforms, and does not with a public fault about arithmetic patched in."""

from __future__ import annotations

import pytest

from slotproof.proofs.conform.conform import CONFORMS, DIFFERS, conform_case
from slotproof.proofs.conform.situation import Case
from slotproof.proofs.conform.targets.vllm import UNHASHED, VllmTarget
from slotproof.proofs.faults.vllm_faults import patched

pytestmark = pytest.mark.vllm

NONE = Case("full", caching=False, holds=False)
HOLDS = Case("full", caching=False, holds=True)
WINDOW, WINDOW_HOLDS = (Case("sliding-window", caching=False, holds=holds) for holds in (False, True))


@pytest.mark.parametrize("name", ["", UNHASHED], ids=["in both", "unhashed"])
def test_vllm_conforms(name: str) -> None:
    finding = conform_case(VllmTarget(), Case("full", caching=False, holds=True, name=name))
    assert (finding.verdict, finding.what) == (CONFORMS, "")
    assert finding.paths >= 20


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        ("keep_reserved", HOLDS),
        ("slots_end_at_max_model_len", HOLDS),
        ("lookahead_gets_slots", HOLDS),
        ("whole_prompt_must_fit", NONE),
        ("whole_prompt_caps_window", WINDOW),  # 39734
        pytest.param("release_processed_only", WINDOW_HOLDS, marks=pytest.mark.slow),  # 47728
        pytest.param("watermark_on_admission", NONE, marks=pytest.mark.slow),
        pytest.param("count_step_uncapped", WINDOW_HOLDS, marks=pytest.mark.slow),  # 45856
    ],
)
def test_a_public_fault_differs_by_a_story(rule: str, case: Case) -> None:
    with patched(rule):
        finding = conform_case(VllmTarget(), case)
    assert finding.verdict == DIFFERS, finding.what
    assert finding.failure is not None
    assert finding.failure.differences
