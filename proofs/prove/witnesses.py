"""What campaigns on the running model show of the proofs' assumptions: that they can hold."""

from __future__ import annotations

from random import Random

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.calls import NUMBER_BYTES, decode
from slotproof.proofs.campaign.find import CALLS_A_RUN, tiny_configurations
from slotproof.proofs.campaign.kinds import FULL, HYBRID, SLIDING_WINDOW
from slotproof.proofs.campaign.monitor import Monitor, Violation

WITNESS_CALLS = 1500
"""Calls of a campaign that is to see what is broken."""
MANY_CALLS = 6000
"""Calls after which a campaign gives up that is to reach something."""
FEW_CALLS = 270
"""Calls that reach, with these seeds, all that proofs assume."""
SEEDS = {FULL: 4, SLIDING_WINDOW: 8, HYBRID: 892}


def witnesses(
    kind: str,
    rules: Rules,
    calls: int = WITNESS_CALLS,
    seed: int | None = None,
    wanted: frozenset[str] = frozenset(),
) -> tuple[frozenset[str], list[Violation]]:
    """What a campaign reaches of the proofs' assumptions, evaluated there; and what it sees broken. It ends
    after so many calls, or when it has reached what is wanted, if anything is."""
    random, reached, made = Random(SEEDS[kind] if seed is None else seed), set[str](), 0
    for config in tiny_configurations(random, kind):
        monitor = Monitor(config, rules)
        for _ in range(CALLS_A_RUN):
            violations = monitor.step(decode(monitor.running, random.getrandbits(8 * NUMBER_BYTES)))
            if violations:
                return frozenset(reached), violations
        made += CALLS_A_RUN
        reached |= monitor.reached
        if made >= calls or (wanted and wanted <= reached):
            return frozenset(reached), []
    raise AssertionError("there is always another configuration")
