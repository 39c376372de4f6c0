"""How much luck is in a proof: Z3 again, with random seeds and the assumptions in a random order.

As in `prove`, what an earlier proof leaned on (`cores.py`) is tried first, and all else if that does not do.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.prove.cores import core
from slotproof.proofs.prove.obligation import CORE, check, problem
from slotproof.proofs.prove.obligations.groups import Group
from slotproof.proofs.prove.smt_lib import Digests

LIMIT = 60_000_000
"""Z3's resource limit for one run."""
AT_ONCE = 4
"""Seeds that one task tries."""


@dataclass(frozen=True)
class Runs:
    """An obligation and the resources that each run took, in Z3's own unit; those not proved are counted."""

    kind: str
    name: str
    resources: tuple[int, ...]
    unproved: int


@dataclass(frozen=True)
class SeedTask:
    """The obligations of a group, each with some seeds."""

    group: Group
    rules: Rules
    seeds: range

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind}), seeds {self.seeds[0]} to {self.seeds[-1]}"

    def __call__(self) -> list[Runs]:
        found, digests = [], Digests()
        for o in self.group.build(self.rules):
            runs, unproved, first = [], 0, core(o, digests)
            for seed in self.seeds:
                proved, resources = False, 0
                for facts, limit in ((first, CORE), (problem(o), LIMIT)):
                    if facts is not None and not proved:
                        shuffled = Random(seed).sample(facts, len(facts))
                        answer, spent = check(shuffled, limit, seed)
                        proved, resources = answer == z3.unsat, resources + spent
                runs.append(resources)
                unproved += not proved
            found.append(Runs(o.kind, o.name, tuple(runs), unproved))
        return found

    def lost(self) -> list[Runs]:
        """What stands for a group whose worker had to be killed."""
        return [Runs(self.group.kind, self.group.name, (), len(self.seeds))]


def tasks(groups: list[Group], rules: Rules, seeds: int) -> list[SeedTask]:
    """Seeds 1 .. seeds for every obligation, a few at a time."""
    ranges = [range(low, min(low + AT_ONCE, seeds + 1)) for low in range(1, seeds + 1, AT_ONCE)]
    return [SeedTask(group, rules, some) for group in groups for some in ranges]


def together(found: list[Runs]) -> list[Runs]:
    """The runs of each obligation as one, the slowest first."""
    runs: dict[tuple[str, str], Runs] = {}
    for some in found:
        before = runs.get((some.kind, some.name), Runs(some.kind, some.name, (), 0))
        both = (*before.resources, *some.resources)
        runs[some.kind, some.name] = Runs(some.kind, some.name, both, before.unproved + some.unproved)
    return sorted(runs.values(), key=lambda r: (-r.unproved, -max(r.resources, default=0), r.name))
