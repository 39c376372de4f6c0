"""The search reading: the model over small tables of Z3 terms, step by step from the idle pool.

Numbers are bit-vectors, wide enough for every number of the small engine, so that a SAT solver decides.

A field is a table of terms, named afresh when they are worked out, and looked up through a chain of
choices where the place is a term itself. Loops run over every iteration that a small pool allows, each
taken or not. A configuration is fixed; what is called, on whom, and with which amounts and tokens, is
Z3's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import z3

from slotproof.impl.protocol import Config
from slotproof.model.language.algebra import Bool, Function, Int, both, either, implies, ite, negate, within
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import Groups, some_groups
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, HAND, NULL_BLOCK, State, initial
from slotproof.proofs.campaign.calls import model_config, model_group
from slotproof.proofs.prove.claims import as_term

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "at": ("position",),
    "to_zero": ("group", "position"),
    "num_to_zero": ("group",),
    "held": ("position",),
    "table": ("row", "index"),
    "slot": ("row", "index"),
    "length": ("row",),
    "first": ("row",),
    "num_cached": ("row",),
    "holder_row": ("block", "reference"),
    "holder_index": ("block", "reference"),
}
"""What the arguments of a field are; of the others, a block or a request."""
_OF_REQUEST = ("status", "num_tokens", "computed", "in_flight", "prompt", "junction", "unwritten", "slots")
_DEFAULT: dict[str, Any] = {"rank": -1, "held_rank": -1, "evicted_idle": False}


@dataclass(frozen=True)
class Sizes:
    """How far tables reach."""

    blocks: int
    tokens: int
    """Tokens of a request, at most."""
    requests: int
    groups: int
    indices: int
    """Entries of a block table, at most."""

    @property
    def bits(self) -> int:
        """The width of every number: a key holds a binary digit for each token, and there is a sign."""
        return max(8, self.tokens + 6 + (self.groups - 1).bit_length())

    def domain(self, kind: str) -> range:
        """The values of a kind of variable."""
        return {
            "block": range(self.blocks),
            "position": range(self.blocks),
            "request": range(HAND, self.requests),
            "group": range(self.groups),
            "row": range(HAND, self.requests * self.groups),
            "index": range(self.indices),
            "reference": range(self.requests * self.groups + 1),
        }[kind]


@dataclass
class Tables:
    """The reading over tables of Z3 terms (see `model.language.reading`)."""

    sizes: Sizes
    num_loras: int = 1
    """A second one matters only where a key may take it for the first."""
    facts: list[z3.BoolRef] = field(default_factory=list)
    """What defines the named terms."""
    stuck: list[z3.BoolRef] = field(default_factory=list)
    """A step could not be carried out."""
    _path: list[z3.BoolRef] = field(default_factory=list)
    _names: int = 0

    def __post_init__(self) -> None:
        ids = range(self.sizes.requests)
        tokens = range(self.sizes.tokens)
        self.token_of = {r: [self.fresh(f"token{r}", 0, 1) for _ in tokens] for r in ids}
        self.salt_of = {r: self.fresh(f"salt{r}", 0, 1) for r in ids}
        self.lora_of = {r: self.fresh(f"lora{r}", 0, self.num_loras) for r in ids}

    def fresh(self, name: str, low: int, high: int) -> z3.BitVecRef:
        """A new unknown number from `low` to `high`."""
        self._names += 1
        unknown = z3.BitVec(f"{name}!{self._names}", self.sizes.bits)
        self.facts.append(z3.And(low <= unknown, unknown <= high))
        return unknown

    def named(self, term: Any) -> Any:
        """The same value under a short name."""
        if not z3.is_expr(term) or term.num_args() == 0:
            return term
        self._names += 1
        name = z3.Const(f"n!{self._names}", term.sort())
        self.facts.append(name == term)
        return name

    def function(self, field: str, definition: Function) -> Function:
        kinds = ARGUMENTS.get(field, ("request" if field in _OF_REQUEST else "block",))
        default = _DEFAULT.get(field, 0)
        cells: dict[tuple[int, ...], Any] = {}

        def look_up(*place: Any) -> Any:
            for n, (value, kind) in enumerate(zip(place, kinds, strict=True)):
                if not isinstance(value, int):
                    found = default
                    for v in self.sizes.domain(kind):
                        found = ite(value == v, look_up(*place[:n], v, *place[n + 1 :]), found)
                    return found
                if value not in self.sizes.domain(kind):
                    return default
            if place not in cells:
                cells[place] = self.named(definition(*place))
            return cells[place]

        return look_up

    def when(self, condition: Bool, then: Callable[[], State], otherwise: State) -> State:
        condition = _constant(condition)
        if condition is True:
            return then()
        if condition is False:
            return otherwise
        condition = self.named(condition)
        self._path.append(condition)
        try:
            taken = then()
        finally:
            self._path.pop()
        return self._merged(condition, taken, otherwise)

    def _merged(self, condition: z3.BoolRef, then: State, otherwise: State) -> State:
        fields: dict[str, Any] = {}
        for name in FIELDS:
            a, b = getattr(then, name), getattr(otherwise, name)
            if a is b:
                fields[name] = a
            elif name in FUNCTIONS:
                fields[name] = self.function(name, _choice(condition, a, b))
            else:
                fields[name] = self.named(ite(condition, a, b))
        return State(engine=then.engine, **fields)

    def loop(
        self, name: str, low: Int, high: Int, step: Callable[[State, Int], State], state: State, **of: Any
    ) -> State:
        for k in self.sizes.domain("group" if name.endswith("-groups") else "index"):
            state = self.when(within(low, k, high), partial(step, state, k), state)
        return state

    def require(self, step: str, state: State, condition: Bool) -> None:
        if condition is not True:
            self.stuck.append(as_term(both(*self._path, negate(condition))))

    def expect(self, statement: str, condition: Callable[[], Bool]) -> None:
        pass

    def count(self, low: Int, high: Int, predicate: Callable[..., Bool], *of: Int) -> Int:
        indices = self.sizes.domain("index")
        return sum(ite(both(within(low, i, high), predicate(*of, i)), 1, 0) for i in indices)

    def total(self, high: Int, amount: Callable[[Int], Int]) -> Int:
        return sum(ite(g < high, amount(g), 0) for g in self.sizes.domain("group"))

    def every(self, low: Int, high: Int, predicate: Callable[[Int], Bool]) -> Bool:
        if isinstance(low, int) and isinstance(high, int):
            return both(*(predicate(i) for i in range(low, high)))
        return both(*(implies(within(low, i, high), predicate(i)) for i in self.sizes.domain("index")))

    def largest(self, limit: Int, predicate: Callable[[Int], Bool]) -> Int:
        found: Int = 0
        for n in self.sizes.domain("index"):
            n = n + 1
            found = ite(both(n <= limit, predicate(n)), n, found)
        return self.named(found)

    def once(self, function: Function) -> Function:
        return function

    def earliest(self, state: State, key: Int) -> Int:
        found: Int = NULL_BLOCK
        when: Int = 0
        for b in range(1, self.sizes.blocks):
            better = both(state.block_hash(b) == key, either(found == NULL_BLOCK, state.stamp(b) < when))
            found, when = self.named(ite(better, b, found)), self.named(ite(better, state.stamp(b), when))
        return found

    def opaque(self, name: str, definition: Callable[[], Any], *of: Int) -> Any:
        return definition()

    def floor_div(self, tokens: Int, size: Int) -> Int:
        if isinstance(size, int) and (isinstance(tokens, int) or size == 1):
            return tokens // size if isinstance(tokens, int) else tokens
        # A bit-vector's division rounds towards zero, an integer's towards minus infinity.
        return ite(tokens >= 0, tokens / size, -((size - 1 - tokens) / size))

    def ceil_div(self, tokens: Int, size: Int) -> Int:
        return self.floor_div(tokens + size - 1, size)

    def times(self, blocks: Int, size: Int) -> Int:
        return blocks * size

    def span(self, request: Int, start: Int, end: Int) -> Int:
        # The tokens as binary digits, behind a leading one that tells their number.
        def digits(r: int, low: int, high: int) -> Int:
            tokens = self.token_of[r][low:high]
            return self.named(sum((t * 2**n for n, t in enumerate(tokens)), 2 ** max(0, high - low)))

        ends = range(0, self.sizes.tokens + 1)
        return _chosen(
            (request, start, end), (range(self.sizes.requests), ends, ends), lambda r, a, b: digits(r, a, b)
        )

    def digest(self, *parts: Int) -> Int:
        span, lora, salt, group = parts
        return ((span * 2 + lora) * 2 + salt) * self.sizes.groups + group + 1

    def salt(self, request: Int) -> Int:
        return _chosen((request,), (range(self.sizes.requests),), lambda r: self.salt_of[r])

    def lora(self, request: Int) -> Int:
        return _chosen((request,), (range(self.sizes.requests),), lambda r: self.lora_of[r])


def _chosen(values: tuple[Any, ...], domains: tuple[Iterable[int], ...], of: Callable[..., Any]) -> Any:
    """`of(*values)`, where a value that is a term is looked up among its domain."""
    for n, (value, domain) in enumerate(zip(values, domains, strict=True)):
        if not isinstance(value, int):
            found: Any = 0
            for v in domain:
                found = ite(value == v, _chosen((*values[:n], v, *values[n + 1 :]), domains, of), found)
            return found
        if value not in domain:
            return 0
    return of(*values)


def _choice(condition: z3.BoolRef, then: Function, otherwise: Function) -> Function:
    return lambda *values: ite(condition, then(*values), otherwise(*values))


def _constant(condition: Bool) -> Bool:
    """A Python truth value where the term is one."""
    if isinstance(condition, bool):
        return condition
    simple = z3.simplify(condition)
    return True if z3.is_true(simple) else False if z3.is_false(simple) else condition


def _groups(config: Config, sizes: Sizes) -> Groups:
    """The groups of a configuration, of which any may be asked for by a term."""
    known = some_groups([model_group(group) for group in config.all_groups])
    if known.is_one:
        return known
    domain = (sizes.domain("group"),)

    def of_group(function: Function) -> Function:
        return lambda g: _chosen((g,), domain, function)

    def whether(function: Function) -> Function:
        return lambda g: either(*(both(g == h, function(h)) for h in sizes.domain("group")))

    def of_row(function: Function) -> Function:
        return lambda row: _chosen((row,), (sizes.domain("row"),), function)

    return replace(
        known,
        kind=of_group(known.kind),
        block_size=of_group(known.block_size),
        window=of_group(known.window),
        drops=whether(known.drops),
        retained=of_group(known.retained),
        leads=whether(known.leads),
        owner=of_row(known.owner),
        of_row=of_row(known.of_row),
        kinds=tuple(sorted({known.kind(g) for g in range(known.num)})),
    )


def start(config: Config, rules: Rules, requests: int) -> tuple[Tables, State]:
    """The idle pool of a configuration."""
    groups = config.all_groups
    unit = config.scheduler_block_size
    indices = -(-config.max_model_len // min(group.block_size for group in groups))
    tokens = -(-config.max_model_len // unit) * unit
    sizes = Sizes(config.num_blocks, tokens, requests, len(groups), indices)
    read = Tables(sizes, num_loras=1 if rules.key_covers_lora_path else 2)
    engine = Engine(
        num_blocks=config.num_blocks,
        max_model_len=config.max_model_len,
        groups=_groups(config, read.sizes),
        scheduler_block_size=unit,
        hash_block_size=config.hash_block_size,
        enable_caching=config.enable_caching,
        watermark_blocks=config.watermark_blocks,
        max_in_flight_tokens=config.max_in_flight_tokens,
        rules=rules,
        read=read,
        **{name: model_config(config)[name] for name in ("num_reprefillable", "retention_interval")},
    )
    return read, initial(engine)
