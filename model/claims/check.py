"""A check: a part of a statement, about one state or one call; and the quantities that checks speak of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slotproof.model.language.algebra import Bool, Int, both, implies, ite, maximum, minimum, within
from slotproof.model.language.state import State
from slotproof.model.scheduling.caller import Outcome, waits
from slotproof.model.system.allocate_slots import Ask, is_idle_hit
from slotproof.model.system.attention.group import null_blocks, skipped_blocks

LEAVING = ("preempt", "finish")
"""The calls that "leave" is about."""
NOT_OTHER = ("add_request", "allocate")
"""The calls that "other" is not about."""
GIVES_BACK = (*LEAVING, "remove_skipped")
"""The calls by which a request gives blocks back."""
NOBODY = -2
"""No request: no blocks are given back."""


@dataclass(frozen=True)
class Part:
    """What a check claims for some values, and where it claims it."""

    given: Bool
    claim: Bool


@dataclass(frozen=True)
class Check:
    """A part of a statement. `about` says what `part` is given before the values of the variables:

    - "state": (state)
    - "lookup": (state, request, hits), for a request that waits with nothing computed
    - "allocate": (state, request, ask, outcome)
    - "leave": (state, request, outcome), when a request is preempted or finished
    - "complete": (state, request, outcome)
    - "execute": (state, outcome)
    - "other": (state, request, outcome), when anything happens but an allocation or an arrival; the request
      that gives blocks back, or NOBODY

    Variables are as in `Invariant`. With `care` it is made of callers with care alone (`Action.care`), in
    whose states the invariants `WRITTEN` hold.
    """

    name: str
    statement: str
    about: str
    variables: tuple[str, ...]
    part: Callable[..., Part]
    stage: str
    care: bool = False

    def holds(self, *values: Any) -> Bool:
        """The claim, wherever it is made."""
        part = self.part(*values)
        return implies(part.given, part.claim)


def check(
    stage: str,
    about: str,
    statement: str,
    name: str,
    variables: str,
    part: Callable[..., Part],
    care: bool = False,
) -> Check:
    """A check; its variables are words."""
    return Check(name, statement, about, tuple(variables.split()), part, stage, care)


def watermark_due(s: State, r: Int, ask: Ask) -> Int:
    """What an admission beside others has to leave free."""
    return ite(both(waits(s, r), ask.has_scheduled), s.engine.watermark_blocks, 0)


def sum_of_rows(s: State, r: Int, amount: Callable[[Int], Int]) -> Int:
    """The sum of an amount over r's rows."""
    return s.read.total(s.engine.groups.num, lambda g: amount(s.engine.row(r, g)))


def every_row(s: State, r: Int, holds: Callable[[Int], Bool]) -> Bool:
    """What holds of each of r's rows."""
    return s.read.every(0, s.engine.groups.num, lambda g: holds(s.engine.row(r, g)))


def is_group(s: State, g: Int) -> Bool:
    """The engine has such a group."""
    return within(0, g, s.engine.groups.num)


def slots_asked(s: State, row: Int, ask: Ask, total: Int) -> Int:
    """Blocks of the row for all tokens that need a slot."""
    tokens = minimum(total + ask.new + ask.lookahead, s.engine.max_model_len)
    return s.engine.blocks(tokens, s.engine.group(row))


def covered(s: State, row: Int, ask: Ask, total: Int) -> Int:
    """Entries of the row before any new block: held, or hits and null blocks if it has none."""
    g = s.engine.group(row)
    adopted = maximum(skipped_blocks(s.engine, g, total), ask.hits.num(g))
    return ite(s.length(row) == 0, adopted, s.length(row))


def idle_hits(s: State, row: Int, ask: Ask, total: Int) -> Int:
    """The hits that the row will hold and that sit in the free queue now."""
    g = s.engine.group(row)
    low = minimum(null_blocks(s.engine, g, ask.hits.num(g), total), ask.hits.num(g))
    return s.read.count(low, ask.hits.num(g), partial(is_idle_hit, s, ask.hits), g)


def settled_at(s: State, r: Int, o: Outcome) -> Int:
    """The tokens that stage 1 may release on."""
    assert o.answer is not None
    return maximum(0, o.answer.total - s.in_flight(r))
