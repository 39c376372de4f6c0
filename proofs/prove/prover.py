"""Proving: every obligation put to Z3 in processes of their own, and what the answers amount to.

A verdict is `proved`; `refuted`, by a reachable story; `unknown`, not proved; or `vacuous`, proved from
assumptions that no campaign could reach. Only the first is a success.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from random import Random

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.rules import RULES, Rules
from slotproof.proofs.campaign.calls import NUMBER_BYTES, decode
from slotproof.proofs.campaign.monitor import Monitor, Violation
from slotproof.proofs.campaign.stories import CALLS_A_RUN, Story, find, tiny_configurations
from slotproof.proofs.prove.obligation import Obligation, contradictory, is_proved
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.symbols import KINDS, SLIDING_WINDOW

PROVED, REFUTED, UNKNOWN, VACUOUS = "proved", "refuted", "unknown", "vacuous"

CONTRADICTION = "assumptions that contradict each other"
"""The witness of an obligation that proves too much; no campaign reaches it."""
GROUP_SECONDS = 120
"""Seconds without any answer after which the workers are killed, and what is open is unknown."""
WITNESS_CALLS = 1500


Progress = Callable[[str, int, int], None]
"""Told what was done, and how many of how many."""


def _quiet(label: str, done: int, total: int) -> None:
    pass


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
    progress: Progress = _quiet,
) -> Report:
    """Prove statements, all unless some are named, for kinds of attention; with a named one, what its proof
    leans on: the invariants of all others, and what steps and loops do.

    With all rules on, a campaign must reach every assumption; with one off, campaigns look for the
    stories by which statements fall.
    """
    rules = Rules() if rules is None else rules
    wanted = frozenset(statements)
    work = [_GroupTask(group, rules, wanted) for group in groups(kinds)]
    tasks: list[_Task] = [*(_WitnessTask(kind, rules) for kind in kinds), *work]
    if rules != Rules():
        tasks = [*(_StoryTask(rules, kind) for kind in kinds), *tasks]
    proved: list[Proved] = []
    reached: dict[str, frozenset[str]] = {}
    report = Report(UNKNOWN, [], wanted)
    try:
        for done, (task, answer) in enumerate(_run(tasks), 1):
            progress(task.label, done, len(tasks))
            if isinstance(task, _GroupTask):
                proved += answer if isinstance(answer, list) else task.lost()
            elif isinstance(task, _WitnessTask) and isinstance(answer, tuple):
                reached[task.kind], violations = answer
                report.violations += violations if rules == Rules() else []
            elif isinstance(task, _StoryTask) and isinstance(answer, dict):
                fallen = {s: story for s, story in answer.items() if not wanted or s in wanted}
                report.stories = _shortest(report.stories, fallen)
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


def matrix(progress: Progress = _quiet) -> Generator[tuple[str, dict[str, Story]], None, None]:
    """For every rule, as soon as it and those before it are known, the statements that fall without it, each
    with its story."""
    tasks = [
        _StoryTask(Rules().without(rule), kind, rule)
        for rule, of in RULES.items()
        for kind in ((of["kind"],) if of["kind"] else KINDS)
    ]
    found: dict[str, dict[str, Story]] = {rule: {} for rule in RULES}
    left = Counter(task.label for task in tasks)
    for done, (task, answer) in enumerate(_run(tasks), 1):
        if isinstance(answer, dict):
            found[task.label] = _shortest(found[task.label], answer)
        left[task.label] -= 1
        progress(task.label, done, len(tasks))
        while found and not left[rule := next(iter(found))]:
            yield rule, found.pop(rule)


def _shortest(some: dict[str, Story], others: dict[str, Story]) -> dict[str, Story]:
    """Of each statement the shorter story, in the order of their names; the first of two alike."""
    both = sorted({**some, **others})
    stories = {s: [found[s] for found in (some, others) if s in found] for s in both}
    return {s: min(found, key=lambda story: (len(story.calls), str(story))) for s, found in stories.items()}


def _finding(p: Proved, reached: frozenset[str] | None, stories: dict[str, Story], rules: Rules) -> Finding:
    verdict = PROVED if p.unsat else REFUTED if p.statement in stories else UNKNOWN
    reachable = reached is None or rules != Rules() or not p.witness or p.witness in reached
    if verdict == PROVED and not (reachable and p.witness != CONTRADICTION):
        verdict = VACUOUS
    return Finding(p.name, p.statement, p.kind, p.stage, verdict, p.seconds, p.by_definition)


def _worst(verdicts: Iterable[str]) -> str:
    found = set(verdicts)
    return next((v for v in (REFUTED, UNKNOWN, VACUOUS, PROVED) if v in found), UNKNOWN)


@dataclass(frozen=True)
class _GroupTask:
    group: Group
    rules: Rules
    wanted: frozenset[str]

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind})"

    def __call__(self) -> list[Proved]:
        results = []
        obligations = [o for o in self.group.build(self.rules) if self._is_wanted(o)]
        for o in obligations:
            start = time.perf_counter()
            unsat = is_proved(o)
            seconds = time.perf_counter() - start
            results.append(
                Proved(o.name, o.statement, o.kind, o.stage, o.witness, unsat, seconds, o.is_by_definition)
            )
        empty = contradictory(obligations)
        return [replace(p, witness=CONTRADICTION) if p.name in empty else p for p in results]

    def _is_wanted(self, o: Obligation) -> bool:
        return not self.wanted or o.statement in self.wanted or not o.is_leaf

    def lost(self) -> list[Proved]:
        """What stands for a group whose worker had to be killed: nothing is known of any statement."""
        name, kind = f"{self.group.name}: not answered", self.group.kind
        return [Proved(name, s, kind, "", "", False, 0.0) for s in self.wanted or STATEMENTS]


@dataclass(frozen=True)
class _WitnessTask:
    kind: str
    rules: Rules

    @property
    def label(self) -> str:
        return f"witnesses ({self.kind})"

    def __call__(self) -> tuple[frozenset[str], list[Violation]]:
        return witnesses(self.kind, self.rules)


@dataclass(frozen=True)
class _StoryTask:
    rules: Rules
    kind: str
    label: str = "stories"

    def __call__(self) -> dict[str, Story]:
        return find(self.rules, self.kind == SLIDING_WINDOW)


_Task = _GroupTask | _WitnessTask | _StoryTask


def witnesses(kind: str, rules: Rules, seed: int = 0) -> tuple[frozenset[str], list[Violation]]:
    """What a campaign reaches of the proofs' assumptions, evaluated there; and what it sees broken."""
    random, reached, calls = Random(seed), set[str](), 0
    for config in tiny_configurations(random, window=kind == SLIDING_WINDOW):
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


def _run(tasks: Iterable[_Task]) -> Iterable[tuple[_Task, object]]:
    """Each task in a process of its own, so that it starts from nothing and can be killed."""
    tasks = list(tasks)
    context = multiprocessing.get_context("fork")
    # Workers inherit what is blocked here: an interrupt ends this process, and that ends them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with context.Pool(min(len(tasks), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        answers = pool.imap_unordered(_attempt, enumerate(tasks), chunksize=1)
        open_tasks = dict(enumerate(tasks))
        while open_tasks:
            try:
                index, answer = answers.next(timeout=GROUP_SECONDS)
            except multiprocessing.TimeoutError:
                pool.terminate()
                break
            yield open_tasks.pop(index), answer
    yield from ((task, None) for task in open_tasks.values())


def _attempt(numbered: tuple[int, _Task]) -> tuple[int, object]:
    index, task = numbered
    return index, task()
