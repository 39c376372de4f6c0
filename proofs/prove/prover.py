"""Proving: every obligation put to Z3 in processes of their own, and what the answers amount to.

A verdict is `proved`; `refuted`, by a reachable story; `unknown`, not proved; or `vacuous`, proved from
assumptions that no campaign could reach. Only the first is a success.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.rules import RULES, Rules
from slotproof.proofs.campaign.find import find
from slotproof.proofs.campaign.kinds import HYBRID, KINDS
from slotproof.proofs.campaign.monitor import Violation
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.prove.cores import core
from slotproof.proofs.prove.kept import Kept, named, source
from slotproof.proofs.prove.obligation import TRIES, Answer, Obligation, answer, contradictory
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.smt_lib import Digests
from slotproof.proofs.prove.witnesses import FEW_CALLS, MANY_CALLS, witnesses
from slotproof.proofs.prove.workers import Progress, quiet, run

PROVED, REFUTED, UNKNOWN, VACUOUS = "proved", "refuted", "unknown", "vacuous"

CONTRADICTION = "assumptions that contradict each other"
"""The witness of an obligation that proves too much; no campaign reaches it."""


@dataclass(frozen=True)
class Proved:
    """An obligation and Z3's answer, before it is known whether its assumptions can be reached."""

    name: str
    statement: str
    kind: str
    stage: str
    witness: str
    unsat: bool
    seconds: float
    by_definition: bool = False
    problem: str = ""
    """The digest of the problem (`smt_lib.py`)."""
    resources: int = 0
    """What Z3 took, in its own unit."""
    kept: bool = False
    """The answer is one of an earlier run."""


@dataclass(frozen=True)
class Finding:
    """An obligation's verdict."""

    name: str
    statement: str
    kind: str
    stage: str
    verdict: str
    seconds: float
    by_definition: bool = False
    """The goal is true as it stands, whatever is assumed: what a step makes is what is claimed of it."""
    problem: str = ""
    resources: int = 0
    kept: bool = False

    @property
    def answered(self) -> bool:
        """It is an obligation; else it stands for a group of them whose worker had to be killed."""
        return bool(self.problem)


@dataclass
class Report:
    """What `prove` found. `stories` are the statements that fell, by name."""

    verdict: str
    obligations: list[Finding]
    wanted: frozenset[str] = frozenset()
    """The statements that were asked for, if not all; the obligations of others are what these lean on."""
    stories: dict[str, Story] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    """Statements that a campaign under the very rules that are proved saw broken: the readings disagree."""
    interrupted: bool = False
    """It was stopped: no statement is proved, for any group that is left may concern it."""
    open: int = 0
    """Groups of obligations that were left when it was stopped."""

    def of_statement(self, statement: str) -> str:
        """A statement's verdict."""
        if statement in self.stories:
            return REFUTED
        known = _worst(f.verdict for f in self.obligations if f.statement == statement)
        return UNKNOWN if self.interrupted and known == PROVED else known


