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
from functools import partial, reduce
from operator import add
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, Function, Int, both, either, implies, ite, within
from slotproof.model.language.engine import DENSE, Engine
from slotproof.model.language.groups import FULL as FULL_KIND
from slotproof.model.language.groups import SLIDING_WINDOW as WINDOW_KIND
from slotproof.model.language.groups import Group, Groups, one_group
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, NO_HASH, NULL_BLOCK, State
from slotproof.proofs.campaign.kinds import HYBRID, SLIDING_WINDOW
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, same_terms
from slotproof.proofs.prove.names import Names

_key = z3.Function("key", *[z3.IntSort()] * 5)
_key_part = tuple(z3.Function(f"key_part{n}", z3.IntSort(), z3.IntSort()) for n in range(4))
_span = z3.Function("span", *[z3.IntSort()] * 4)
_span_length = z3.Function("span_length", z3.IntSort(), z3.IntSort())
_salt = z3.Function("salt", z3.IntSort(), z3.IntSort())
_lora = z3.Function("lora", z3.IntSort(), z3.IntSort())
PROVED_KINDS = (FULL_KIND, WINDOW_KIND)
"""The kinds of attention that any number of groups may have; chunks are watched by campaigns, and gated."""
_SCHEDULER_BLOCK_SIZE = z3.Int("scheduler_block_size")

