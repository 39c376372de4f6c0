"""The model behind the protocol: the implementation that agrees, and with a rule off, one that does not.

What the gate itself is tried on. `slotproof gate --impl slotproof.proofs.gate.model_allocator:ModelAllocator`
compares the model with itself.
"""

from __future__ import annotations

from slotproof.impl.protocol import Call, Config, Result, Snapshot
from slotproof.model.language.rules import Rules
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.compare import expected_snapshot
from slotproof.proofs.gate.oracle import expect


class ModelAllocator:
    """An `Allocator` that answers as the model does under some rules, all of them unless given."""

    def __init__(self, config: Config, rules: Rules | None = None) -> None:
        self._running = Running(**model_config(config), rules=rules)

    def step(self, call: Call) -> Result:
        """Make one call.

        Raises:
            ContractError: the caller's contract forbids it; nothing has changed.
            Stuck: with a rule off, the call failed half way; nothing has changed.
        """
        return expect(self._running, call).result

    def snapshot(self) -> Snapshot:
        """The state now."""
        return expected_snapshot(self._running)