def prove(
    statements: Iterable[str] = (),
    kinds: tuple[str, ...] = KINDS,
    rules: Rules | None = None,
    progress: Progress = quiet,
    kept: Kept | None = None,
    fell: Callable[[str, Story], None] | None = None,
) -> Report:
    """Prove statements, all unless some are named, for kinds of attention; with a named one, what its proof
    leans on: the invariants of all others, and what steps and loops do.

    With all rules on, a campaign must reach every assumption; with one off, campaigns look for the
    stories by which statements fall; `fell` is told the first of each statement as soon as there is one. What
    `kept` knows is not proved again; what is proved is added to it.
    """
    rules, kept = Rules() if rules is None else rules, Kept() if kept is None else kept
    here, earlier = source(), (dict(kept.problems), frozenset(kept.consistent))
    wanted = frozenset(statements)
    proved: list[Proved] = []
    reached: dict[str, frozenset[str]] = {}
    tasks: list[_Task] = []
    report = Report(UNKNOWN, [], wanted)
    for kind in kinds:
        if rules != Rules():
            tasks.append(_StoryTask(rules, kind))
        elif (seen := kept.reached.get(named(here, kind))) is not None:
            reached[kind] = frozenset(seen)
        else:
            tasks.append(_WitnessTask(kind))
    for group in groups(kinds):
        key = named(here, group.name, group.kind, rules, sorted(wanted))
        if (of_group := kept.groups.get(key)) is not None:
            proved += [replace(Proved(**p), kept=True, seconds=0.0) for p in of_group]
        else:
            tasks.append(_GroupTask(group, rules, wanted, *earlier))
    report.open = sum(isinstance(task, _GroupTask) for task in tasks)

    def note(task: _Task, found: Any) -> None:
        if isinstance(task, _GroupTask):
            of, together = found or (task.lost(), "")
            proved.extend(of)
            kept.problems |= {p.problem: p.resources for p in of if p.unsat}
            if together:
                kept.consistent[together] = True
                if all(p.unsat for p in of):
                    key = named(here, task.group.name, task.group.kind, rules, sorted(wanted))
                    kept.groups[key] = [asdict(p) for p in of]
            report.open -= 1
        elif isinstance(task, _WitnessTask) and found is not None:
            seen, violations = found
            reached[task.kind] = reached.get(task.kind, frozenset()) | seen
            report.violations += violations
            if not violations:
                kept.reached[named(here, task.kind)] = sorted(reached[task.kind])
        elif isinstance(task, _StoryTask) and found is not None:
            fallen = {s: story for s, story in found.items() if not wanted or s in wanted}
            if fell is not None:
                for statement in sorted(fallen.keys() - report.stories.keys()):
                    fell(statement, fallen[statement])
            report.stories = _shortest(report.stories, fallen)

    def work(tasks: list[_Task]) -> None:
        for done, (task, found) in enumerate(run(tasks) if tasks else (), 1):
            progress(task.label, done, len(tasks))
            note(task, found)

    try:
        work(tasks)
        if not report.violations:
            work(_longer(proved, reached))
    except KeyboardInterrupt:
        report.interrupted = True
    proved.sort(key=lambda p: (KINDS.index(p.kind), p.name))
    for p in proved:
        # A campaign that saw a statement broken has stopped there: what it did not reach means nothing.
        known = None if report.violations or report.interrupted else reached.get(p.kind, frozenset())
        report.obligations.append(_finding(p, known, report.stories, rules))
    verdicts = [f.verdict for f in report.obligations]
    verdicts += [REFUTED] * bool(report.stories or report.violations)
    report.verdict = _worst([*verdicts, UNKNOWN] if report.interrupted else verdicts)
    return report


def matrix(progress: Progress = quiet) -> Generator[tuple[str, dict[str, Story]], None, None]:
    """For every rule, as soon as it and those before it are known, the statements that fall without it, each
    with its story."""
    tasks = [
        _StoryTask(Rules().without(rule), kind, rule)
        for rule, of in RULES.items()
        for kind in ((of["kind"],) if of["kind"] else KINDS)
    ]
    found: dict[str, dict[str, Story]] = {rule: {} for rule in RULES}
    left = Counter(task.label for task in tasks)
    for done, (task, stories) in enumerate(run(tasks), 1):
        if stories is not None:
            found[task.label] = _shortest(found[task.label], stories)
        left[task.label] -= 1
        progress(task.label, done, len(tasks))
        while found and not left[rule := next(iter(found))]:
            yield rule, found.pop(rule)


def _shortest(some: dict[str, Story], others: dict[str, Story]) -> dict[str, Story]:
    """Of each statement the shorter story, in the order of their names; the first of two alike."""
    both = sorted({**some, **others})
    stories = {s: [found[s] for found in (some, others) if s in found] for s in both}
    return {s: min(found, key=lambda story: (len(story.calls), str(story))) for s, found in stories.items()}


