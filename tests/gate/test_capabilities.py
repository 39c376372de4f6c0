"""What an implementation lacks is neither drawn nor compared nor asked for, and it is told what to name."""

from __future__ import annotations

import re
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slotproof.impl.capabilities import CAPABILITIES
from slotproof.impl.ledger import Entry
from slotproof.impl.protocol import Call, Result, Snapshot
from slotproof.model.running import Running
from slotproof.proofs import gate as gate_package
from slotproof.proofs.campaign.calls import call_fields, configurations, decode, model_config
from slotproof.proofs.campaign.fit import fit_call, fit_config
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.exhaustive import exhaust
from slotproof.proofs.gate.gate import Report, Verdict, campaign
from slotproof.proofs.gate.isolation import CannotStart, Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator

PAGED = files(gate_package) / "templates" / "adapter.py.txt"
PLAIN = frozenset(CAPABILITIES) - {"full_attention"}


def gated(factory: Any, calls: int, **how: Any) -> Report:
    with closing(Isolated(lambda: factory, 5.0)) as implementation:
        return campaign(implementation, calls=calls, seed=1, **how)


def paged() -> Any:
    scope: dict[str, Any] = {}
    exec(compile(PAGED.read_text(), "paged.py", "exec"), scope)
    return scope["Paged"]


@pytest.mark.parametrize("lacks", [frozenset({name}) for name in CAPABILITIES] + [PLAIN], ids=sorted)
def test_what_is_lacking_is_not_drawn_and_the_rest_is_legal(lacks: frozenset[str]) -> None:
    for seed, config in enumerate(configurations(3)[:8]):
        running = Running(**model_config(fit_config(config, lacks)))
        for step in range(60):
            call = fit_call(decode(running, hash((seed, step)) % (1 << 60) + (1 << 61)), lacks)
            if call is None:
                continue
            name, fields = call_fields(call)
            assert name not in lacks
            used = {
                lacking for lacking in lacks if fields.get(lacking, False) != (lacking == "has_scheduled")
            }
            assert not used - (CAPABILITIES.keys() - fields.keys()), call
            running.step(name, **fields)


def test_the_barest_allocator_covers_what_it_can() -> None:
    class Bare(ModelAllocator):
        lacks = PLAIN

        def snapshot(self) -> Snapshot:
            return Snapshot()

    report = gated(Bare, 6000)
    assert (report.uncovered, report.verdict) == ([], Verdict.AGREES)
    assert report.asked.lacks == PLAIN
    assert "refused: stage 0" not in report.required


def test_what_is_shown_is_still_compared_exactly() -> None:
    class Wrong(ModelAllocator):
        lacks = PLAIN - {"usage"}

        def snapshot(self) -> Snapshot:
            s = super().snapshot()
            return Snapshot(usage=s.usage / 2)

    report = gated(Wrong, 500)
    assert report.failure is not None
    assert [difference.field for difference in report.failure.differences] == ["usage"]


def test_ignored_fields_are_not_compared() -> None:
    class Wrong(ModelAllocator):
        def snapshot(self) -> Snapshot:
            s = super().snapshot()
            return Snapshot(**{name: getattr(s, name) for name in s.__struct_fields__ if name != "to_zero"})

    assert gated(Wrong, 500).verdict is Verdict.DISAGREES
    report = gated(Wrong, 8000, ignore=frozenset({"to_zero"}))
    assert (report.verdict, report.asked.ignored) == (
        Verdict.AGREES,
        frozenset({"to_zero"}),
    )
    with closing(Isolated(lambda: Wrong)) as implementation:
        assert exhaust(implementation, 2, ignore=frozenset({"to_zero"})).verdict is Verdict.AGREES


def test_who_raises_unsupported_is_told_what_to_name() -> None:
    class Windowless(ModelAllocator):
        def allocate(self, entry: Entry, *_: Any) -> Any:
            return paged_release(self, entry)

    def paged_release(allocator: Any, entry: Entry) -> Any:
        from slotproof.impl.adapter import Adapter

        return Adapter.evict(allocator, ())

    with pytest.raises(CannotStart, match=re.escape('say so, lacks = {"evict_blocks"}')):
        gated(Windowless, 500)


@pytest.mark.parametrize(
    ("lacks", "text"),
    [(("queue",), "lacks names 'queue', which is no capability"), (5, "the factory's 'int' object")],
)
def test_lacks_that_nobody_can_have(lacks: Any, text: str) -> None:
    class Wrong(ModelAllocator):
        pass

    Wrong.lacks = lacks
    with pytest.raises(CannotStart, match=re.escape(text)):
        gated(Wrong, 10)


def test_numpys_integers_are_integers() -> None:
    class Numbers(ModelAllocator):
        def step(self, call: Call) -> Result:
            result = super().step(call)
            return Result(
                granted=np.bool_(result.granted),  # type: ignore[arg-type]
                hits=np.array(result.hits, np.int64),  # type: ignore[arg-type]
                new_blocks=np.array(result.new_blocks, dtype=np.int32),  # type: ignore[arg-type]
            )

        def snapshot(self) -> Snapshot:
            s = super().snapshot()
            return Snapshot(
                free_queue=np.array(s.free_queue, dtype=np.int64),  # type: ignore[arg-type]
                ref_cnt=np.array(s.ref_cnt, dtype=np.uint8),  # type: ignore[arg-type]
                hashes=s.hashes,
                tables={r: tuple(np.array(table, np.int32)) for r, table in s.tables.items()},
                usage=np.float64(s.usage),
                to_zero=s.to_zero,
            )

    assert gated(Numbers, 500).failure is None


@pytest.mark.parametrize(("strictness", "verdict"), [("counts", "agrees"), ("invariants", "consistent")])
def test_the_page_s_allocator_passes_and_a_broken_one_does_not(strictness: str, verdict: str) -> None:
    factory: Any = paged()
    report = gated(factory, 5000, strictness=Strictness(strictness))
    assert (report.verdict.value, report.uncovered) == (verdict, [])

    class Leaks(factory):  # type: ignore[misc]
        def free(self, entry: Entry) -> None:
            pages = self.pages.sequences.get(entry.number, [])
            self.pages.drop(entry.number)
            if len(pages) > 2:
                self.pages.free_pages.pop()

    assert gated(Leaks, 3000, strictness=Strictness(strictness)).verdict is Verdict.DISAGREES


def test_the_page_shows_what_new_adapter_writes() -> None:
    page = Path(__file__).parents[2] / "docs" / "adapters.md"
    assert f"```python\n# paged.py\n{PAGED.read_text()}```" in page.read_text()
