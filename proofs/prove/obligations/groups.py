"""All obligations, in groups that are built and proved together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from slotproof.model.language.rules import Rules
from slotproof.model.scheduling.caller import ACTIONS
from slotproof.proofs.campaign.kinds import FULL, HYBRID, KINDS
from slotproof.proofs.prove.obligation import Obligation
from slotproof.proofs.prove.obligations import calls, steps
from slotproof.proofs.prove.obligations.batch import batch
from slotproof.proofs.prove.obligations.batch_basis import batch_basis
from slotproof.proofs.prove.obligations.group_loops.ends import GROUP_LOOPS
from slotproof.proofs.prove.obligations.group_loops.induction import group_loop_step
from slotproof.proofs.prove.obligations.line import line
from slotproof.proofs.prove.obligations.loops import LOOPS
from slotproof.proofs.prove.obligations.padded import padded
from slotproof.proofs.prove.symbols import terms_without_truth

OF_ONE_GROUP = ("batch-in-order",)
"""Statements that are proved of engines with one group."""


@dataclass(frozen=True)
class Group:
    """Obligations about one step, loop or call, for one kind of attention."""

    name: str
    kind: str
    make: Callable[[Rules], Iterator[Obligation]]

    def build(self, rules: Rules) -> list[Obligation]:
        """The obligations. Raises TypeError if the model or a claim asks whether a term is true."""
        with terms_without_truth():
            made = list(self.make(rules))
        return [o for o in made if self.kind != HYBRID or o.statement not in OF_ONE_GROUP]


def groups(kinds: tuple[str, ...] = KINDS) -> list[Group]:
    """Every group, the largest first, so that workers end together."""
    found = (group for kind in reversed(kinds) for group in _of_kind(kind))
    return sorted(found, key=lambda group: not group.name.startswith(("allocate", "batch")))


def _of_kind(kind: str) -> Iterator[Group]:
    if kind == HYBRID:
        for name in GROUP_LOOPS:
            yield Group(name, kind, partial(group_loop_step, name, kind))
    yield Group("later-chunk", kind, partial(calls.later_chunk, kind))
    for name in ACTIONS:
        yield Group(name, kind, partial(calls.call, name, kind))
    for name in ACTIONS:
        yield Group(f"{name} with care", kind, partial(calls.with_care, name, kind))
    for name in LOOPS:
        yield Group(f"{name}-loop", kind, partial(steps.loop_step, name, kind))
    for name in steps.STEPS:
        if name != "pad" or kind != FULL:  # full attention has no null blocks to start with
            yield Group(name, kind, partial(steps.single_step, name, kind))
    yield Group("state", kind, partial(calls.state_checks, kind))
    yield Group("lookup", kind, partial(calls.lookup, kind))
    if kind == FULL:
        yield Group("batch", kind, partial(batch, kind))
        yield Group("batch-basis", kind, partial(batch_basis, kind))
    yield Group("line", kind, partial(line, kind))
    if kind != HYBRID:
        yield Group("padded", kind, partial(padded, kind))
    yield Group("initial", kind, partial(steps.initial_state, kind))
    yield Group("arithmetic", kind, partial(steps.arithmetic_lemmas, kind))
