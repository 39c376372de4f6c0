"""Numbers for a path that is not shown to agree: small ones, with which the code may do otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import z3

from slotproof.model.language.state import NULL_BLOCK, RUNNING, WAITING
from slotproof.proofs.campaign.kinds import SLIDING_WINDOW
from slotproof.proofs.conform.follower import Differs, Follower
from slotproof.proofs.conform.numbers import BLOCK_SIZE
from slotproof.proofs.conform.situation import has_quantifier
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import as_term

MOST, MOST_HITS = 24, 3
_BLOCK_SIZES = (2, 1, 3, 4)
_MILLISECONDS = 3000


@dataclass(frozen=True)
class Values:
    """A situation in numbers, by the names of the model's fields, arguments and counts."""

    number: dict[str, int]
    held_hits: int
    """How many of the first hits somebody holds; the others are idle."""


def values(follower: Follower, differs: Differs) -> Iterator[Values]:
    """Situations in numbers that a story can lead to, and in which the claim may fail."""
    situation, path = follower.situation, follower.path
    s, r, ask, engine = situation.before, situation.request, situation.ask, situation.engine
    terms = {
        "max_model_len": engine.max_model_len,
        "watermark": engine.watermark_blocks,
        "max_in_flight": engine.max_in_flight_tokens,
        "num_free": s.num_free,
        "status": s.status(r),
        "tokens": s.num_tokens(r),
        "computed": s.computed(r),
        "in_flight": s.in_flight(r),
        "length": s.length(r),
        "hits": situation.num_hits,
        "new": ask.new,
        "lookahead": ask.lookahead,
        "external": ask.external,
        "reserved": ask.reserved,
        "block_size": BLOCK_SIZE,
    }
    if situation.case.kind == SLIDING_WINDOW:
        terms["window"] = engine.groups.window(0)
    flags = {
        name: getattr(ask, name) for name in ("delay_cache", "must_fit", "has_scheduled", "skip_zeroing")
    }
    known = [f for f in (*path.facts, *path.conditions, *situation.assumptions) if not has_quantifier(f)]
    facts = [*known, *map(as_term, _told(follower)), z3.Not(differs.claim)]
    facts += [z3.And(term >= 0, term <= MOST) for term in terms.values()]
    facts.append(situation.num_hits <= MOST_HITS)
    whole = z3.And([*facts, *_counted(path)])
    whole = z3.And([whole, *map(as_term, arithmetic.definitions(whole))])
    for size in _BLOCK_SIZES:
        solver = z3.Solver()
        solver.set("timeout", _MILLISECONDS)
        solver.add(z3.substitute(whole, (BLOCK_SIZE, z3.IntVal(size))))
        if solver.check() != z3.sat:
            continue
        model = solver.model()

        def number(term: Any, model: Any = model) -> int:
            return int(model.eval(term, model_completion=True).as_long())

        found = {name: number(term) for name, term in terms.items()} | {"block_size": size}
        found |= {
            name: int(z3.is_true(model.eval(flag, model_completion=True))) for name, flag in flags.items()
        }
        idle = [number(s.ref_cnt(ask.hits.at(0, i))) == 0 for i in range(found["hits"])]
        yield Values(found, idle.count(False))


def _told(follower: Follower) -> Iterator[Any]:
    """What makes the situation one that `story.py` leads to."""
    situation = follower.situation
    s, r, ask, answer = situation.before, situation.request, situation.ask, follower.answer
    engine, computed = situation.engine, s.computed(r)
    yield s.num_to_zero(0) == 0
    yield engine.max_in_flight_tokens >= 1
    yield s.unwritten(r) == s.in_flight(r)
    yield r == 0
    yield answer.released.num_free == s.num_free + answer.released.first(r) - s.first(r)
    if situation.case.holds:
        loaded = z3.And(s.status(r) == WAITING, s.in_flight(r) == 0, computed < s.num_tokens(r))
        yield z3.Or(s.status(r) == RUNNING, loaded)
        yield z3.And(s.first(r) == 0, computed >= 1)
        hashed = engine.full_blocks(z3.If(computed <= s.num_tokens(r), computed, s.num_tokens(r)))
        yield s.num_cached(r) == (hashed if situation.case.caching else 0)
    else:
        yield s.status(r) == WAITING
        for i in range(MOST_HITS):
            is_null = ask.hits.at(0, i) == NULL_BLOCK
            if situation.case.kind != SLIDING_WINDOW:
                yield z3.Not(is_null)
            else:
                run = engine.blocks(engine.groups.window(0) - 1)
                yield is_null == (i < situation.num_hits - z3.If(run >= 1, run, 1))
                yield s.ref_cnt(ask.hits.at(0, i)) == 0
            if i:
                yield z3.Implies(s.ref_cnt(ask.hits.at(0, i - 1)) == 0, s.ref_cnt(ask.hits.at(0, i)) == 0)
            yield z3.And(s.ref_cnt(ask.hits.at(0, i)) >= 0, s.ref_cnt(NULL_BLOCK) == 0)


def _counted(path: Any) -> Iterator[Any]:
    for predicate, counted in path.counts:
        yield counted(0) == 0
        for i in range(MOST_HITS):
            yield counted(i + 1) == counted(i) + z3.If(as_term(predicate(z3.IntVal(i))), 1, 0)
