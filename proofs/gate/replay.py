"""Traces, run again: by the model, which must tell them as they are written, and by an implementation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    expected_snapshot,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.oracle import expect
from slotproof.proofs.gate.trial import Asked, try_calls
from slotproof.proofs.traces.trace import Trace, TraceError


class Replay(NamedTuple):
    """How far a trace was run, and what differed there."""

    calls: int
    differences: list[Difference]
    by_model: bool = False
    """It is the model that tells the story otherwise."""
    interrupted: bool = False
    """It was stopped after these calls."""


def retell(trace: Trace, path: Path) -> Replay:
    """Run the trace's calls in the model, and compare with what is written.

    Raises:
        TraceError: a call is none that the caller's contract allows. `path` is for the message.
    """
    if trace.followed:  # it is the implementation's own story, and nothing of it the model's
        return Replay(len(trace.steps), [], by_model=True)
    running = Running(**model_config(trace.config))
    keys = KeyMatch()
    found = snapshot_differences(Strictness.EXACT, trace.initial, expected_snapshot(running), keys)
    if found:
        return Replay(0, found, by_model=True)
    for index, step in enumerate(trace.steps, 1):
        try:
            e = expect(running, step.call)
        except ContractError as error:
            raise TraceError(f"{path}: $.states[{index}].call: {error}") from None
        found = result_differences(Strictness.EXACT, step.result, e.result)
        found += snapshot_differences(Strictness.EXACT, step.state, e.snapshot, keys)
        if found:
            return Replay(index, found, by_model=True)
    return Replay(len(trace.steps), [], by_model=True)


def run_again(
    implementation: Isolated,
    trace: Trace,
    strictness: Strictness,
    compared: Callable[[int], None] = lambda calls: None,
    ignore: frozenset[str] = frozenset(),
) -> Replay:
    """Drive an implementation with the trace's calls, and compare it with the model, or hold it against the
    statements as it was when the trace was written.

    Args:
        ignore: Fields that are not compared.
        compared: Is told, call by call, how many calls agree.

    Raises:
        CannotStart: there is no implementation to drive.
    """
    calls = [step.call for step in trace.steps]
    agreed = 0

    def count(calls: int) -> None:
        nonlocal agreed
        agreed = calls
        compared(calls)

    try:
        implementation.start()
        strictness = Strictness.INVARIANTS if trace.followed else strictness
        asked = Asked.of(implementation.about, strictness, ignore)
        trial = try_calls(implementation, trace.config, calls, asked, count)
    except KeyboardInterrupt:
        return Replay(agreed, [], interrupted=True)
    return Replay(trial.calls, trial.failure.differences if trial.failure else [])
