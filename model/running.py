"""The running reading: the model over Python integers, the oracle of the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from slotproof.model.language.algebra import Function
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import some_groups
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.language.state import FUNCTIONS, GHOSTS, HAND, NULL_BLOCK, State, initial
from slotproof.model.scheduling.caller import ACTIONS, Outcome
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.prefix_cache import Hits, hits_for


class ContractError(ValueError):
    """The caller asked for what its contract forbids; `broken` names the preconditions."""

    def __init__(self, call: str, broken: list[str]) -> None:
        super().__init__(f"{call}: outside the caller's contract: {', '.join(broken)}")
        self.broken = broken


class Stuck(RuntimeError):
    """A step could not be carried out: a pop, touch, free or hash failed (`what`) half way through a call."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} failed half way through a call")
        self.what = what


@dataclass(frozen=True)
class Text:
    """What a request is made of."""

    tokens: tuple[int, ...]
    salt: int = 0
    lora: int = 0


_NOBODY = Text(())
"""What a request that never came is made of: rules may look at it, none decides by it."""


class _Lazy(dict[Any, Any]):
    """A function's values, worked out when first asked."""

    def __init__(self, definition: Function) -> None:
        self.definition = definition

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self.definition(key)
        return value


class _Column(dict[Any, Any]):
    """A function given by its values, with a default elsewhere."""

    default: Any = 0

    def __missing__(self, key: Any) -> Any:
        return self.default


def _constant(value: Any) -> Function:
    return lambda *_: value


_ABSENT = _constant(0)
_BY_BLOCK = {
    "rank",
    "ref_cnt",
    "block_hash",
    "stamp",
    "held_rank",
    "writer_row",
    "writer_index",
    "evicted_idle",
    "written",
}
_BY_ROW = {"length", "first", "num_cached"}
_BY_REQUEST = {"status", "num_tokens", "computed", "in_flight", "unwritten"}
_OUTSIDE: dict[str, Any] = {"rank": -1, "held_rank": -1, "evicted_idle": False}


