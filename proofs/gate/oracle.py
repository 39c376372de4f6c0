"""The model as the gate's oracle: call by call, what an implementation should answer and show."""

from __future__ import annotations

from typing import NamedTuple

from slotproof.impl.protocol import Call, Config, Result, Snapshot
from slotproof.model.language.state import State
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import Outcome
from slotproof.proofs.campaign.calls import call_fields, model_config
from slotproof.proofs.gate.compare import expected_result, expected_snapshot
from slotproof.proofs.traces.trace import Step, Trace


class Expectation(NamedTuple):
    """A call, and what the model says about it."""

    call: Call
    before: State
    outcome: Outcome
    result: Result
    snapshot: Snapshot

    @property
    def step(self) -> Step:
        """It, as a trace has it."""
        return Step(self.call, self.result, self.snapshot)


def expect(running: Running, call: Call) -> Expectation:
    """Take a call in the model.

    Raises:
        ContractError: the caller's contract forbids the call; nothing has changed.
    """
    before = running.state
    name, fields = call_fields(call)
    outcome = running.step(name, **fields)
    return Expectation(
        call, before, outcome, expected_result(before, call, outcome), expected_snapshot(running)
    )


def expect_all(config: Config, calls: list[Call]) -> list[Expectation]:
    """Take calls in the model, from an idle pool. Raises ContractError as `expect`."""
    running = Running(**model_config(config))
    return [expect(running, call) for call in calls]


def trace_of(config: Config, story: list[Expectation], description: str = "") -> Trace:
    """The story as the model tells it."""
    initial = expected_snapshot(Running(**model_config(config)))
    return Trace(config, initial, tuple(e.step for e in story), description)
