"""What campaigns on the running model show of the proofs' assumptions: that they can hold."""

from __future__ import annotations

from random import Random

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.calls import NUMBER_BYTES, decode
from slotproof.proofs.campaign.find import CALLS_A_RUN, tiny_configurations
from slotproof.proofs.campaign.monitor import Monitor, Violation

WITNESS_CALLS = 1500


def witnesses(kind: str, rules: Rules, seed: int = 0) -> tuple[frozenset[str], list[Violation]]:
    """What a campaign reaches of the proofs' assumptions, evaluated there; and what it sees broken."""
    random, reached, calls = Random(seed), set[str](), 0
    for config in tiny_configurations(random, kind):
        monitor = Monitor(config, rules)
        for _ in range(CALLS_A_RUN):
            violations = monitor.step(decode(monitor.running, random.getrandbits(8 * NUMBER_BYTES)))
            if violations:
                return frozenset(reached), violations
        calls += CALLS_A_RUN
        reached |= monitor.reached
        if calls >= WITNESS_CALLS:
            return frozenset(reached), []
    raise AssertionError("there is always another configuration")
