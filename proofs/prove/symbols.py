"""The proof reading: the model over Z3 functions and unbounded integers.

A state's fields are unknown functions; a step makes new ones by definition. A loop is replaced by what its
invariant says of its end (`loops.py` proves that invariant). What a step needs (`require`) and relies on
(`expect`) is collected, under the path that leads to it, to be proved where a whole call is looked at, and
assumed where a single step is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, Function, Int, both, either, implies, ite, within
from slotproof.model.language.engine import Engine
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, NO_HASH, NULL_BLOCK, State
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, same_terms

FULL, SLIDING_WINDOW = "full", "sliding-window"
KINDS = (FULL, SLIDING_WINDOW)

_key = z3.Function("key", *[z3.IntSort()] * 4)
_key_part = tuple(z3.Function(f"key_part{n}", z3.IntSort(), z3.IntSort()) for n in range(3))
_span = z3.Function("span", *[z3.IntSort()] * 4)
_span_length = z3.Function("span_length", z3.IntSort(), z3.IntSort())
_salt = z3.Function("salt", z3.IntSort(), z3.IntSort())
_lora = z3.Function("lora", z3.IntSort(), z3.IntSort())

KEYS = (
    Claim(
        "keys-are-unambiguous",
        "keys",
        3,
        lambda span, lora, salt: both(
            _key(span, lora, salt) != NO_HASH,
            *(
                part(_key(span, lora, salt)) == x
                for part, x in zip(_key_part, (span, lora, salt), strict=True)
            ),
        ),
        (lambda span, lora, salt: _key(span, lora, salt),),
    ),
    Claim(
        "spans-have-a-length",
        "keys",
        3,
        lambda r, start, end: _span_length(_span(r, start, end)) == end - start,
        (lambda r, start, end: _span(r, start, end),),
    ),
)
"""SHA-256 taken as free of collisions, and tokens told apart by their number at least."""


@contextmanager
def terms_without_truth() -> Iterator[None]:
    """Inside, to ask whether a term is true raises TypeError. Outside Z3 answers that for `==`, by whether
    the two sides are the same term, so that `a == b and c` would quietly become one of the two."""
    of_z3 = z3.AstRef.__bool__
    z3.AstRef.__bool__ = _has_no_truth
    try:
        yield
    finally:
        z3.AstRef.__bool__ = of_z3


def _has_no_truth(term: z3.AstRef) -> bool:
    raise TypeError(f"a term is not true or false: write `both`, `either`, `negate`, `ite`: {term}")


@dataclass(frozen=True)
class Needed:
    """Something a step needs or relies on, where it happens."""

    name: str
    statement: str
    claim: z3.BoolRef
    known: int
    """How many of the assumptions were made before: what comes later must not be used to show it."""
    values: tuple[Any, ...] = ()
    """The values that it is claimed for."""


class Symbols:
    """The reading over Z3 terms (see `model.language.reading`)."""

    def __init__(
        self,
        kind: str,
        rules: Rules,
        loops: Callable[..., State] | None = None,
        properties: tuple[Claim, ...] = arithmetic.PROPERTIES,
    ) -> None:
        self.assumed: list[z3.BoolRef] = []
        self.needed: list[Needed] = []
        self.facts: list[Claim] = []
        """What is known of the ends of loops."""
        self.at_any: list[Callable[[Int], Bool]] = []
        """What holds of every number of a range, at one number: for a solver that would not look there."""
        self.alone: Bool = False
        """Nobody else holds a block of the request at hand: what a release gives back is then exact."""
        self._loops = loops
        self._path: list[z3.BoolRef] = []
        self._fresh = 0
        self._counts: list[tuple[z3.BoolRef, z3.FuncDeclRef]] = []
        self._earliest: dict[int, tuple[State, z3.FuncDeclRef]] = {}
        window = z3.Int("window") if kind == SLIDING_WINDOW else None
        self.engine = Engine(
            num_blocks=z3.Int("num_blocks"),
            max_model_len=z3.Int("max_model_len"),
            sliding_window=window,
            enable_caching=z3.Bool("caching"),
            watermark_blocks=z3.Int("watermark"),
            max_in_flight_tokens=z3.Int("max_in_flight"),
            rules=rules,
            read=self,
        )
        engine = self.engine
        self.assume(
            both(engine.num_blocks >= 1, engine.max_model_len >= 1, engine.watermark_blocks >= 0),
            engine.max_in_flight_tokens >= 0,
            arithmetic.block_size >= 1,
            True if window is None else window >= 1,
            *(claim.assumed() for claim in (*KEYS, *properties, arithmetic.AT_ZERO)),
        )

    def assume(self, *facts: Any) -> None:
        """Add facts, as they stand on the present path."""
        self.assumed.extend(as_term(implies(both(*self._path), fact)) for fact in facts)

    def assume_claim(self, claim: Claim) -> None:
        """Add a claim, on the present path."""
        self.assumed.append(self.on_path(claim).assumed())

    def on_path(self, claim: Claim) -> Claim:
        """The claim, made on the present path alone."""
        path, body = both(*self._path), claim.body
        return replace(claim, body=lambda *values: implies(path, body(*values)))

    def need(self, name: str, statement: str, condition: Any, *values: Any) -> None:
        """Note what has to hold on the present path, for some values."""
        claim = as_term(implies(both(*self._path), condition))
        before = sum(needed.name.partition(", ")[0] == name for needed in self.needed)
        name += f", place {before + 1}" if before else ""
        self.needed.append(Needed(name, statement, claim, len(self.assumed), values))

    def integer(self, name: str) -> z3.ArithRef:
        """An unknown integer."""
        self._fresh += 1
        return z3.Int(f"{name}!{self._fresh}")

    def unknown(self, field: str) -> Function | Int:
        """An unknown value of a state field."""
        self._fresh += 1
        name = f"{field}!{self._fresh}"
        if field not in FUNCTIONS:
            return z3.Int(name)
        result = z3.BoolSort() if field == "evicted_idle" else z3.IntSort()
        return z3.Function(name, *[z3.IntSort()] * FUNCTIONS[field], result)

    def state(self) -> State:
        """A state of which nothing is known."""
        return State(engine=self.engine, **{field: self.unknown(field) for field in FIELDS})

    def function(self, field: str, definition: Function) -> Function:
        return remembered(definition)

    def when(self, condition: Bool, then: Callable[[], State], otherwise: State) -> State:
        condition = as_term(condition)
        if z3.is_false(condition):
            return otherwise
        self._path.append(condition)
        try:
            taken = then()
        finally:
            self._path.pop()
        return _merge(condition, taken, otherwise)

    def loop(
        self, name: str, low: Int, high: Int, step: Callable[[State, Int], State], state: State, **of: Any
    ) -> State:
        assert self._loops is not None, "a single step has no loop in it"
        return self._loops(self, name, low, high, state, **of)

    def require(self, step: str, state: State, condition: Bool) -> None:
        self.need(f"{step} cannot fail", "no-rollback", condition)

    def expect(self, statement: str, condition: Callable[[], Bool]) -> None:
        self.need("step keeps its promise", statement, condition())

    def counted(self, predicate: Callable[[Int], Bool]) -> z3.FuncDeclRef:
        """n -> how many of 0 .. n - 1 satisfy the predicate; the same function for the same predicate."""
        shape = as_term(predicate(z3.Int("counted!i")))
        for known, counted in self._counts:
            if known.eq(shape):
                return counted
        self._fresh += 1
        counted = z3.Function(f"count!{self._fresh}", z3.IntSort(), z3.IntSort())
        self._counts.append((shape, counted))
        return counted

    def count(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Int:
        counted = self.counted(predicate)
        number = ite(low < high, counted(high) - counted(low), 0)
        self.assumed.append(count_is_bounded(counted, low, high))
        return number

    def every(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Bool:
        i = self.integer("every")
        whole = z3.ForAll([i], as_term(implies(within(low, i, high), predicate(i))), qid="every")
        self.at_any.append(lambda n: implies(whole, implies(within(low, n, high), predicate(n))))
        return whole

    def largest(self, limit: Int, predicate: Callable[[Int], Bool]) -> Int:
        # That it is the largest is not needed for any statement, and is left out.
        n = self.integer("largest")
        self.assume(n >= 0, either(n == 0, both(n <= limit, predicate(n))))
        return n

    def earliest(self, state: State, key: Int) -> Int:
        _, block = self._earliest.get(id(state), (state, None))
        if block is None:
            self._fresh += 1
            block = z3.Function(f"earliest!{self._fresh}", z3.IntSort(), z3.IntSort())
            self._earliest[id(state)] = (state, block)  # the state is kept, so that its id stays its own
            found = block

            def is_hit(k: Int) -> Bool:
                return either(
                    found(k) == NULL_BLOCK, both(state.is_block(found(k)), state.block_hash(found(k)) == k)
                )

            self.assumed.append(Claim("earliest", "keys", 1, is_hit, (found,)).assumed())
        return block(key)

    def floor_div(self, tokens: Int) -> Int:
        return arithmetic.floor(tokens)

    def ceil_div(self, tokens: Int) -> Int:
        return arithmetic.ceil(tokens)

    def times(self, blocks: Int) -> Int:
        return arithmetic.times(blocks)

    def span(self, request: Int, start: Int, end: Int) -> Int:
        return _span(request, start, end)

    def digest(self, *parts: Int) -> Int:
        return _key(*parts)

    def salt(self, request: Int) -> Int:
        return _salt(request)

    def lora(self, request: Int) -> Int:
        return _lora(request)


def count_is_bounded(counted: z3.FuncDeclRef, low: Any, high: Any) -> z3.BoolRef:
    """A count of some of `low .. high - 1` is neither negative nor more than all of them."""
    return as_term(implies(low <= high, within(0, counted(high) - counted(low), high - low + 1)))


def _merge(condition: z3.BoolRef, then: State, otherwise: State) -> State:
    """Field by field, one state or the other."""
    fields: dict[str, Any] = {}
    for name in FIELDS:
        a, b = getattr(then, name), getattr(otherwise, name)
        if a is b:
            fields[name] = a
        elif name in FUNCTIONS:
            fields[name] = _choice(condition, a, b)
        else:
            fields[name] = ite(condition, a, b)
    return State(engine=then.engine, **fields)


def _choice(condition: z3.BoolRef, then: Function, otherwise: Function) -> Function:
    return remembered(lambda *values: ite(condition, then(*values), otherwise(*values)))


def remembered(definition: Function) -> Function:
    """The definition, its terms built once for each value: a step's fields are built on those of the step
    before, which is asked again and again."""
    if isinstance(definition, z3.FuncDeclRef) or hasattr(definition, "known"):
        return definition
    known: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

    def look_up(*values: Any) -> Any:
        key = same_terms(values)
        if key not in known:
            known[key] = (values, definition(*values))  # the values are kept, so that their ids stay theirs
        return known[key][1]

    look_up.known = known  # type: ignore[attr-defined]
    return look_up
