"""What a proof leans on: of an obligation's assumptions, the few that an earlier proof used (its *core*).

With these alone Z3 takes a small part of what it takes with all in sight. A core is a hint and no more: fewer
assumptions prove less, never more, and where a core does not do, because the model has changed since, all
assumptions are tried as if there were none. Assumptions are named by the digests of their terms.

`python -m slotproof.proofs.prove.cores` looks for the cores again that do not do any more; with `--all`, for
every one. Behind it, beginnings of labels such as `free-loop` or `batch (full)` say where alone.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.prove.obligation import CORE, TRIES, Obligation, answer, check, problem
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.smt_lib import Digests
from slotproof.proofs.prove.workers import run

FILE = Path(__file__).parent / "cores.txt"
"""A line for each obligation that has a core: its kind, its name, and the digests."""
DIGITS = 6
"""Hexadecimal digits of a digest that name an assumption; if two share them, both are taken."""
WORTH = 8_000
"""Resources below which an obligation is proved as soon without a core."""
SMALL = 5
"""A core is looked for again among itself this often, as long as it gets smaller."""

Place = tuple[str, str]
"""An obligation's kind and name."""


@cache
def known() -> dict[Place, frozenset[str]]:
    """The cores in the file; none if there is no file."""
    if not FILE.exists():
        return {}
    lines = (line.split(" | ") for line in FILE.read_text().splitlines())
    return {(kind, name): frozenset(digests.split()) for kind, name, digests in lines}


def core(obligation: Obligation, digests: Digests) -> list[z3.BoolRef] | None:
    """What of the obligation's problem to try first; None if nothing is known."""
    digits = known().get((obligation.kind, obligation.name))
    if digits is None:
        return None
    facts = zip(problem(obligation), digests.of_facts(obligation), strict=True)
    return [fact for fact, digest in facts if digest[:DIGITS] in digits]


def find(obligation: Obligation, digests: Digests) -> frozenset[str] | None:
    """A core, by the digits of its digests; None if there is none with which the proof is cheap."""
    named = [
        (fact, digest[:DIGITS])
        for fact, digest in zip(problem(obligation), digests.of_facts(obligation), strict=True)
    ]
    needed, best, cost = {name for _, name in named}, None, CORE
    for _ in range(SMALL):
        used = _used([(fact, name) for fact, name in named if name in needed])
        if used is None:
            break
        found, spent = check([fact for fact, name in named if name in used], CORE, 0)
        if found == z3.unsat and spent < cost:  # the smallest is not always the quickest
            best, cost = frozenset(used), spent
        if used == needed:
            break
        needed = used
    return best


def _used(facts: list[tuple[z3.BoolRef, str]]) -> set[str] | None:
    """The names of the facts that Z3 used, if it finds that they contradict each other."""
    solver = z3.SimpleSolver()
    for option, value in (("auto_config", False), ("smt.mbqi", False), ("unsat_core", True)):
        solver.set(option, value)
    solver.set("rlimit", TRIES[-1][0])
    for number, (fact, _) in enumerate(facts):
        solver.assert_and_track(fact, f"used!{number}")
    if solver.check() != z3.unsat:
        return None
    return {facts[int(str(used).partition("!")[2])][1] for used in solver.unsat_core()}


class CoreTask:
    """The cores of a group's obligations, looked for where they are worth it."""

    def __init__(self, group: Group, anew: bool) -> None:
        self.group, self.anew = group, anew

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind})"

    def __call__(self) -> dict[Place, frozenset[str]]:
        digests, found = Digests(), dict[Place, frozenset[str]]()
        for o in self.group.build(Rules()):
            first = None if self.anew else core(o, digests)
            if first is not None and check(first, CORE, 0)[0] == z3.unsat:
                found[o.kind, o.name] = known()[o.kind, o.name]
                continue
            if answer(o).resources >= WORTH and (of := find(o, digests)) is not None:
                found[o.kind, o.name] = of
        return found


def main(anew: bool, labels: list[str]) -> None:
    """Write the file anew; of some groups alone, if the beginnings of their labels are given."""
    tasks = [CoreTask(group, anew) for group in groups()]
    if labels:
        tasks = [task for task in tasks if task.label.startswith(tuple(labels))]
    cores = dict(known()) if labels else {}
    for task, found in run(tasks):
        print(task.label, "not answered" if found is None else len(found), flush=True)
        cores |= found or {}
    lines = (f"{kind} | {name} | {' '.join(sorted(of))}\n" for (kind, name), of in sorted(cores.items()))
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    main("--all" in sys.argv, [label for label in sys.argv[1:] if label != "--all"])
