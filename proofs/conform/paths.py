"""Paths: a function is run again and again, until every way through it has been taken.

A run has numbers in mind, a model of the solver, and where the code branches on a Z3 term it goes as they
have it. That they cannot be otherwise is a *guess*. At the run's end all guesses are shown, and what the run
claims, in one question. The answer may be other numbers: where these go another way first, a later run takes
the same decisions up to there, and then goes their way (depth first, by replay). So the solver is asked about
twice for a path, however many branches are on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import z3

from slotproof.proofs.conform.ends import Branches, EndOfPath, Exhausted, Unsupported, code_line
from slotproof.proofs.conform.solver import Solver
from slotproof.proofs.conform.watch import alarm, is_recursive
from slotproof.proofs.prove.claims import as_term

QUICK, THOROUGH = 200_000, 10_000_000
"""Z3's resource limits: for which sides of a branch are possible, and for what is to be shown."""


@dataclass(frozen=True)
class Budget:
    """How far a function is followed before the answer is `unknown`."""

    paths: int = 2000
    decisions: int = 200
    """On one path: a loop that is not followed as a whole runs into it."""
    seconds: float = 300.0
    """Of computing time."""


@dataclass(frozen=True)
class Branch:
    """Where a run goes on that has not been made yet."""

    decisions: tuple[int, ...]
    answers: tuple[bool, ...]
    """What the solver has said until the last of these decisions."""
    numbers: z3.ModelRef | None
    """Numbers that go there, if they are known."""


@dataclass
class Guess:
    """A decision of which it is to be shown that it cannot be another."""

    site: str
    options: Sequence[z3.BoolRef]
    taken: int
    before: z3.BoolRef
    """That what was guessed before is so."""
    decisions: tuple[int, ...]
    """Those before it."""
    answers: tuple[bool, ...]
    place: int
    """Where its other sides belong among what is pending."""
    noted: dict[int, Branch] = field(default_factory=dict)
    """The other sides that later runs take."""

    def note(self, side: int, numbers: z3.ModelRef | None) -> None:
        """A later run takes this side, and all that have the same condition."""
        for n, option in enumerate(self.options):
            if n != self.taken and n not in self.noted and option.eq(self.options[side]):
                self.noted[n] = Branch((*self.decisions, n), self.answers, numbers)

    def note_all(self) -> None:
        """Later runs take all other sides."""
        for side in range(len(self.options)):
            self.note(side, None)

    @property
    def is_right(self) -> z3.BoolRef:
        """Where the run comes there, it is one of the sides that are taken."""
        return z3.Implies(self.before, z3.Or([self.options[n] for n in (self.taken, *self.noted)]))


@dataclass(frozen=True)
class Beginning:
    """What a run has come to until here; others that begin with the same decisions come to the same."""

    decisions: tuple[int, ...]
    conditions: tuple[z3.BoolRef, ...]
    facts: tuple[z3.BoolRef, ...]
    counts: tuple[Any, ...]
    decided: dict[z3.BoolRef, bool]
    names: dict[z3.ArithRef, z3.ArithRef]
    fresh: int


@dataclass
class Exploration:
    """What all runs of one function share."""

    assumptions: Sequence[z3.BoolRef]
    budget: Budget = field(default_factory=Budget)
    summaries: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """What one iteration of a loop does, by the decisions that lead to it (`loops.py`)."""
    misled: set[str] = field(default_factory=set)
    """Lines of code that knew something in one run and not in another: there it is guessed no more."""

    def runs(self, run: Callable[[Path], None]) -> Iterator[Path]:
        """Every path, after `run` has followed it to its end.

        Raises:
            Unsupported: as `run` raises it.
            Exhausted: a budget is used up.
        """
        solver = Solver()
        solver.add(*self.assumptions)
        deadline = time.process_time() + self.budget.seconds
        pending = [Branch((), (), None)]
        done = 0
        while pending:
            if done >= self.budget.paths:
                raise Exhausted(f"{done} paths")
            done += 1
            with solver.scope():
                path = Path(self, solver, pending.pop(), pending)
                with path, alarm(deadline, self.budget.seconds):
                    try:
                        with suppress(EndOfPath):
                            run(path)
                    except Unsupported:
                        path.settle()
                        if not path.entails(z3.BoolVal(False)):  # a guess may have led to where nothing leads
                            raise
                    path.settle()
                yield path


