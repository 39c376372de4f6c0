"""One obligation: assumptions that entail a goal, for every size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import z3


@dataclass(frozen=True)
class Obligation:
    """Under the assumptions the goal holds, whatever the sizes."""

    name: str
    """Where it arises and what is claimed, `step: claim`."""
    statement: str
    """The statement it is part of."""
    kind: str
    """The kind of attention."""
    stage: str
    """The lesson's stage, or the part of the model, that it is about."""
    witness: str
    """What a campaign must reach to show that the assumptions can hold; empty if there are none."""
    assumptions: tuple[z3.BoolRef, ...]
    goal: z3.BoolRef
    is_leaf: bool = False
    """No other statement's proof leans on it. The others are the induction, which is proved all together or
    not at all: every proof assumes the invariants, and that steps and loops do what is said of them."""

    @property
    def is_by_definition(self) -> bool:
        """The goal is true as it stands: what a step makes is what is claimed of it."""
        return bool(z3.is_true(z3.simplify(self.goal)))


_mentioned = z3.Function("mentioned", z3.IntSort(), z3.BoolSort())


def mentions(term: z3.BoolRef) -> list[z3.BoolRef]:
    """Facts that say nothing, but put a term's parts in Z3's sight, so that it instantiates at them."""
    facts, seen, stack = [], set(), [term]
    while stack:
        t = stack.pop()
        if t.get_id() in seen or z3.is_quantifier(t):
            continue
        seen.add(t.get_id())
        stack.extend(t.children())
        if t.num_args() and t.decl().kind() == z3.Z3_OP_UNINTERPRETED and z3.is_int(t):
            facts.append(_mentioned(t))
    return facts


TRIES = ((6_000_000, 0), (6_000_000, 1), (6_000_000, 2), (30_000_000, 0), (30_000_000, 1))
"""Z3's resource limit and random seed, try by try. The first limit is enough for every obligation; one that
Z3 starts on badly is sooner done with another seed than with more of the same."""
CORE = 3_000_000
"""The resource limit of a try with a proof's core, which takes a small part of it."""
CONSISTENCY = 100_000
"""The resource limit of a search for a contradiction, which is never found where all is well."""
SECONDS = 240
"""Wall-clock seconds for one try, should the resource limit not bite: so many that a verdict does not hang on
what else the machine does."""


@dataclass(frozen=True)
class Answer:
    """What Z3 says to a problem, and the resources that it took, in Z3's own unit (about three million a
    second)."""

    unsat: bool
    resources: int


def answer(
    obligation: Obligation,
    tries: tuple[tuple[int, int], ...] | None = None,
    core: list[z3.BoolRef] | None = None,
) -> Answer:
    """Whether Z3 finds that the assumptions and the goal's denial contradict each other, or some of them:
    `core`, which is tried first. Without `tries`, these are all `TRIES`.

    Quantified assumptions are instantiated at their triggers and nowhere else, so the answer comes soon,
    and where it is not `unsat` it is `unknown`.
    """
    facts, spent = problem(obligation), 0
    if core is not None:
        found, spent = check(core, CORE, 0)
        if found == z3.unsat:
            return Answer(True, spent)
    for limits in TRIES if tries is None else tries:
        found, resources = check(facts, *limits)
        spent += resources
        if found == z3.unsat:
            return Answer(True, spent)
    return Answer(False, spent)


def is_proved(obligation: Obligation) -> bool:
    """Whether Z3 answers `unsat`."""
    return answer(obligation).unsat


def contradictory(obligations: Sequence[Obligation]) -> set[str]:
    """The obligations, by name, from whose assumptions, hints included, Z3 derives a contradiction with some
    effort. What is consistent together is so in every part: so all are taken at once, and halved where that
    fails (a proof by cases assumes one thing here and the opposite there)."""
    union = {a.get_id(): a for o in obligations for a in o.assumptions}
    if not union or check([*union.values()], CONSISTENCY, 0)[0] != z3.unsat:
        return set()
    alike = {frozenset(a.get_id() for a in o.assumptions) for o in obligations}
    if len(alike) == 1:
        return {o.name for o in obligations}
    middle = len(obligations) // 2
    return contradictory(obligations[:middle]) | contradictory(obligations[middle:])


def problem(obligation: Obligation) -> list[z3.BoolRef]:
    """What must not be possible: the assumptions, and the goal's denial."""
    return [*obligation.assumptions, z3.Not(obligation.goal), *mentions(obligation.goal)]


def check(facts: list[z3.BoolRef], resources: int, seed: int) -> tuple[z3.CheckSatResult, int]:
    """Z3's answer within a limit of resources, with a random seed, and the resources it took."""
    s = z3.SimpleSolver()
    before = s.statistics().get_key_value("rlimit count")  # of all solvers of this process
    s.set("auto_config", False)
    s.set("smt.mbqi", False)
    s.set("smt.random_seed", seed)
    s.set("rlimit", resources)
    s.set("timeout", SECONDS * 1000)
    s.add(*facts)
    found = s.check()
    return found, s.statistics().get_key_value("rlimit count") - before
