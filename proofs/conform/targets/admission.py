"""A rule of admission alone: any function that says of one request whether it gets its blocks.

`admission` tells which of its parameters is which of the model's terms (`TERMS`), and what it leaves out. The
function is followed on every integer, and its yes or no compared with the model's; it has no pool.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import z3

from slotproof.impl.adapter import Hit
from slotproof.impl.ledger import Entry
from slotproof.impl.protocol import AddRequest, Allocate, Allocator, Config
from slotproof.model.language.state import State
from slotproof.model.scheduling.caller import waits
from slotproof.model.system.allocate_slots import Ask, is_idle_hit
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.conform.follower import Follower
from slotproof.proofs.conform.numbers import Number, Truth
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.conform.situation import Case, Situation
from slotproof.proofs.gate.model_allocator import ModelAllocator

TERMS: Mapping[str, Callable[[State, Any, Ask], Any]] = {
    "free": lambda s, r, ask: s.num_free,
    "held": lambda s, r, ask: s.length(s.engine.row(r, 0)),
    "tokens": lambda s, r, ask: s.num_tokens(r),
    "computed": lambda s, r, ask: s.computed(r),
    "in_flight": lambda s, r, ask: s.in_flight(r),
    "waits": lambda s, r, ask: waits(s, r),
    "new": lambda s, r, ask: ask.new,
    "lookahead": lambda s, r, ask: ask.lookahead,
    "external": lambda s, r, ask: ask.external,
    "reserved": lambda s, r, ask: ask.reserved,
    "delay_cache": lambda s, r, ask: ask.delay_cache,
    "must_fit": lambda s, r, ask: ask.must_fit,
    "has_scheduled": lambda s, r, ask: ask.has_scheduled,
    "hits": lambda s, r, ask: ask.hits.num(0),
    "idle_hits": lambda s, r, ask: s.read.count(0, ask.hits.num(0), partial(is_idle_hit, s, ask.hits), 0),
    "block_size": lambda s, r, ask: s.engine.groups.block_size(0),
    "max_model_len": lambda s, r, ask: s.engine.max_model_len,
    "watermark": lambda s, r, ask: s.engine.watermark_blocks,
}
"""What a function may be told, in blocks or tokens: free blocks; entries of the request's table; its tokens,
those computed and those in flight; whether it is to be admitted; what is asked (`Ask`); the blocks that a
lookup hit, and those of them that nobody holds; the configuration."""


_ASKED = ("lookahead", "external", "reserved", "delay_cache", "must_fit", "has_scheduled")


class Admission:
    """A target (see `Target`) for one function."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Mapping[str, str],
        given: Mapping[str, int | bool],
        caching: Sequence[bool],
        holds: Sequence[bool],
    ) -> None:
        unknown = sorted({*parameters.values(), *given} - set(TERMS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: no term of the model; there are {', '.join(TERMS)}")
        self.function, self.parameters, self.given = function, dict(parameters), dict(given)
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.modules: Sequence[ModuleType] = (sys.modules[function.__module__],)
        self.cases = tuple(Case(FULL, c, h) for c in caching for h in holds)

    def __call__(self, *values: Any, **named: Any) -> Any:
        """The function itself; of a `Config` alone, an allocator as `replay` and `gate` ask for one."""
        if len(values) == 1 and isinstance(values[0], Config):
            return self.allocator(values[0])
        return self.function(*values, **named)

    def run(self, situation: Situation, path: Path, follower: Follower) -> None:
        """See `Target`."""
        s, r, ask = situation.before, situation.request, situation.ask
        path.assume(*(TERMS[name](s, r, ask) == value for name, value in self.given.items()))
        answer = self.function(**{p: _value(TERMS[t](s, r, ask)) for p, t in self.parameters.items()})
        path.assume(*situation.counts_are_bounded())
        if answer:
            follower.agree("it says yes", follower.answer.granted)
        else:
            follower.agree("it says no", not follower.answer.granted)

    def allocator(self, config: Config) -> Allocator:
        """See `Target`: the model, which admits as the function says."""
        return _Admitting(config, self)

    def is_possible(self, case: Case) -> bool:
        """A story of the model leads to the case, and to a question with the terms that are given."""
        ask: dict[str, Any] = {name: self.given[name] for name in _ASKED if name in self.given}
        config = Config(
            num_blocks=6,
            block_size=int(self.given.get("block_size", 1)),
            max_model_len=int(self.given.get("max_model_len", 4)),
            enable_caching=case.caching,
            watermark_blocks=int(self.given.get("watermark", 0)),
        )
        allocator = _Admitting(config, self)
        try:
            allocator.step(AddRequest(0, (1, 1)))
            if case.holds:
                allocator.step(Allocate(0, 1))
            allocator.step(Allocate(0, 1, **ask))
        except ValueError:
            return False
        return allocator.was_asked


class _Admitting(ModelAllocator):
    def __init__(self, config: Config, admission: Admission) -> None:
        super().__init__(config)
        self._admission = admission
        self.was_asked = False
        """The last call was one that the function is about."""

    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        ask, s = self.ask(call, hit), self.state_of(entry)
        of = {name: TERMS[name](s, entry.number, ask) for name in TERMS}
        granted = super().allocate(entry, call, hit)
        self.was_asked = all(of[name] == value for name, value in self._admission.given.items())
        if not self.was_asked:
            return granted
        admitted = self._admission.function(**{p: of[t] for p, t in self._admission.parameters.items()})
        if bool(admitted) == (granted is not None):
            return granted
        return () if admitted else None


def _value(term: Any) -> Any:
    if isinstance(term, int | z3.ArithRef):
        return Number(term)
    return Truth(term)


def admission(
    *,
    given: Mapping[str, int | bool] | None = None,
    caching: Sequence[bool] = (True, False),
    holds: Sequence[bool] = (True, False),
    **parameters: str,
) -> Callable[[Callable[..., Any]], Admission]:
    """Decorate a rule of admission: `parameter="term"` for each of its parameters, by the names of `TERMS`.

    Args:
        given: Terms that have one value wherever the function is asked; it may leave these out.
        caching: With a prefix cache, without, or both.
        holds: For requests that hold blocks, that hold none, or both.

    Raises:
        ValueError: a name is no term of the model.
    """
    return lambda function: Admission(function, parameters, given or {}, caching, holds)
