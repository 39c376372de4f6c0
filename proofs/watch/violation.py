"""A violation, and its story."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slotproof.impl.vllm.live.events import Event, told
from slotproof.proofs.gate.compare import Difference

SHOWN = 12
"""Differences that are told, at most."""


@dataclass(frozen=True)
class Violation:
    """A call within the contract that was answered otherwise than the model does, or left another state."""

    manager: str
    call: Event
    differences: tuple[Difference, ...]
    statements: tuple[Difference, ...]
    """What of the state breaks a statement, whatever the model says."""
    before: tuple[Event, ...]
    """The last calls before it."""

    @property
    def lines(self) -> Iterable[str]:
        """The story, for people."""
        yield f"{self.manager}: call {self.call.number} is not as the model has it"
        if self.before:
            yield "  the calls before it:"
        yield from (f"    {told(event)}" for event in self.before)
        yield "  the call:"
        yield f"    {told(self.call)}"
        yield from (f"  {d.line}" for d in self.differences[:SHOWN])
        yield from (f"  breaks {d.line}" for d in self.statements[:SHOWN])