class Path:
    """One run, and what is known on its way."""

    _current: Path | None = None

    def __init__(
        self,
        exploration: Exploration,
        solver: Solver,
        branch: Branch,
        pending: list[Branch],
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
        self._branch = branch
        self._guard = z3.BoolVal(True)
        """That what was guessed is so."""
        self._has_numbers = False
        self._guesses: list[Guess] = []
        self._answers: list[bool] = []
        self._pending = pending
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
                self._add(term)
                self._has_numbers = self._has_numbers and self.solver.fits(term)

    def _add(self, term: z3.BoolRef) -> None:
        self.solver.add(term if z3.is_true(self._guard) else z3.Implies(self._guard, term))

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
            self.solver.think_of(self._names[term], term)
            self.assume(self._names[term] == term)
        return self._names[term]

    def choose(self, *options: z3.BoolRef) -> int:
        """Which of the options the run takes; between them they are all there is."""
        self.goes_on()
        if self._is_unbranched:
            raise Branches
        return self._decide(options)

    def _decide(self, options: Sequence[z3.BoolRef]) -> int:
        """The next decision: as in an earlier run, or as the numbers in mind have it."""
        depth, until = len(self.decisions), self._branch.decisions
        if depth >= self.exploration.budget.decisions:
            raise Exhausted(f"{depth} decisions on one path")
        if depth < len(until):
            taken = until[depth]
            self._add(options[taken])
        elif is_recursive():
            raise Unsupported("recursion")
        else:
            self._think()
            taken = next((n for n, option in enumerate(options) if self.solver.fits(option)), 0)
            self._guess(options, taken)
        self.decisions.append(taken)
        self.conditions.append(options[taken])
        if depth + 1 == len(until):
            self._has_numbers = self.solver.think(self._branch.numbers)
        return taken

    def _think(self) -> None:
        """Have numbers in mind that lead to where the run is."""
        if not self._has_numbers:
            answer = self.solver.check(self._guard, QUICK)
            if answer == z3.unsat:
                raise EndOfPath
            self._has_numbers = answer == z3.sat and self.solver.think(self.solver.found)

    def _guess(self, options: Sequence[z3.BoolRef], taken: int) -> None:
        if z3.is_true(options[taken]):
            return
        before, answers = tuple(self.decisions), tuple(self._answers)
        guess = Guess(code_line(), options, taken, self._guard, before, answers, len(self._pending))
        guess.note(taken, None)
        self._pending += reversed(guess.noted.values())
        self._guesses.append(guess)
        self._guard = self.solver.named(z3.And(self._guard, options[taken]))

    def settle(self, *claims: z3.BoolRef) -> bool:
        """Show what was guessed, and the claims; where a guess is not shown its other sides are noted.
        Whether the claims are shown."""
        guesses, self._guesses = self._guesses, []
        pending = [len(guess.noted) for guess in guesses]
        claim, are_shown = z3.Implies(self._guard, z3.And(*claims)), True
        while guesses or (claims and are_shown):
            whole = z3.And(*(guess.is_right for guess in guesses), claim)
            answer = self.solver.check(z3.Not(whole), THOROUGH)
            if answer == z3.unsat:
                break
            numbers = self.solver.found
            wrong = next((g for g in guesses if not self.solver.fits(g.is_right, numbers)), None)
            if answer == z3.unknown or (wrong is None and not are_shown):
                for guess in guesses:
                    if self.solver.check(z3.Not(guess.is_right), THOROUGH) != z3.unsat:
                        guess.note_all()
                are_shown = are_shown and (not claims or self.entails(z3.And(*claims)))
                break
            if wrong is None:
                claim, are_shown = z3.BoolVal(True), False
                continue
            sides = (n for n, option in enumerate(wrong.options) if self.solver.fits(option, numbers))
            wrong.note(next(sides), numbers)
            if z3.is_true(wrong.options[-1]):
                self.exploration.misled.add(wrong.site)
        for guess, known in reversed(list(zip(guesses, pending, strict=True))):
            self._pending[guess.place : guess.place] = reversed(list(guess.noted.values())[known:])
        return are_shown

    def beginning(self) -> Beginning:
        """What the run has come to, before any list, loop or question."""
        return Beginning(
            tuple(self.decisions),
            tuple(self.conditions),
            tuple(self.facts),
            tuple(self.counts),
            self._decided.copy(),
            self._names.copy(),
            self.fresh,
        )

    def begins_with(self, known: Beginning) -> bool:
        """Whether the run takes these decisions first; then it is where they led to."""
        if self._branch.decisions[: len(known.decisions)] != known.decisions:
            return False
        self.decisions, self.conditions = [*known.decisions], [*known.conditions]
        self.facts, self.counts = dict.fromkeys(known.facts), [*known.counts]
        self._decided, self._names = known.decided.copy(), known.names.copy()
        self.fresh = known.fresh
        self.solver.add(*self.conditions, *self.facts)
        if known.decisions == self._branch.decisions:
            self._has_numbers = self.solver.think(self._branch.numbers)
        return True

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
        if z3.is_true(term):
            return True
        n = len(self._answers)
        known = self._branch.answers
        self._answers.append(known[n] if n < len(known) else self._is_impossible(z3.Not(term), THOROUGH))
        return self._answers[n]

    def knows(self, claim: Any) -> bool:
        """Whether the claim is easily shown to hold here; what follows must be right either way."""
        term = z3.simplify(as_term(claim))
        if z3.is_true(term):
            return True
        is_open = z3.BoolVal(True)
        if len(self.decisions) >= len(self._branch.decisions) and code_line() in self.exploration.misled:
            term = term if self._is_impossible(z3.Not(term), QUICK) else z3.BoolVal(False)
        return self._decide((term, is_open)) == 0

    def _is_impossible(self, term: z3.BoolRef, limit: int) -> bool:
        return bool(self.solver.check(z3.And(self._guard, term), limit) == z3.unsat)


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
