"""vLLM's own `allocate_slots` conforms, and does not with a public fault about arithmetic patched in."""

from __future__ import annotations

import ast

import pytest
from recompiled import recompiled

from slotproof.proofs.conform.conform import CONFORMS, DIFFERS, conform_case
from slotproof.proofs.conform.situation import Case
from slotproof.proofs.conform.targets.vllm import UNHASHED, VllmTarget
from slotproof.proofs.faults.vllm_faults import patched

pytestmark = pytest.mark.vllm

NONE = Case("full", caching=False, holds=False)
HOLDS = Case("full", caching=False, holds=True)
CACHED = Case("full", caching=True, holds=False)
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
        pytest.param("whole_prompt_must_fit", NONE, marks=pytest.mark.slow),
        ("watermark_on_admission", NONE),
        ("count_idle_hits", CACHED),  # 11565
        pytest.param("check_before_commit", CACHED, marks=pytest.mark.slow),  # 11565
        ("release_processed_only", WINDOW_HOLDS),  # 47728
        ("count_step_uncapped", WINDOW_HOLDS),  # 45856
        pytest.param("whole_prompt_caps_window", WINDOW, marks=pytest.mark.slow),  # 39734
    ],
)
def test_a_public_fault_differs_by_a_story(rule: str, case: Case) -> None:
    with patched(rule):
        finding = conform_case(VllmTarget(), case)
    assert finding.verdict == DIFFERS, finding.what
    assert finding.failure is not None
    assert finding.failure.differences


class _WithoutFloors(ast.NodeTransformer):
    """`max(n, 0)` becomes `n`."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="max"), args=[count, ast.Constant(value=0)]):
                return count
        return node


def test_a_negative_count_differs_by_a_story(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager as Manager

    def without_floors(source: str) -> str:
        return ast.unparse(_WithoutFloors().visit(ast.parse(source)))

    unfloored = recompiled(Manager.get_num_blocks_to_allocate, without_floors)
    monkeypatch.setattr(Manager, "get_num_blocks_to_allocate", unfloored)
    finding = conform_case(VllmTarget(), HOLDS)
    assert finding.verdict == DIFFERS, finding.what
