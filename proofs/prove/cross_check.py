"""A second solver's opinion: every problem again, in SMT-LIB, to cvc5.

As with Z3, what an earlier proof leaned on (`cores.py`) is put to it first, and all else if that does not do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from slotproof.model.language.rules import Rules
from slotproof.proofs.prove.cores import core
from slotproof.proofs.prove.obligations.groups import Group
from slotproof.proofs.prove.smt_lib import Digests, text

CVC5 = "cvc5"
PROVED = "unsat"
SOLVERS = (CVC5,)
MILLISECONDS = 60_000
"""The longest that one answer may take."""


@dataclass(frozen=True)
class Opinion:
    """What the second solver says of an obligation: `unsat` if it agrees that it is proved."""

    kind: str
    name: str
    answer: str
    seconds: float

    @property
    def agrees(self) -> bool:
        """It says that the obligation is proved."""
        return self.answer == PROVED


@dataclass(frozen=True)
class CrossCheck:
    """The obligations of a group, asked of cvc5."""

    group: Group
    rules: Rules

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind}) by {CVC5}"

    def __call__(self) -> list[Opinion]:
        opinions, digests = [], Digests()
        for o in self.group.build(self.rules):
            start, first = time.perf_counter(), core(o, digests)
            answer = ask(text(o, first)) if first is not None else ""
            if answer != PROVED:
                answer = ask(text(o))
            opinions.append(Opinion(o.kind, o.name, answer, time.perf_counter() - start))
        return opinions

    def lost(self) -> list[Opinion]:
        """What stands for a group whose worker had to be killed."""
        return [Opinion(self.group.kind, self.group.name, "not answered", 0.0)]


def is_installed() -> bool:
    """Whether cvc5 can be asked: it is an extra, `pip install 'slotproof[cvc5]'`."""
    try:
        import cvc5  # noqa: F401
    except ImportError:
        return False
    return True


def ask(problem: str) -> str:
    """cvc5's answer to a problem in SMT-LIB: `unsat`, `sat`, or `unknown` with a reason."""
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(MILLISECONDS))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, problem, "obligation")
    symbols, said = parser.getSymbolManager(), ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, symbols))
    return said.strip()
