"""The judges: run with one's name in a tree with a fault in it, each exits 0 if it sees nothing wrong.

`python -m slotproof.proofs.mutate.judges NAME` prints what it saw in a line, and exits 1 if that is any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import KINDS
from slotproof.proofs.cli.main import run
from slotproof.proofs.prove import kept
from slotproof.proofs.prove.cores import core
from slotproof.proofs.prove.obligation import answer
from slotproof.proofs.prove.obligations.groups import groups
from slotproof.proofs.prove.smt_lib import Digests
from slotproof.proofs.prove.witnesses import witnesses


def campaign() -> str:
    """The statements, evaluated on every call of a campaign."""
    for kind in KINDS:
        _, violations = witnesses(kind, Rules())
        if violations:
            return f"{violations[0].statement}: {violations[0].claim}"
    return ""


def gate(implementation: str) -> str:
    """The model beside an implementation."""
    code = run(["gate", "--impl", implementation, "--calls", "4000", "--seed", "1"])
    return f"exit code {int(code)}" if code else ""


def proof() -> str:
    """Every obligation that was not proved as it stands before."""
    earlier = kept.load()
    for group in groups():
        digests = Digests()
        for o in group.build(Rules()):
            problem = digests.of(o)
            if problem in earlier.problems:
                continue
            found = answer(o, core=core(o, digests))
            if not found.unsat:
                return f"{o.name} ({o.kind})"
            earlier.problems[problem] = found.resources
    earlier.save()
    return ""


JUDGES: dict[str, Callable[[], str]] = {
    "campaign": campaign,
    "gate on torch": lambda: gate("torch"),
    "gate on vllm": lambda: gate("vllm"),
    "proof": proof,
}
"""What each sees of a fault, in a line; nothing if it sees none."""

if __name__ == "__main__":
    seen = JUDGES[sys.argv[1]]()
    print(seen)
    sys.exit(1 if seen else 0)
