"""A loop over a request's groups, and what its invariant is said in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, Function, Int, both, implies, ite, within
from slotproof.model.language.state import HAND, State
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.symbols import Symbols

Of = dict[str, Any]


@dataclass(frozen=True)
class GroupLoop:
    """One loop over groups. Before group k, in a state that started as s:"""

    name: str
    statement: str
    stage: str
    witness: str
    step: Callable[[State, Int, Of], State]
    """(state, row, of) -> state"""
    of: Callable[[Symbols], Of]
    """What it is about, unknown: for the proof of the invariant."""
    havoc: tuple[str, ...]
    """Fields known through facts only."""
    known: Callable[[Symbols, State, Int, Of], dict[str, Any]]
    """(reading, s, k, of) -> fields in closed form; of the hand's row nothing is meant"""
    needs: Callable[[Symbols, State, Of], list[Claim]]
    """(reading, s, of) -> what must hold where the loop starts"""
    facts: Callable[[Symbols, State, Int, State, Of], list[Claim]]
    """(reading, s, k, state, of) -> what more is known"""
    sums: Callable[[Symbols, State, Of], list[Callable[[Int], Int]]]
    """(reading, s, of) -> amounts by group, none negative, that are summed"""

    def at(self, read: Symbols, s: State, k: Int, of: Of) -> State:
        """The state before group k."""
        changes = {field: read.unknown(field) for field in self.havoc}
        known = self.known(read, s, k, of)
        for field in ("table", "slot", "num_cached"):
            if field in known:
                known[field] = _but_for_the_hand(read, field, known[field])
        return s.replace(**changes, **known)


def _but_for_the_hand(read: Symbols, field: str, of_rows: Function) -> Function:
    unknown: Any = read.unknown(field)
    return lambda q, *i: ite(q == HAND, unknown(q, *i), of_rows(q, *i))


def is_mine(s: State, r: Int, q: Int, k: Int) -> Bool:
    """The row is r's, in a group before k."""
    return both(q >= 0, s.engine.owner(q) == r, s.engine.group(q) < k)


def any_request(read: Symbols) -> z3.ArithRef:
    """The request that a loop is about."""
    r = read.names.integer("request")
    read.assume(r >= 0)
    return r


def of_groups(s: State, r: Int, name: str, statement: str, holds: Callable[[Int, Int], Bool]) -> Claim:
    """What holds of each group and r's row in it."""
    engine = s.engine

    def held(g: Int) -> Bool:
        return implies(within(0, g, engine.groups.num), holds(g, engine.row(r, g)))

    return Claim(name, statement, 1, held, (lambda g: engine.row(r, g),))


def of_rows(s: State, r: Int, amount: Callable[[Int], Int]) -> Callable[[Int], Int]:
    """The amount of r's row in a group."""
    return lambda g: amount(s.engine.row(r, g))


def no_facts(read: Symbols, s: State, k: Int, t: State, of: Of) -> list[Claim]:
    return []


def no_sums(read: Symbols, s: State, of: Of) -> list[Callable[[Int], Int]]:
    return []


QUEUE = ("at", "rank", "held", "held_rank")
REFERENCES = ("holder_row", "holder_index")
