"""The cases of KNOWN.md, told again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slotproof.impl.protocol import Allocate, Allocator, Complete, Config, Preempt
from slotproof.proofs.traces.trace import Trace, read_trace

KNOWN = Path(__file__).parent.parent / "known"


def told(trace: Trace, allocator: Allocator) -> list[bool]:
    """Which allocations the implementation grants; everything it answers and shows is as in the trace."""
    granted = []
    for step in trace.steps:
        result = allocator.step(step.call)
        assert result == step.result
        shown = allocator.snapshot()
        assert (shown.free_queue, shown.ref_cnt, shown.tables) == (
            step.state.free_queue,
            step.state.ref_cnt,
            step.state.tables,
        )
        if isinstance(step.call, Allocate):
            granted.append(result.granted)
    return granted


def admitted_then_refused(make: Callable[[Config], Allocator]) -> None:
    trace = read_trace(KNOWN / "window-admission.itf.json")
    assert told(trace, make(trace.config)) == [True, True, True, False]
    admission, between, refused = (step.call for step in trace.steps[-3:])
    assert isinstance(admission, Allocate)
    assert admission.must_fit
    assert isinstance(between, Complete)  # nobody else allocates
    assert isinstance(refused, Allocate)
    assert refused.request == admission.request


def test_ours_admits_a_window_that_it_must_refuse_later() -> None:
    from slotproof.impl.allocator.adapter import torch_allocator

    admitted_then_refused(torch_allocator)


@pytest.mark.vllm
def test_vllm_admits_a_window_that_it_must_refuse_later() -> None:
    from slotproof.impl.vllm.adapter import vllm_allocator

    admitted_then_refused(vllm_allocator)


def hits_what_nobody_wrote(make: Callable[[Config], Allocator]) -> None:
    trace = read_trace(KNOWN / "unwritten-hit.itf.json")
    assert told(trace, make(trace.config)) == [True, True]
    *_, scheduled, dropped, hit = trace.steps
    assert isinstance(dropped.call, Preempt)  # and no step ran between the two
    assert hit.result.hits == scheduled.result.new_blocks


def test_ours_hits_what_nobody_wrote() -> None:
    from slotproof.impl.allocator.adapter import torch_allocator

    hits_what_nobody_wrote(torch_allocator)


@pytest.mark.vllm
def test_vllm_hits_what_nobody_wrote() -> None:
    from slotproof.impl.vllm.adapter import vllm_allocator

    hits_what_nobody_wrote(vllm_allocator)
