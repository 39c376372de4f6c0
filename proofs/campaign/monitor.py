"""The statements, evaluated on every call of the running reading.

The text is the one that is proved for every size. A campaign under full rules must find no violation and
must reach what each proof assumes; a campaign with a rule off finds the statements that fall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from slotproof.impl.protocol import Call, Config
from slotproof.model.claims.check import GIVES_BACK, LEAVING, NOBODY, NOT_OTHER, Check
from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN, Invariant
from slotproof.model.claims.statements import CHECKS
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import HAND, State
from slotproof.model.running import Running, Stuck
from slotproof.model.scheduling.caller import Outcome, waits
from slotproof.model.system.prefix_cache import get_computed_blocks
from slotproof.proofs.campaign.calls import call_fields, model_config

INVARIANT = "invariant"
"""The stage of an invariant, which belongs to none."""


@dataclass(frozen=True)
class Violation:
    """A statement that a call broke."""

    statement: str
    claim: str
    """The invariant or check, or the step that failed."""
    stage: str
    """Where the claim is made: the lesson's stage, or a part of the model."""
    detail: str
    """The values for which it does not hold."""


class Monitor:
    """The model under some rules, with its ghosts, watched call by call.

    `more` are checks to watch beside those of the statements.
    """

    def __init__(self, config: Config, rules: Rules | None = None, more: tuple[Check, ...] = ()) -> None:
        self._watched = (*CHECKS, *more)
        self.running = Running(**model_config(config), rules=rules, ghosts=True)
        self.reached: set[str] = set()
        """What the proofs assume and a campaign reached: `step S`, `call C`, `check K`."""
        self.running.read.watch = self._begin_step
        self._is_written = True
        """The invariants `WRITTEN` are known to hold."""

    def step(self, call: Call) -> list[Violation]:
        """Take a call and say which statements it broke.

        Raises:
            ContractError: the caller's contract forbids it; nothing has changed.
        """
        before = self.running.state
        name, fields = call_fields(call)
        self._is_written = self._is_written or not list(self._broken(before, WRITTEN))
        careful = self._is_written and self.running.is_careful(name, **fields)
        try:
            outcome = self.running.step(name, **fields)
        except Stuck as stuck:
            return [Violation("no-rollback", f"{stuck.what} cannot fail", "stage 3", name)]
        self.reached.add(f"call {name}")
        self._is_written = careful
        if careful:
            self.reached.add(f"care {name}")
        return [
            *self._invariants(outcome.state, (*STEPWISE, *LEDGER, *(WRITTEN if careful else ()))),
            *self._checks("state", (outcome.state,), careful),
            *self._lookups(outcome.state, careful),
            *self._call(name, fields, before, outcome, careful),
        ]

    def _begin_step(self, step: str, state: State) -> None:
        witness = f"step {step}"
        if witness not in self.reached and not list(self._broken(state, STEPWISE)):
            self.reached.add(witness)

    def _invariants(self, s: State, invariants: tuple[Invariant, ...]) -> Iterator[Violation]:
        for invariant, detail in self._broken(s, invariants):
            yield Violation(invariant.statement, invariant.name, INVARIANT, detail)

    def _broken(self, s: State, invariants: tuple[Invariant, ...]) -> Iterator[tuple[Invariant, str]]:
        for invariant in invariants:
            for values in self._values(s, invariant.variables):
                if not invariant.holds(s, *values):
                    yield invariant, _detail(invariant.variables, values)
                    break

    def _call(
        self, name: str, fields: dict[str, Any], before: State, outcome: Outcome, careful: bool
    ) -> Iterator[Violation]:
        if outcome.answer is not None:
            about = (before, fields["request"], outcome.answer.ask, outcome)
            yield from self._checks("allocate", about, careful)
            return
        if name == "execute":
            yield from self._checks("execute", (before, outcome), careful)
        if name == "complete":
            yield from self._checks("complete", (before, fields["request"], outcome), careful)
        if name in LEAVING:
            yield from self._checks("leave", (before, fields["request"], outcome), careful)
        if name not in NOT_OTHER:
            r = fields["request"] if name in GIVES_BACK else NOBODY
            yield from self._checks("other", (before, r, outcome), careful)

    def _lookups(self, s: State, careful: bool) -> Iterator[Violation]:
        if not s.engine.enable_caching:
            return
        for r in self.running.requests:
            if waits(s, r) and s.computed(r) == 0:
                yield from self._checks("lookup", (s, r, get_computed_blocks(s, r)), careful)

    def _checks(self, about: str, arguments: tuple[Any, ...], careful: bool) -> Iterator[Violation]:
        for check in self._watched:
            if check.about == about and (careful or not check.care):
                yield from self._check(check, arguments)

    def _check(self, check: Check, arguments: tuple[Any, ...]) -> Iterator[Violation]:
        for values in self._values(arguments[0], check.variables):
            part = check.part(*arguments, *values)
            if part.given:
                self.reached.add(f"check {check.name}")
                if not part.claim:
                    yield Violation(
                        check.statement, check.name, check.stage, _detail(check.variables, values)
                    )
                    return

    def _values(self, s: State, variables: tuple[str, ...]) -> Iterator[tuple[int, ...]]:
        """Every value of each variable; of an index behind a row, those that it has or will have."""
        domains: list[list[tuple[int, ...]]] = []
        before = ""
        for variable in variables:
            if variable == "index" and before == "row":
                domains[-1] = [(row, i) for (row,) in domains[-1] for i in range(1 + _reach(s, row))]
            else:
                domains.append([(value,) for value in _DOMAINS[variable](self.running, s)])
            before = variable
        for values in product(*domains):
            yield tuple(chain.from_iterable(values))


def _requests(running: Running, s: State) -> Sequence[int]:
    return (HAND, *running.requests)


def _rows(running: Running, s: State) -> Sequence[int]:
    return (HAND, *running.rows)


def _groups(running: Running, s: State) -> Sequence[int]:
    return range(s.engine.groups.num)


def _reach(s: State, row: int) -> int:
    """Entries that the row has, or has once its request's tokens are in."""
    engine = s.engine
    entries: int = max(s.length(row), engine.blocks(s.num_tokens(engine.owner(row)), engine.group(row)))
    return entries


def _indices(running: Running, s: State) -> Sequence[int]:
    return range(1 + max(_reach(s, row) for row in _rows(running, s)))


_DOMAINS: dict[str, Callable[[Running, State], Sequence[int]]] = {
    "block": lambda running, s: range(running.read.num_blocks),
    "position": lambda running, s: range(running.read.num_blocks),
    "request": _requests,
    "row": _rows,
    "group": _groups,
    "index": _indices,
    "reference": lambda running, s: range(1 + max(s.ref_cnt(b) for b in range(running.read.num_blocks))),
}


def _detail(variables: tuple[str, ...], values: tuple[int, ...]) -> str:
    return ", ".join(f"{variable} {value}" for variable, value in zip(variables, values, strict=True))