class Integers:
    """The reading over Python integers (see `model.language.reading`).

    `watch`, if given, sees the state in which each step begins.
    """

    def __init__(self, num_blocks: int, ghosts: bool) -> None:
        self.num_blocks = num_blocks
        self.ghosts = ghosts
        self.texts: dict[int, Text] = {}
        self.watch: Callable[[str, State], None] | None = None
        self._ids: dict[Any, int] = {}

    def function(self, field: str, definition: Function) -> Function:
        if field in GHOSTS and not self.ghosts:
            return _ABSENT
        if FUNCTIONS[field] == 1:
            return _Lazy(definition).__getitem__
        pairs = _Lazy(lambda pair: definition(*pair))
        return lambda a, b: pairs[a, b]

    def when(self, condition: bool, then: Callable[[], State], otherwise: State) -> State:
        return then() if condition else otherwise

    def loop(
        self, name: str, low: int, high: int, step: Callable[[State, int], State], state: State, **of: Any
    ) -> State:
        for k in range(low, high):
            state = step(state, k)
        return state

    def require(self, step: str, state: State, condition: bool) -> None:
        if self.watch is not None:
            self.watch(step, state)
        if not condition:
            raise Stuck(step)

    def expect(self, statement: str, condition: Callable[[], bool]) -> None:
        pass

    def count(self, low: int, high: int, predicate: Callable[..., bool], *of: int) -> int:
        return sum(1 for i in range(low, high) if predicate(*of, i))

    def total(self, high: int, amount: Callable[[int], int]) -> int:
        return sum(amount(i) for i in range(high))

    def every(self, low: int, high: int, predicate: Callable[[int], bool]) -> bool:
        return all(predicate(i) for i in range(low, high))

    def largest(self, limit: int, predicate: Callable[[int], bool]) -> int:
        return next((n for n in range(limit, 0, -1) if predicate(n)), 0)

    def earliest(self, state: State, key: int) -> int:
        found = (b for b in range(1, self.num_blocks) if state.block_hash(b) == key)
        return min(found, key=state.stamp, default=NULL_BLOCK)

    def floor_div(self, tokens: int, size: int) -> int:
        return tokens // size

    def ceil_div(self, tokens: int, size: int) -> int:
        return -(-tokens // size)

    def times(self, blocks: int, size: int) -> int:
        return blocks * size

    def span(self, request: int, start: int, end: int) -> int:
        tokens = self.texts.get(request, _NOBODY).tokens
        known: Any = tokens[start:end]
        if end > len(tokens):  # a guess, equal to nobody else's
            known = (known, request, start, end)
        return self._id(known)

    def digest(self, *parts: int) -> int:
        return self._id(parts)

    def salt(self, request: int) -> int:
        return self.texts.get(request, _NOBODY).salt

    def lora(self, request: int) -> int:
        return self.texts.get(request, _NOBODY).lora

    def _id(self, value: Any) -> int:
        return self._ids.setdefault(value, len(self._ids) + 1)


class Running:
    """The model, run: a state and what its requests are made of.

    Args are the fields of a configuration, in blocks and tokens as in `Engine`; `block_size` and
    `sliding_window` are the first group's, `groups` those of the others. With `ghosts` the ghost fields are
    kept, so that the invariants can be evaluated.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        sliding_window: int | None = None,
        groups: Sequence[tuple[int, int | None]] = (),
        enable_caching: bool = True,
        watermark_blocks: int = 0,
        max_in_flight_tokens: int = 1 << 30,
        behaviours: tuple[str, ...] = (),
        rules: Rules | None = None,
        ghosts: bool = False,
    ) -> None:
        self.read = Integers(num_blocks, ghosts)
        all_groups = ((block_size, sliding_window), *groups)
        self.engine = Engine(
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            groups=some_groups(all_groups),
            scheduler_block_size=lcm(*(size for size, _ in all_groups)),
            enable_caching=enable_caching,
            watermark_blocks=watermark_blocks,
            max_in_flight_tokens=max_in_flight_tokens,
            rules=(Rules() if rules is None else rules).without(*(b for b in behaviours if b in RULES)),
            read=self.read,
            behaviours=frozenset(behaviours),
        )
        self.state = self._settle(initial(self.engine))

    @property
    def requests(self) -> list[int]:
        """Every request that ever arrived, in order."""
        return list(self.read.texts)

    @property
    def rows(self) -> list[int]:
        """The rows of every request that ever arrived, in order."""
        engine = self.engine
        return [engine.row(r, g) for r in self.read.texts for g in range(engine.groups.num)]

    def hits(self, request: int, skip_cache: bool = False) -> Hits:
        """What a lookup finds for the request now."""
        return hits_for(self.state, request, skip_cache)

    def step(self, call: str, **fields: Any) -> Outcome:
        """Take an action, named and with the fields of the protocol's call.

        Raises:
            ContractError: the contract forbids it; nothing has changed.
            Stuck: with a rule off, the call failed half way; nothing has changed.
        """
        action = ACTIONS[call]
        arguments = self._arguments(call, fields)
        contract = action.contract(self.state, **arguments)
        broken = [name for name, holds in contract.items() if not holds]
        if broken:
            raise ContractError(call, broken)
        texts = self.read.texts
        if call == "add_request":
            text = Text(fields["tokens"], fields.get("salt", 0), fields.get("lora", 0))
            self.read.texts = {**texts, fields["request"]: text}
        elif call == "complete" and fields.get("sampled"):
            text = texts[fields["request"]]
            grown = replace(text, tokens=text.tokens + tuple(fields["sampled"]))
            self.read.texts = {**texts, fields["request"]: grown}
        try:
            outcome = action.apply(self.state, **arguments)
            self.state = self._settle(outcome.state)
        except Stuck:
            self.read.texts = texts
            raise
        return replace(outcome, state=self.state)

    def take(self, state: State) -> None:
        """A state that the pool's steps led to is the state now."""
        self.state = self._settle(state)

    def is_careful(self, call: str, **fields: Any) -> bool:
        """Whether the caller takes the care that *published-is-written* needs of it (`Action.care`)."""
        return all(ACTIONS[call].care(self.state, **self._arguments(call, fields)).values())

    def _arguments(self, call: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The model's arguments: token counts for tokens, a hit for a lookup, a set as a function."""
        if call == "add_request":
            return {"request": fields["request"], "num_tokens": len(fields["tokens"])}
        if call == "complete":
            return {
                "request": fields["request"],
                "processed": fields["processed"],
                "rejected": fields.get("rejected", 0),
                "sampled": len(fields.get("sampled", ())),
            }
        if call == "cache_blocks":
            request, tokens = fields["request"], fields.get("tokens")
            return {
                "request": request,
                "num_tokens": self.state.computed(request) if tokens is None else tokens,
            }
        if call == "evict_blocks":
            return {"named": frozenset(fields["blocks"]).__contains__}
        if call == "allocate":
            asked = dict(fields)
            request = asked.pop("request")
            hits = self.hits(request, asked.pop("skip_cache", False))
            return {"request": request, "ask": Ask(hits=hits, **asked)}
        return fields

    def _settle(self, s: State) -> State:
        """The same state, its functions worked out into tables."""
        changes: dict[str, Function] = {}
        for field in FUNCTIONS:
            function = getattr(s, field)
            if function is _ABSENT or isinstance(getattr(function, "__self__", None), _Column):
                continue
            if getattr(function, "settled", False):
                continue
            changes[field] = self._tabulate(s, field, function)
        if not changes:
            return s
        settled = object.__new__(State)
        settled.__dict__.update(s.__dict__)
        settled.__dict__.update(changes)
        return settled

    def _tabulate(self, s: State, field: str, function: Function) -> Function:
        if FUNCTIONS[field] == 1:
            column = _Column((x, function(x)) for x in self._domain(s, field))
            column.default = _OUTSIDE.get(field, 0)
            return column.__getitem__
        pairs = _Column((pair, function(*pair)) for pair in self._pairs(s, field))

        def look_up(a: int, b: int) -> Any:
            return pairs[a, b]

        look_up.settled = True  # type: ignore[attr-defined]
        return look_up

    def _domain(self, s: State, field: str) -> Iterable[int]:
        if field in _BY_BLOCK:
            return range(self.read.num_blocks)
        if field in _BY_ROW:
            return (HAND, *self.rows)
        if field in _BY_REQUEST:
            return (HAND, *self.read.texts)
        if field == "num_to_zero":
            return range(self.engine.groups.num)
        sizes = {"at": s.num_free, "held": s.num_held}
        return range(max(0, sizes[field]))

    def _pairs(self, s: State, field: str) -> Iterable[tuple[int, int]]:
        if field in ("table", "slot"):
            return ((row, i) for row in self.rows for i in range(s.length(row)))
        if field == "to_zero":
            return ((g, j) for g in range(self.engine.groups.num) for j in range(s.num_to_zero(g)))
        return ((b, k) for b in range(self.read.num_blocks) for k in range(s.ref_cnt(b)))