KEYS = (
    Claim(
        "keys-are-unambiguous",
        "keys",
        len(_key_part),
        lambda *parts: both(
            _key(*parts) != NO_HASH,
            *(part(_key(*parts)) == x for part, x in zip(_key_part, parts, strict=True)),
        ),
        (_key,),
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
        self.careful: bool = False
        """The proof is about contents, of a caller with care."""
        self.named: State | None = None
        """For such a proof, the state before stage 4, with names for what has come to be long terms."""
        self._loops = loops
        self._path: list[z3.BoolRef] = []
        self.names = Names()
        self._sums: list[tuple[z3.ArithRef, z3.FuncDeclRef]] = []
        self._counts: list[tuple[z3.BoolRef, z3.FuncDeclRef]] = []
        self._earliest: dict[int, tuple[State, z3.FuncDeclRef]] = {}
        groups, facts = _groups(kind, self.names)
        self.engine = Engine(
            num_blocks=self.names.integer("num_blocks"),
            max_model_len=self.names.integer("max_model_len"),
            groups=groups,
            scheduler_block_size=groups.block_size(0) if groups.is_one else _SCHEDULER_BLOCK_SIZE,
            hash_block_size=groups.block_size(0) if groups.is_one else self.names.integer("hash_block_size"),
            enable_caching=self.names.truth("caching"),
            watermark_blocks=self.names.integer("watermark"),
            max_in_flight_tokens=self.names.integer("max_in_flight"),
            rules=rules,
            read=self,
            num_reprefillable=0 if groups.is_one else self.names.integer("num_reprefillable"),
            retention_interval=DENSE if groups.is_one else self.names.integer("retention_interval"),
        )
        engine = self.engine
        self.assume(
            both(engine.num_blocks >= 1, engine.max_model_len >= 1, engine.watermark_blocks >= 0),
            engine.max_in_flight_tokens >= 0,
            both(engine.num_reprefillable >= 0, engine.retention_interval >= DENSE),
            *(claim.assumed() for claim in (*KEYS, *properties, *facts)),
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
        return z3.Int(self.names.fresh(name))

    def unknown(self, field: str) -> Function | Int:
        """An unknown value of a state field."""
        name = self.names.fresh(field)
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
        if isinstance(low, int) and isinstance(high, int):
            for k in range(low, high):
                state = step(state, k)
            return state
        assert self._loops is not None, "a single step has no loop in it"
        return self._loops(self, name, low, high, state, **of)

    def require(self, step: str, state: State, condition: Bool) -> None:
        self.need(f"{step} cannot fail", "no-rollback", condition)

    def expect(self, statement: str, condition: Callable[[], Bool]) -> None:
        self.need("step keeps its promise", statement, condition())

    def counted(self, predicate: Callable[..., Bool], *of: Int) -> Callable[[Int], Int]:
        """n -> how many of 0 .. n - 1 satisfy the predicate; for one predicate one function, whatever
        `of` it is asked of."""
        unknown = [x if isinstance(x, int) else z3.Int(f"counted!of{n}") for n, x in enumerate(of)]
        shape = as_term(predicate(*unknown, z3.Int("counted!i")))
        count = next((count for known, count in self._counts if known.eq(shape)), None)
        if count is None:
            count = z3.Function(self.names.fresh("count"), *[z3.IntSort()] * (len(of) + 2))
            self._counts.append((shape, count))
        return partial(count, *of)

    def count(self, low: Int, high: Int, predicate: Callable[..., Bool], *of: Int) -> Int:
        counted = self.counted(predicate, *of)
        number = ite(low < high, counted(high) - counted(low), 0)
        self.assumed.append(count_is_bounded(counted, low, high))
        return number

    def summed(self, amount: Callable[[Int], Int]) -> z3.FuncDeclRef:
        """n -> the sum of the amounts of 0 .. n - 1; the same function for the same amount."""
        shape = as_term_int(amount(z3.Int("summed!i")))
        for known, total in self._sums:
            if known.eq(shape):
                return total
        total = z3.Function(self.names.fresh("sum"), z3.IntSort(), z3.IntSort())
        self._sums.append((shape, total))
        self.assumed.append(total(0) == 0)
        return total

    def total(self, high: Int, amount: Callable[[Int], Int]) -> Int:
        if isinstance(high, int):
            return reduce(add, (amount(i) for i in range(high))) if high else 0
        return self.summed(amount)(high)

    def every(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Bool:
        if isinstance(low, int) and isinstance(high, int):
            return both(*(predicate(i) for i in range(low, high)))
        i = self.integer("every")
        whole = z3.ForAll([i], as_term(implies(within(low, i, high), predicate(i))), qid="every")
        self.at_any.append(lambda n: implies(whole, implies(within(low, n, high), predicate(n))))
        return whole

    def largest(self, limit: Int, predicate: Callable[[Int], Bool]) -> Int:
        # That it is the largest is not needed for any statement, and is left out.
        n = self.integer("largest")
        self.assume(n >= 0, either(n == 0, both(n <= limit, predicate(n))))
        return n

    def once(self, function: Function) -> Function:
        return function

    def earliest(self, state: State, key: Int) -> Int:
        _, block = self._earliest.get(id(state), (state, None))
        if block is None:
            block = z3.Function(self.names.fresh("earliest"), z3.IntSort(), z3.IntSort())
            self._earliest[id(state)] = (state, block)  # the state is kept, so that its id stays its own
            found = block

            def is_hit(k: Int) -> Bool:
                return either(
                    found(k) == NULL_BLOCK, both(state.is_block(found(k)), state.block_hash(found(k)) == k)
                )

            self.assumed.append(Claim("earliest", "keys", 1, is_hit, (found,)).assumed())
        return block(key)

    def opaque(self, name: str, definition: Callable[[], Any], *of: Int) -> Any:
        if self.engine.groups.is_one:
            return definition()
        sort = z3.IntSort() if name == "junction" else z3.BoolSort()
        return z3.Function(name, *[z3.IntSort()] * len(of), sort)(*of)

    def floor_div(self, tokens: Int, size: Int) -> Int:
        return arithmetic.floor(tokens, size)

    def ceil_div(self, tokens: Int, size: Int) -> Int:
        return arithmetic.ceil(tokens, size)

    def times(self, blocks: Int, size: Int) -> Int:
        return arithmetic.times(blocks, size)

    def span(self, request: Int, start: Int, end: Int) -> Int:
        return _span(request, start, end)

    def digest(self, *parts: Int) -> Int:
        return _key(*parts)

    def salt(self, request: Int) -> Int:
        return _salt(request)

    def lora(self, request: Int) -> Int:
        return _lora(request)


def as_term_int(value: Any) -> z3.ArithRef:
    """An integer as a Z3 term."""
    return z3.IntVal(value) if isinstance(value, int) else value


def _groups(kind: str, names: Names) -> tuple[Groups, list[Claim]]:
    """The groups of an engine of a kind, and what is known of them."""
    if kind != HYBRID:
        size = names.integer("block_size")
        window = names.integer("window") if kind == SLIDING_WINDOW else 1
        group = Group(size, WINDOW_KIND, window) if kind == SLIDING_WINDOW else Group(size)
        return one_group(group), [
            _fact("sizes", lambda: both(size >= 1, window >= 1)),
            arithmetic.at_zero(size),
        ]
    return _any_groups(names)


def _fact(name: str, body: Callable[..., Any], *triggers: Callable[..., Any]) -> Claim:
    return Claim(name, "groups", body.__code__.co_argcount, body, triggers)


def _any_groups(names: Names) -> tuple[Groups, list[Claim]]:
    """Any number of groups, each of any kind. Rows are pairs of a request and a group; nothing more is known
    of their numbers."""
    num, unit = names.integer("num_groups"), _SCHEDULER_BLOCK_SIZE
    kind, size, window, retained, owner, of_row = (
        names.function(name) for name in ("kind", "block_size", "window", "retained", "owner", "group")
    )
    drops, leads = (names.function(name, 1, z3.BoolSort()) for name in ("drops", "leads"))
    row = names.function("row", 2)

    def is_group(g: Int) -> Bool:
        return within(0, g, num)

    def numbers(g: Int) -> Bool:
        kinds = (kind(g) == known for known in PROVED_KINDS)
        return both(size(g) >= 1, window(g) >= 1, retained(g) >= 0, either(*kinds))

    def is_row(r: Int, g: Int) -> Bool:
        named = both(row(r, g) >= 0, owner(row(r, g)) == r, of_row(row(r, g)) == g)
        return implies(both(r >= 0, is_group(g)), named)

    def is_pair(q: Int) -> Bool:
        return implies(q >= 0, both(owner(q) >= 0, is_group(of_row(q)), row(owner(q), of_row(q)) == q))

    def is_multiple(n: Int, g: Int) -> Bool:
        tokens = arithmetic.times(n, unit)
        return arithmetic.times(arithmetic.floor(tokens, size(g)), size(g)) == tokens

    facts = [
        _fact("numbers", lambda: both(num >= 1, unit >= 1)),
        _fact("sizes", numbers, size, kind, window),
        arithmetic.at_zero(unit),
        _fact("zero", lambda g: arithmetic.at_zero(size(g)).body(), size),
        _fact("rows", is_row, row),
        _fact("pairs", is_pair, owner, of_row),
        _fact("multiples", is_multiple, lambda n, g: arithmetic.floor(arithmetic.times(n, unit), size(g))),
    ]
    return Groups(num, kind, size, window, drops, retained, leads, row, owner, of_row, PROVED_KINDS), facts


def count_is_bounded(counted: Callable[[Int], Int], low: Any, high: Any) -> z3.BoolRef:
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
