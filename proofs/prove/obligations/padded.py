"""That an admission which is padded with drafts is two calls: one that asks for the drafts' slots as
lookahead, and one of the running request that schedules them.

vLLM makes the one call; a caller within the contract the two. The one call reads what is new and what is
lookahead by their sum, but for what it hashes, which ends at the known tokens either way. So the first of the
two leaves what the one call leaves, and that makes the second a matter of counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, both, implies, minimum, negate
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, RUNNING, State
from slotproof.model.scheduling.caller import waits
from slotproof.model.scheduling.decode_step import alike
from slotproof.model.system.allocate_slots import Ask, allocate_slots
from slotproof.model.system.attention.group import num_full_blocks, skipped_blocks
from slotproof.proofs.prove.claims import Claim, as_term
from slotproof.proofs.prove.obligation import Obligation
from slotproof.proofs.prove.obligations import calls

STATEMENT = "padded admissions"
COUNTED = ("computed", "in_flight", "unwritten")
"""What a scheduler counts of a request: all that the second call changes."""


def padded(kind: str, rules: Rules) -> Iterator[Obligation]:
    """One call with its drafts, and the two, come to the same."""
    yield from _first_is_the_one(kind, rules)
    yield from _first_prepares(kind, rules)
    yield from _second_counts(kind, rules)


def _first_is_the_one(kind: str, rules: Rules) -> Iterator[Obligation]:
    """With `new` and `lookahead` known by their sum, and what is hashed known too, nothing reads them: to
    move some from the one to the other makes no difference."""
    read, s = calls._state(kind, rules)
    r = read.names.integer("request")
    ask, start = calls.any_ask(read, s, r), len(read.assumed)
    answer = allocate_slots(s, r, ask)
    asked, hashed = read.names.integers("asked hashed")
    ends_at = minimum(answer.total + ask.new, s.num_tokens(r))
    known = [(answer.total + ask.new + ask.lookahead, asked), (ends_at, hashed)]
    place = read.names.integers("x y")
    terms = [as_term(answer.granted), answer.new_low(0), answer.new_high(0), *read.assumed[start:]]
    for field in FIELDS:
        value = getattr(answer.state, field)
        terms.append(value(*place[: FUNCTIONS[field]]) if field in FUNCTIONS else value)
    unread = not any(_mentions(z3.substitute(term, *known), ask.new, ask.lookahead) for term in terms)
    yield _obligation(Claim("sum-is-all-that-is-read", STATEMENT, 0, lambda: unread), kind, [])

    drafts = read.names.integer("drafts")
    more = z3.substitute(ends_at, (ask.new, ask.new + drafts))
    whole = both(answer.total + ask.new == s.num_tokens(r), drafts >= 0)
    claim = Claim("hashes-end-at-known-tokens", STATEMENT, 0, lambda: implies(whole, more == ends_at))
    yield _obligation(claim, kind, [])


def _mentions(term: Any, *unknowns: z3.ArithRef) -> bool:
    seen, stack = set[int](), [term]
    while stack:
        t = stack.pop()
        if t.get_id() not in seen:
            seen.add(t.get_id())
            stack.extend(t.children())
            if any(t.eq(unknown) for unknown in unknowns):
                return True
    return False


def _is_ready(s: State, r: Any, ask: Ask) -> dict[str, Bool]:
    """What makes a running request's call a matter of counting: it knows all its tokens' slots, what fell out
    of its window is given back, its known tokens are hashed."""
    engine, row, limit = s.engine, s.engine.row(r, 0), s.engine.max_model_len
    gone = skipped_blocks(engine, 0, s.computed(r) - s.in_flight(r))
    due = num_full_blocks(engine, 0, s.num_tokens(r))
    return {
        "runs-past-its-tokens": both(s.status(r) == RUNNING, s.num_tokens(r) <= s.computed(r)),
        "counts-the-slots": minimum(s.computed(r) + ask.new + ask.lookahead, limit) <= s.slots(r),
        "has-released": minimum(gone, s.length(row)) <= s.first(row),
        "has-its-hashes": implies(engine.enable_caching, due <= s.num_cached(row)),
    }


def _first_prepares(kind: str, rules: Rules) -> Iterator[Obligation]:
    """After an admission of all known tokens, with the drafts as lookahead, the second call is ready."""
    made = calls._make("allocate", kind, rules)
    s, r, ask, outcome, read = made.before, made.request, made.ask, made.outcome, made.read
    assert ask is not None
    assert outcome.answer is not None
    drafts, lookahead = read.names.integers("drafts lookahead_after")
    admission = both(waits(s, r), negate(ask.delay_cache), outcome.granted)
    whole = outcome.answer.total + ask.new == s.num_tokens(r)
    given = both(admission, whole, drafts >= 0, lookahead >= 0, ask.lookahead == lookahead + drafts)
    known = [*read.assumed, *calls._lemmas(made)]
    for name, holds in _is_ready(outcome.state, r, Ask(new=drafts, lookahead=lookahead)).items():
        claim = Claim(f"after-the-first, {name}", STATEMENT, 0, lambda holds=holds: implies(given, holds))
        yield _obligation(claim, kind, known)


def _second_counts(kind: str, rules: Rules) -> Iterator[Obligation]:
    """The second call is granted, and changes nothing but what the scheduler counts."""
    made = calls._make("allocate", kind, rules)
    s, r, ask, outcome, read = made.before, made.request, made.ask, made.outcome, made.read
    assert ask is not None
    assert outcome.answer is not None
    asked = both(ask.reserved == 0, negate(ask.must_fit), negate(ask.delay_cache), ask.external == 0)
    read.assume(asked, *_is_ready(s, r, ask).values())
    known, t = [*read.assumed, *calls._lemmas(made)], outcome.state
    granted = Claim("second-is-granted", STATEMENT, 0, lambda: outcome.granted)
    yield _obligation(granted, kind, known)
    known.append(granted.goal())
    for field in FIELDS:
        if getattr(s, field) is getattr(t, field):
            continue
        if field in COUNTED:
            before, after = getattr(s, field), getattr(t, field)
            claim = Claim(
                f"second-counts, {field}",
                STATEMENT,
                1,
                lambda q, before=before, after=after: after(q) == before(q) + z3.If(q == r, ask.new, 0),
            )
        else:
            claim = Claim(
                f"second-leaves, {field}",
                STATEMENT,
                FUNCTIONS.get(field, 0),
                lambda *place, field=field: alike(s, t, field, *place),
            )
        yield _obligation(claim, kind, known)


def _obligation(claim: Claim, kind: str, known: list[z3.BoolRef]) -> Obligation:
    name, goal = f"padded: {claim.name}", claim.goal()
    witness = "call allocate" if known else ""
    return Obligation(name, claim.statement, kind, "caller", witness, tuple(known), goal, is_leaf=True)
