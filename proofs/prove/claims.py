"""A claim about all values of some variables, to be assumed or to be proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import z3

from slotproof.model.claims.invariants import Invariant
from slotproof.model.language.state import State
from slotproof.proofs.prove.names import bound, claimed


@dataclass(frozen=True)
class Claim:
    """`body(*values)` holds for all integers. `triggers` are the terms at which it is instantiated."""

    name: str
    statement: str
    arity: int
    body: Callable[..., Any]
    triggers: tuple[Callable[..., Any], ...] = ()

    def assumed(self) -> z3.BoolRef:
        """The claim as an assumption.

        Triggers that are not applications of unknown functions (a field a step has redefined) are left to Z3.
        """
        if self.arity == 0:
            return as_term(self.body())
        values = [bound(self.name, n) for n in range(self.arity)]
        body = as_term(self.body(*values))
        patterns = []
        for trigger in self.triggers:
            terms = trigger(*values)
            terms = terms if isinstance(terms, tuple) else (terms,)
            if not all(_is_pattern(term) for term in terms):
                continue
            patterns.append(z3.MultiPattern(*terms) if len(terms) > 1 else terms[0])
        return z3.ForAll(values, body, patterns=patterns, qid=self.name)

    def goal(self) -> z3.BoolRef:
        """The claim for one unknown value of each variable: what has to be shown."""
        return as_term(self.body(*self.values()))

    def values(self) -> list[z3.ArithRef]:
        """The values that `goal` is about."""
        return [claimed(self.name, n) for n in range(self.arity)]


def _is_pattern(term: z3.ExprRef) -> bool:
    """Only unknown functions, of values and numbers: what Z3 matches as it stands."""
    if term.num_args() == 0:
        return True
    known = term.decl().kind() != z3.Z3_OP_UNINTERPRETED
    return not known and all(_is_pattern(child) for child in term.children())


def of_state(invariant: Invariant, s: State) -> Claim:
    """An invariant, claimed of a state."""
    return Claim(
        invariant.name,
        invariant.statement,
        len(invariant.variables),
        partial(invariant.holds, s),
        tuple(partial(trigger, s) for trigger in invariant.triggers),
    )


def same_terms(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A key that values share exactly if they are the same terms, or equal numbers, as long as they live."""
    return tuple((v.get_id(),) if isinstance(v, z3.AstRef) else v for v in values)


def as_term(value: Any) -> z3.BoolRef:
    """A truth value as a Z3 term."""
    return z3.BoolVal(value) if isinstance(value, bool) else value
