"""Paths: a function is run again and again, until every way through it has been taken.

A run asks `Path.decide` where the code branches on a Z3 term. The solver says which sides are possible; one
is taken, the other noted, and a later run takes the same decisions up to there (depth first, by replay).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import z3

from slotproof.proofs.prove.claims import as_term

HERE = File(__file__).parent
QUICK, THOROUGH = 200_000, 10_000_000
"""Z3's resource limits: for which sides of a branch are possible, and for what is to be shown."""


@dataclass(frozen=True)
class Budget:
    """How far a function is followed before the answer is `unknown`."""

    paths: int = 2000
    decisions: int = 400
    """On one path: a loop that is not followed as a whole runs into it."""
    seconds: float = 120.0
    """Of computing time."""


class Unsupported(BaseException):
    """The code did what we cannot follow. No `Exception`, so that the code under test does not catch it."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where or code_line()


class Branches(BaseException):
    """A function that should not branches on a term."""


class EndOfPath(BaseException):
    """The run has shown what it was for."""


class Exhausted(BaseException):
    """A budget is used up (`what`), at `where`."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = code_line()


def code_line() -> str:
    """`file:line` of the code under test that runs now: the innermost frame that is not of this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and File(frame.f_code.co_filename).parent == HERE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass
class Exploration:
    """What all runs of one function share."""

    assumptions: Sequence[z3.BoolRef]
    budget: Budget = field(default_factory=Budget)
    summaries: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """What one iteration of a loop does, by the decisions that lead to it (`loops.py`)."""
    likely: dict[str, int] = field(default_factory=dict)
    """The one option that was possible, by the line of code: it is likely to be so again."""

    def runs(self, run: Callable[[Path], None]) -> Iterator[Path]:
        """Every path, after `run` has followed it to its end.

        Raises:
            Unsupported: as `run` raises it.
            Exhausted: a budget is used up.
        """
        solver = _solver()
        solver.add(*self.assumptions)
        deadline = time.process_time() + self.budget.seconds
        pending: list[tuple[int, ...]] = [()]
        done = 0
        while pending:
            if done >= self.budget.paths:
                raise Exhausted(f"{done} paths")
            done += 1
            solver.push()
            path = Path(self, solver, pending.pop(), pending, deadline)
            try:
                with path:
                    run(path)
            except EndOfPath:
                pass
            finally:
                solver.pop()
            yield path


def _solver() -> z3.Solver:
    solver = z3.SimpleSolver()
    solver.set("auto_config", False)
    solver.set("smt.mbqi", False)
    solver.set("timeout", 20_000)
    return solver


class Path:
    """One run, and what is known on its way."""

    _current: Path | None = None

    def __init__(
        self,
        exploration: Exploration,
        solver: z3.Solver,
        replay: tuple[int, ...],
        pending: list[tuple[int, ...]],
        deadline: float,
    ) -> None:
        self.exploration = exploration
        self.solver = solver
        self.decisions: list[int] = []
        self.conditions: list[z3.BoolRef] = []
        """What was decided, as terms."""
        self.facts: dict[z3.BoolRef, None] = {}
        """What was learnt on the way, true wherever the run is."""
        self.counts: list[tuple[Callable[[Any], Any], z3.FuncDeclRef]] = []
        """Predicates, with the function n -> how many of 0 .. n - 1 satisfy it."""
        self.lists: list[Any] = []
        """Every list of unknown length, in the order in which they were made."""
        self.iteration: Any = None
        """The loop of which one iteration, standing for all, is under way (`loops.py`)."""
        self.is_trial = False
        """The run only finds out what an iteration does: nothing that it does afterwards counts."""
        self.has_left_trial = False
        self._is_unbranched = False
        self._decided: dict[z3.BoolRef, bool] = {}
        self._names: dict[z3.ArithRef, z3.ArithRef] = {}
        self._replay = replay
        self._pending = pending
        self._deadline = deadline
        self.fresh = 0

    def __enter__(self) -> Path:
        Path._current = self
        return self

    def __exit__(self, *_: object) -> None:
        Path._current = None

    @staticmethod
    def current() -> Path:
        """The run that is under way."""
        assert Path._current is not None, "symbolic values live in a run"
        return Path._current

    def integer(self, name: str) -> z3.ArithRef:
        """An unknown integer, of the same name in every run that comes here."""
        self.fresh += 1
        return z3.Int(f"{name}~{self.fresh}")

    def assume(self, *facts: Any) -> None:
        """Add what is known wherever the run is."""
        for fact in facts:
            term = as_term(fact)
            if term not in self.facts:
                self.facts[term] = None
                self.solver.add(term)

    def decide(self, condition: Any) -> bool:
        """Which way the code goes on a condition."""
        term = z3.simplify(as_term(condition))
        if z3.is_true(term):
            return True
        if z3.is_false(term):
            return False
        if term not in self._decided:
            self._decided[term] = self.choose(term, z3.Not(term)) == 0
        return self._decided[term]

    def named(self, value: Any) -> Any:
        """An integer by a name of its own if there is a choice in it; the same for the same."""
        term = z3.simplify(z3.IntVal(value) if isinstance(value, int) else value, som=True)
        if not has_choice(term):
            return term
        if term not in self._names:
            self._names[term] = self.integer("v")
            self.assume(self._names[term] == term)
        return self._names[term]

    def choose(self, *options: z3.BoolRef) -> int:
        """Which of the options the run takes; between them they are all there is."""
        self.goes_on()
        if self._is_unbranched:
            raise Branches
        depth = len(self.decisions)
        if depth >= self.exploration.budget.decisions:
            raise Exhausted(f"{depth} decisions on one path")
        if time.process_time() > self._deadline:
            raise Exhausted(f"{self.exploration.budget.seconds:g} seconds")
        if depth < len(self._replay):
            taken = self._replay[depth]
        else:
            possible = self._possible(options)
            prefix = tuple(self.decisions)
            self._pending.extend((*prefix, n) for n in reversed(possible[1:]))
            taken = possible[0]
        self.decisions.append(taken)
        self.conditions.append(options[taken])
        self.solver.add(options[taken])
        return taken

    @contextmanager
    def unbranched(self) -> Iterator[None]:
        """A branch raises Branches while the context lasts."""
        before, self._is_unbranched = self._is_unbranched, True
        try:
            yield
        finally:
            self._is_unbranched = before

    def goes_on(self) -> None:
        """Raises EndOfPath if what the run does from here on does not count."""
        if self.has_left_trial:
            raise EndOfPath

    def entails(self, claim: Any) -> bool:
        """Whether the claim is shown to hold here, for every value."""
        term = z3.simplify(as_term(claim))
        return bool(z3.is_true(term) or self._check(z3.Not(term), THOROUGH) == z3.unsat)

    def knows(self, claim: Any) -> bool:
        """Whether the claim is easily shown to hold here; what follows must be right either way."""
        term = z3.simplify(as_term(claim))
        return bool(z3.is_true(term) or self._check(z3.Not(term), QUICK) == z3.unsat)

    def _possible(self, options: Sequence[z3.BoolRef]) -> list[int]:
        """The options that are not shown to be impossible. A path is possible, so the last one left is."""
        likely = self.exploration.likely
        site = code_line()
        left = set(range(len(options)))
        for n in sorted(left, key=lambda n: n == likely.get(site)):  # what was forced here before comes last
            if len(left) > 1 and self._check(options[n], QUICK) == z3.unsat:
                left.remove(n)
        if len(left) == 1:
            likely[site] = min(left)
        return sorted(left)

    def _check(self, term: z3.BoolRef, limit: int) -> z3.CheckSatResult:
        self.solver.set("rlimit", limit)
        self.solver.push()
        try:
            self.solver.add(term)
            return self.solver.check()
        finally:
            self.solver.pop()


def has_choice(term: Any) -> bool:
    """An `If` occurs in the term."""
    seen, stack = set[int](), [term]
    while stack:
        t = stack.pop()
        if z3.is_app_of(t, z3.Z3_OP_ITE):
            return True
        if t.get_id() not in seen:
            seen.add(t.get_id())
            stack.extend(t.children())
    return False
