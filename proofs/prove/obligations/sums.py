"""Sums over groups, where a call or a check compares them: what holds of each group holds of the sums.

Each is an instance of *sums-are-monotone*, which is proved by induction over the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import z3

from slotproof.model.claims.admission import held_at_once, missing, most_held
from slotproof.model.claims.check import covered, idle_hits, slots_asked
from slotproof.model.language.algebra import Bool, Int, both, implies, maximum, minimum, negate, within
from slotproof.model.language.state import State
from slotproof.model.scheduling.caller import Outcome
from slotproof.model.system.allocate_slots import Answer, Ask, blocks_to_allocate, external_end
from slotproof.proofs.prove.claims import as_term
from slotproof.proofs.prove.obligations.group_loops.adopt import idle_of
from slotproof.proofs.prove.obligations.group_loops.group_loop import of_rows
from slotproof.proofs.prove.obligations.group_loops.release import released
from slotproof.proofs.prove.obligations.group_loops.take import taken_by
from slotproof.proofs.prove.symbols import Symbols

Amount = Callable[[Int], Int]
"""group -> its amount"""


@dataclass(frozen=True)
class Comparison:
    """Where `given` holds, the smaller amounts together are at most the larger, in every group below num: so
    are their sums."""

    given: Bool
    smaller: Sequence[Amount]
    larger: Sequence[Amount]
    num: Int

    def of_each(self, g: Int) -> z3.BoolRef:
        """What has to be shown of a group."""
        each = sum(a(g) for a in self.smaller) <= sum(a(g) for a in self.larger)
        return as_term(implies(both(self.given, within(0, g, self.num)), each))

    def of_sums(self, read: Symbols) -> z3.BoolRef:
        """What then is known."""
        totals = [sum(read.summed(a)(self.num) for a in amounts) for amounts in (self.smaller, self.larger)]
        return as_term(implies(self.given, totals[0] <= totals[1]))


def alike(given: Bool, some: Sequence[Amount], others: Sequence[Amount], num: Int) -> list[Comparison]:
    """The amounts together are the same in every group."""
    return [Comparison(given, some, others, num), Comparison(given, others, some, num)]


def still_missing(s: State, r: Int) -> Amount:
    """What the whole prompt of r still needs in a group."""
    return of_rows(s, r, lambda row: maximum(0, missing(s, row)))


class Allocation:
    """The amounts of one `allocate_slots`."""

    def __init__(self, s: State, r: Int, ask: Ask, answer: Answer) -> None:
        engine, total = s.engine, answer.total
        tokens = minimum(total + ask.new + ask.lookahead, engine.max_model_len)
        whole = minimum(s.num_tokens(r), engine.max_model_len)
        self.whole = of_rows(s, r, lambda row: blocks_to_allocate(s, row, ask, whole, total, True))
        s1, s2, s3 = answer.released, answer.adopted, answer.loaded
        self.need = of_rows(s, r, lambda row: blocks_to_allocate(s1, row, ask, tokens, total, False))
        self.idle = idle_of(s1, ask.hits, total)
        self.external = of_rows(s, r, taken_by(s2, lambda row: external_end(s2, row, ask, total)))
        self.new = of_rows(s, r, taken_by(s3, lambda row: engine.blocks(tokens, engine.group(row))))
        self.released = of_rows(s, r, released(s, maximum(0, total - s.in_flight(r))))


def of_count(a: Allocation, answer: Answer, num: Int) -> list[list[Comparison]]:
    """That stage 2 counted enough for the external blocks, and then for the new ones too; and no more."""
    enough = (
        [Comparison(answer.granted, taken, [a.need], num)]
        for taken in ([a.idle, a.external], [a.idle, a.external, a.new])
    )
    return [*enough, alike(answer.granted, [a.need], [a.idle, a.external, a.new], num)]


def of_check(
    name: str,
    given: Bool,
    s: State,
    r: Int,
    ask: Ask | None,
    outcome: Outcome,
    values: Sequence[Int],
) -> list[Comparison]:
    """What a check rests on, where it is made."""
    t, engine, answer = outcome.state, s.engine, outcome.answer
    num = engine.groups.num

    def at_most(smaller: Sequence[Amount], larger: Sequence[Amount], more: Bool = True) -> Comparison:
        return Comparison(both(given, more), smaller, larger, num)

    if name in ("promise-survives", "load-leaves-the-reserve"):
        (q,) = values
        return [at_most([still_missing(t, q)], [still_missing(s, q)])]
    if ask is None or answer is None:
        return []
    a, later, total = Allocation(s, r, ask, answer), still_missing(t, r), answer.total
    if name in ("admission-promises", "whole-prompt-leaves-it"):
        part = total + ask.new + ask.lookahead <= s.num_tokens(r)
        return [at_most([later, a.need], [a.whole], part), at_most([later], [], negate(part))]
    if name == "asks-no-more":
        return [at_most([a.whole], [of_rows(s, r, lambda row: most_held(s, row))])]
    if name == "whole-prompt-is-counted":

        def asked(row: Int) -> Int:
            new = maximum(0, most_held(s, row) - covered(s, row, ask, total))
            return new + idle_hits(s, row, ask, total)

        return alike(True, [a.whole], [of_rows(s, r, asked)], num)
    if name == "idle-hits-are-counted":

        def cost(row: Int) -> Int:
            new = maximum(0, slots_asked(s, row, ask, total) - covered(s, row, ask, total))
            return new + idle_hits(answer.released, row, ask, total)

        return alike(given, [a.need], [of_rows(s, r, cost)], num)
    tokens = total + ask.new + ask.lookahead

    def most(g: Int) -> Int:
        return held_at_once(engine, g, tokens)

    if name == "empty-pool-admits":
        whole = at_most([a.whole], [lambda g: held_at_once(engine, g, s.num_tokens(r))])
        return [at_most([a.need], [most]), whole]
    if name == "lone-request-is-granted":
        # Either no table has slots for what is asked, or all have, and nothing is needed.
        live = of_rows(s, r, lambda row: maximum(0, s.length(row) - s.first(row)))
        asked = minimum(tokens, engine.max_model_len)
        more = at_most([a.need, live], [most, a.released], s.slots(r) <= asked)
        return [more, at_most([a.need], [], asked <= s.slots(r))]
    if name == "later-chunk-is-granted":
        return [
            at_most([a.need], [still_missing(s, r), a.released]),
            at_most([a.whole], [still_missing(s, r)]),
        ]
    if name == "later-chunk-is-promised":
        return [at_most([later, a.need], [still_missing(s, r), a.released])]
    if name in ("new-from-the-front", "external-from-the-front"):
        before, after, taken = answer.adopted, answer.loaded, a.external
        if name == "new-from-the-front":
            before, after, taken = answer.loaded, answer.committed, a.new
        grown = of_rows(s, r, lambda row: after.length(row) - before.length(row))
        return alike(given, [grown], [taken], values[0])
    return []