def _longer(proved: list[Proved], reached: dict[str, frozenset[str]]) -> list[_Task]:
    """Campaigns for the kinds of which not all is reached that is assumed."""
    assumed: dict[str, set[str]] = {kind: set() for kind in reached}
    for p in proved:
        if p.witness not in ("", CONTRADICTION):
            assumed.get(p.kind, set()).add(p.witness)
    return [_WitnessTask(k, MANY_CALLS, frozenset(of)) for k, of in assumed.items() if not of <= reached[k]]


def _finding(p: Proved, reached: frozenset[str] | None, stories: dict[str, Story], rules: Rules) -> Finding:
    verdict = PROVED if p.unsat else REFUTED if p.statement in stories else UNKNOWN
    reachable = reached is None or rules != Rules() or not p.witness or p.witness in reached
    if verdict == PROVED and not (reachable and p.witness != CONTRADICTION):
        verdict = VACUOUS
    known = (p.by_definition, p.problem, p.resources, p.kept)
    return Finding(p.name, p.statement, p.kind, p.stage, verdict, p.seconds, *known)


def _worst(verdicts: Iterable[str]) -> str:
    found = set(verdicts)
    return next((v for v in (REFUTED, UNKNOWN, VACUOUS, PROVED) if v in found), UNKNOWN)


@dataclass(frozen=True)
class _GroupTask:
    group: Group
    rules: Rules
    wanted: frozenset[str] = frozenset()
    known: dict[str, int] = field(default_factory=dict)
    """problem -> resources: those that need no answer."""
    consistent: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind})"

    @property
    def tries(self) -> tuple[tuple[int, int], ...]:
        """With a rule off much is not to be proved, and of several groups each try takes long."""
        return TRIES[:1] if self.rules != Rules() and self.group.kind == HYBRID else TRIES

    def __call__(self) -> tuple[list[Proved], str]:
        """The answers, and the digest of all problems if what they assume is consistent, else nothing."""
        digests, results = Digests(), []
        obligations = [o for o in self.group.build(self.rules) if self._is_wanted(o)]
        for o in obligations:
            start, problem = time.perf_counter(), digests.of(o)
            known = self.known.get(problem)
            found = answer(o, self.tries, core(o, digests)) if known is None else Answer(True, known)
            seconds = time.perf_counter() - start
            about = (
                o.name,
                o.statement,
                o.kind,
                o.stage,
                o.witness,
                found.unsat,
                seconds,
                o.is_by_definition,
            )
            results.append(Proved(*about, problem, found.resources, known is not None))
        together = named([p.problem for p in results])
        empty = set[str]() if together in self.consistent else contradictory(obligations)
        marked = [replace(p, witness=CONTRADICTION) if p.name in empty else p for p in results]
        return marked, "" if empty else together

    def _is_wanted(self, o: Obligation) -> bool:
        return not self.wanted or o.statement in self.wanted or not o.is_leaf

    def lost(self) -> list[Proved]:
        """What stands for a group whose worker had to be killed: nothing is known of any statement."""
        name, kind = f"{self.group.name}: not answered", self.group.kind
        return [Proved(name, s, kind, "", "", False, 0.0) for s in self.wanted or STATEMENTS]


@dataclass(frozen=True)
class _WitnessTask:
    kind: str
    calls: int = FEW_CALLS
    wanted: frozenset[str] = frozenset()
    """What it may stop at; nothing: after so many calls."""

    @property
    def label(self) -> str:
        return f"witnesses ({self.kind})"

    def __call__(self) -> tuple[frozenset[str], list[Violation]]:
        return witnesses(self.kind, Rules(), self.calls, wanted=self.wanted)


@dataclass(frozen=True)
class _StoryTask:
    rules: Rules
    kind: str
    label: str = "stories"

    def __call__(self) -> dict[str, Story]:
        return find(self.rules, self.kind)


_Task = _GroupTask | _WitnessTask | _StoryTask
