"""The call that is compared: any `allocate_slots` within the contract, in any state with every invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import z3

from slotproof.model.claims.invariants import LEDGER, STEPWISE
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import HAND, NULL_BLOCK, State
from slotproof.model.scheduling.caller import allocate_contract
from slotproof.model.system.allocate_slots import Answer, allocate_slots, is_idle_hit
from slotproof.model.system.attention.group import is_reachable
from slotproof.model.system.pool import release
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.campaign.kinds import SLIDING_WINDOW
from slotproof.proofs.conform.numbers import BLOCK_SIZE
from slotproof.proofs.conform.paths import Beginning, Path
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import as_term
from slotproof.proofs.prove.obligations.calls import any_ask
from slotproof.proofs.prove.obligations.group_loops.ends import end_of_loop
from slotproof.proofs.prove.symbols import Symbols

INVARIANTS = (*STEPWISE, *LEDGER)


@dataclass(frozen=True)
class Case:
    """Which of the situations: those that an implementation keeps in different ways are looked at apart."""

    kind: str
    caching: bool
    holds: bool
    """The request holds blocks."""
    name: str = ""
    """How the implementation keeps them, if there are several ways."""

    def __str__(self) -> str:
        words = [self.kind, "caching" if self.caching else "no caching"]
        words.append("holds blocks" if self.holds else "holds none")
        return ", ".join([*words, self.name] if self.name else words)


class Following(Symbols):
    """The proof reading, along one path: where the model has a choice, the run forks."""

    path: Path | None = None

    def when(self, condition: Any, then: Callable[[], State], otherwise: State) -> State:
        assert self.path is not None
        return then() if self.path.decide(condition) else otherwise

    def floor_div(self, tokens: Any, size: Any) -> Any:
        return super().floor_div(self._named(tokens), size)

    def ceil_div(self, tokens: Any, size: Any) -> Any:
        return super().ceil_div(self._named(tokens), size)

    def times(self, blocks: Any, size: Any) -> Any:
        return super().times(self._named(blocks), size)

    def _named(self, term: Any) -> Any:
        return term if self.path is None else self.path.named(term)


class Situation:
    """A state, a request, and what is asked for it. All of it is terms."""

    def __init__(self, case: Case, rules: Rules | None = None) -> None:
        self.case = case
        self._read = Following(case.kind, rules or Rules(), end_of_loop)
        self.engine = self._read.engine
        self.before: State = self._read.state()
        self.request: Any = self._read.names.integer("request")
        found = any_ask(self._read, self.before, self.request)
        num, at = self._read.names.integer("hits"), self._read.names.function("hit")
        # What the lookup's quantified facts say of the number: a hit leaves a token (`get_computed_blocks`).
        leaves_one = self.engine.tokens(num) < self.before.num_tokens(self.request)
        self._read.assume(num == found.hits.num(0), z3.Or(num == 0, leaves_one))
        hits = Hits(self.engine.tokens(num), lambda g: num, lambda g, i: at(i))
        self.ask, self.num_hits = replace(found, hits=hits), num
        self.contract = allocate_contract(self.before, self.request, self.ask)
        self._answers: list[tuple[Beginning, Answer]] = []

    @cached_property
    def given(self) -> dict[str, Any]:
        """What is assumed of this case, in the order in which an answer names it."""
        s, r, case = self.before, self.request, self.case
        of_request = (i for i in INVARIANTS if i.variables in ((), ("request",), ("row",)))
        invariants = {i.name: i.holds(s, *((r,) if i.variables else ())) for i in of_request}
        return {
            "prefix caching": self.engine.enable_caching == case.caching,
            "holds blocks": (s.length(r) > 0) == case.holds,
            **{f"contract: {name}": holds for name, holds in self.contract.items()},
            **{f"invariant: {name}": holds for name, holds in invariants.items()},
        }

    @cached_property
    def assumptions(self) -> list[z3.BoolRef]:
        """All that is known when the code starts."""
        known = [fact for fact in self._read.assumed if not has_quantifier(fact)]
        return [*known, *map(as_term, self.given.values())]

    def answer(self, path: Path) -> Answer:
        """What the model does, on this path, which begins with it: it is worked out once for each way that
        the model can go."""
        for beginning, answer in self._answers:
            if path.begins_with(beginning):
                return answer
        answer = self._answer(path)
        self._answers.append((path.beginning(), answer))
        return answer

    def _answer(self, path: Path) -> Answer:
        read = self._read
        assumed, fresh, counts = read.assumed, read.names.made.copy(), read._counts
        s, r, ask = self.before, self.request, self.ask
        read.path, read.assumed, read._counts = path, [], []
        try:
            total = s.computed(r) + ask.hits.tokens + ask.external
            path.assume(
                arithmetic.next_block(s.length(r), BLOCK_SIZE).body(),
                arithmetic.sum_of_parts(total, ask.new + ask.lookahead, BLOCK_SIZE).body(),
            )
            answer = allocate_slots(s, r, ask)
            path.assume(*(fact for fact in read.assumed if not has_quantifier(fact)))
            for state in (s, answer.released):
                path.counts.append(self._counted(state))
            return replace(answer, granted=path.decide(answer.granted))
        finally:
            read.path, read.assumed, read._counts, read.names.made = None, assumed, counts, fresh

    def counts_are_bounded(self) -> list[z3.BoolRef]:
        """What is known of every count that was asked of the reading."""
        return [fact for fact in self._read.assumed if not has_quantifier(fact)]

    def _counted(self, state: State) -> tuple[Any, Any]:
        """The hits that are idle, and how the model counts them."""

        def is_idle(i: Any) -> Any:
            return as_term(is_idle_hit(state, self.ask.hits, 0, i))

        return is_idle, self._read.counted(partial(is_idle_hit, state, self.ask.hits), 0)

    @property
    def looks_back(self) -> Any:
        """Some hit needs the request's blocks: with a window of one token, none does."""
        return as_term(is_reachable(self.before, 0, 0))

    def table(self, path: Path, i: Any) -> Any:
        """Entry i of the request's table; what the invariants say of it is known from here on."""
        s, r = self.before, self.request
        for invariant in INVARIANTS:
            if invariant.name in ("null-block-fills-the-gap", "entries-are-references"):
                path.assume(invariant.holds(s, r, i))
        return s.table(r, i)

    def hit(self, path: Path, i: Any) -> Any:
        """Entry i of the hit: a block in the prefix cache, or, before a window, the null block
        (`get_computed_blocks`)."""
        s, block = self.before, self.ask.hits.at(0, i)
        is_null = z3.And(self.case.kind == SLIDING_WINDOW, block == NULL_BLOCK)
        found = z3.And(s.is_block(block), s.is_hashed(block))
        path.assume(z3.Implies(z3.And(i >= 0, i < self.num_hits), z3.Or(is_null, found)))
        return block

    def given_back(self, high: Any, x: Any) -> Any:
        """The x-th block that goes back when the table's entries below `high` do."""
        return release(self.before, self.request, high).table(HAND, x)


def has_quantifier(term: Any) -> bool:
    """A quantifier occurs in the term."""
    return _has(term, z3.is_quantifier)


def _has(term: Any, is_it: Callable[[Any], bool]) -> bool:
    seen, stack = set[int](), [term]
    while stack:
        t = stack.pop()
        if is_it(t):
            return True
        if t.get_id() not in seen:
            seen.add(t.get_id())
            stack.extend(t.children())
    return False
