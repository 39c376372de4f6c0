"""Paths: a function is run again and again, until every way through it has been taken.

A run asks `Path.decide` where the code branches on a Z3 term. The solver says which sides are possible; one
is taken, the other noted, and a later run takes the same decisions up to there (depth first, by replay). The
solver keeps what both know, and is asked nothing twice: it has a scope for each such place.

Where a line of code had one way to go before, a run *guesses* that it has one again. What is guessed, and
what the run claims, is shown at its end, together; where a guess is not, the other sides are noted as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    decisions: int = 400
    """On one path: a loop that is not followed as a whole runs into it."""
    seconds: float = 120.0
    """Of computing time."""


@dataclass(frozen=True)
class Branch:
    """Where a run goes on that has not been made yet."""

    decisions: tuple[int, ...]
    answers: tuple[bool, ...]
    """What the solver has said until the last of these decisions."""
    scopes: int
    """The solver's scopes until then."""
    guard: z3.BoolRef
    """That what was guessed until then is so."""


@dataclass(frozen=True)
class Guess:
    """A decision that was not looked into."""

    site: str
    option: z3.BoolRef
    guard: z3.BoolRef
    """That this and all guesses before it are so."""
    others: tuple[Branch, ...]
    """The other sides."""
    place: int
    """Where they belong among what is pending."""


@dataclass
class Exploration:
    """What all runs of one function share."""

    assumptions: Sequence[z3.BoolRef]
    budget: Budget = field(default_factory=Budget)
    summaries: dict[tuple[int, ...], Any] = field(default_factory=dict)
    """What one iteration of a loop does, by the decisions that lead to it (`loops.py`)."""
    likely: dict[str, int] = field(default_factory=dict)
    """The one option that was possible, by the line of code: it is likely to be so again."""
    misled: set[str] = field(default_factory=set)
    """Lines of code that are guessed at no more."""

    def runs(self, run: Callable[[Path], None]) -> Iterator[Path]:
        """Every path, after `run` has followed it to its end.

        Raises:
            Unsupported: as `run` raises it.
            Exhausted: a budget is used up.
        """
        solver = Solver()
        solver.add(*self.assumptions)
        deadline = time.process_time() + self.budget.seconds
        pending = [Branch((), (), 0, z3.BoolVal(True))]
        done = 0
        while pending:
            if done >= self.budget.paths:
                raise Exhausted(f"{done} paths")
            done += 1
            branch = pending.pop()
            solver.pop(solver.num_scopes() - branch.scopes)
            path = Path(self, solver, branch, pending)
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
        self._guard = branch.guard
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
                if not self._is_replay:
                    self._add(term)

    @property
    def _is_replay(self) -> bool:
        """Another run has been here: the solver knows what is assumed, and has answered what it is asked."""
        return len(self.decisions) < len(self._branch.decisions)

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
            self.assume(self._names[term] == term)
        return self._names[term]

    def choose(self, *options: z3.BoolRef) -> int:
        """Which of the options the run takes; between them they are all there is."""
        self.goes_on()
        if self._is_unbranched:
            raise Branches
        return self._decide(options, self._possible)

    def _decide(self, options: Sequence[z3.BoolRef], ask: Callable[[Sequence[z3.BoolRef]], list[int]]) -> int:
        """The next decision: as in an earlier run, or guessed, or the first that the solver leaves."""
        depth, until = len(self.decisions), self._branch.decisions
        if depth >= self.exploration.budget.decisions:
            if is_recursive():
                raise Unsupported("recursion")
            raise Exhausted(f"{depth} decisions on one path")
        before, answers, scopes = tuple(self.decisions), tuple(self._answers), self.solver.num_scopes()

        def branches(others: Iterable[int]) -> tuple[Branch, ...]:
            return tuple(Branch((*before, n), answers, scopes, self._guard) for n in others)

        site, others = code_line(), list[int]()
        guessed = None
        if depth < len(until):
            taken = until[depth]
        else:
            guessed = self._guessed(site, options)
            if guessed is None:
                taken, *others = ask(options)
                self._pending.extend(reversed(branches(others)))
                if not others:
                    self.exploration.likely[site] = taken
            else:
                taken = guessed
        self.decisions.append(taken)
        self.conditions.append(options[taken])
        if guessed is not None:
            elsewhere = branches(n for n in range(len(options)) if n != taken)
            self._guess(site, options[taken], elsewhere)
        elif depth >= len(until) - 1:
            if others or depth < len(until):
                self.solver.push()
            self._add(options[taken])
        return taken

    def _guessed(self, site: str, options: Sequence[z3.BoolRef]) -> int | None:
        exploration = self.exploration
        likely = exploration.likely.get(site, len(options))
        if self.iteration is not None or site in exploration.misled or likely >= len(options):
            return None
        return None if z3.is_true(options[likely]) else likely

    def _guess(self, site: str, option: z3.BoolRef, others: tuple[Branch, ...]) -> None:
        self.solver.names += 1
        guard = z3.Bool(f"guard~{self.solver.names}")
        self.solver.add(guard == z3.And(self._guard, option))
        self._guard = guard
        self._guesses.append(Guess(site, option, guard, others, len(self._pending)))

    def settle(self, *claims: z3.BoolRef) -> bool:
        """Show what was guessed, and the claims; where a guess is not shown its other sides are noted.
        Whether the claims are shown."""
        guesses, self._guesses = self._guesses, []
        whole = z3.And(self._guard, *claims)
        if not (guesses or claims) or self.solver.check(z3.Not(whole), THOROUGH) == z3.unsat:
            return True
        wrong = []
        self.solver.push()
        for guess in guesses:
            if self.solver.check(z3.Not(guess.guard), THOROUGH) != z3.unsat:
                wrong.append(guess)
                self.solver.add(guess.guard)
        self.solver.pop()
        for guess in reversed(wrong):
            self.exploration.misled.add(guess.site)
            self._pending[guess.place : guess.place] = reversed(guess.others)
        return not claims or self.entails(z3.And(*claims))

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
        return (
            self._decide(
                (term, z3.BoolVal(True)), lambda _: [0 if self._is_impossible(z3.Not(term), QUICK) else 1]
            )
            == 0
        )

    def _possible(self, options: Sequence[z3.BoolRef]) -> list[int]:
        """The options that are not shown to be impossible. A path is possible, so the last one left is."""
        left = set(range(len(options)))
        likely = self.exploration.likely.get(code_line())
        for n in sorted(left, key=lambda n: n == likely):  # what was forced here before comes last
            if len(left) > 1 and self._is_impossible(options[n], QUICK):
                left.remove(n)
        return sorted(left)

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
