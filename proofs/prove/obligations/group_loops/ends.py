"""A loop's effect where a call meets it: what its invariant says once all groups are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from slotproof.model.language.algebra import Bool, Int, both, implies
from slotproof.model.language.state import FUNCTIONS, State
from slotproof.proofs.prove.claims import Claim
from slotproof.proofs.prove.obligations.group_loops.adopt import ADOPT
from slotproof.proofs.prove.obligations.group_loops.group_loop import GroupLoop, Of
from slotproof.proofs.prove.obligations.group_loops.publish import CACHE
from slotproof.proofs.prove.obligations.group_loops.release import FREE, RELEASE
from slotproof.proofs.prove.obligations.group_loops.take import TAKE, pieces
from slotproof.proofs.prove.obligations.loops import LOOPS
from slotproof.proofs.prove.obligations.loops import end_of_loop as end_of_inner_loop
from slotproof.proofs.prove.symbols import Symbols

GROUP_LOOPS: dict[str, GroupLoop] = {loop.name: loop for loop in (TAKE, ADOPT, RELEASE, FREE, CACHE)}

NAMED = ("writer_row", "writer_index", "table")


def end_of_group_loop(read: Symbols, name: str, s: State, **of: Any) -> State:
    """A loop's effect, by its invariant; what it needs is noted."""
    loop, num = GROUP_LOOPS[name], read.engine.groups.num
    original = s
    is_named = loop is CACHE and read.careful
    if is_named:
        s = read.named = _with_names(read, s, NAMED)
    for claim in loop.needs(read, s, of):
        read.need(f"{name}: {claim.name}", claim.statement, claim.goal(), *claim.values())
    for claim in defined_sums(loop, read, s, of):
        read.assume_claim(claim)
    end = loop.at(read, s, num, of)
    for fact in loop.facts(read, s, num, end, of):
        read.facts.append(read.on_path(fact))
        read.assumed.append(read.facts[-1].assumed())
    return end if not is_named else end.replace(**{f: getattr(original, f) for f in NAMED})


def _with_names(read: Symbols, s: State, fields: tuple[str, ...]) -> State:
    """The same state, with fields that have come to be long terms named: Z3 would have to compare what is
    built on these."""
    names: dict[str, Any] = {}
    for field in fields:
        meant, name = getattr(s, field), read.unknown(field)
        names[field] = name
        alike = Claim(f"{field}-is-named", "groups", FUNCTIONS[field], _alike(meant, name), (name,))
        read.assumed.append(alike.assumed())
    return s.replace(**names)


def _alike(one: Any, other: Any) -> Callable[..., Bool]:
    return lambda *place: one(*place) == other(*place)


def end_of_loop(read: Symbols, name: str, low: Int, high: Int, s: State, **of: Any) -> State:
    """The effect of a loop of either kind."""
    if name in GROUP_LOOPS:
        return end_of_group_loop(read, name, s, **of)
    if name not in LOOPS:  # a faulty program's: of what comes of it nothing is known
        return read.state()
    return end_of_inner_loop(read, name, low, high, s, **of)


def defined_sums(loop: GroupLoop, read: Symbols, s: State, of: Of) -> Iterator[Claim]:
    for amount in loop.sums(read, s, of):
        yield from _sum(read, amount)
    if loop.name == "take-groups":
        yield from pieces(read, s, of)


def _sum(read: Symbols, amount: Callable[[Int], Int]) -> Iterator[Claim]:
    """Of amounts that are not negative, the sum of more is not less."""
    total, num = read.summed(amount), read.engine.groups.num

    def is_monotone(i: Int, j: Int) -> Bool:
        return implies(both(i >= 0, i <= j, j <= num), both(total(i) >= 0, total(i) <= total(j)))

    yield Claim("sums-grow", "groups", 2, is_monotone, (lambda i, j: (total(i), total(j)),))
