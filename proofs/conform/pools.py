"""A pool's methods, on any contents of a small pool: what each does to queue, references and prefix cache.

Blocks are alike, so the free ones are 1, 2, … in the order of the queue, the others held. Which blocks are
hashed, under which keys, and in which order those of one key were hashed, is tried in every way; how often a
block is referenced is any number, a Z3 term. Every method is called in every way that the model allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import z3

from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import Group, one_group
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import ABSENT, HAND, NO_HASH, State, initial
from slotproof.model.system.pool import (
    evict_blocks,
    free_blocks,
    publish,
    reset_prefix_cache,
    take,
    touch,
)
from slotproof.proofs.conform.paths import Path

Lists = tuple[tuple[int, ...], ...]
"""The hashed blocks by key, those of one key in the order in which they were hashed."""


@dataclass(frozen=True)
class Contents:
    """What a pool holds. Key k, counted from 1, is that of `lists[k - 1]`."""

    num_blocks: int
    """Without the null block."""
    num_free: int
    lists: Lists

    @property
    def keys(self) -> dict[int, int]:
        """The key of each hashed block."""
        return {block: k for k, blocks in enumerate(self.lists, 1) for block in blocks}

    def __str__(self) -> str:
        free = " ".join(map(str, range(1, self.num_free + 1))) or "none"
        hashed = "; ".join(" ".join(map(str, blocks)) for blocks in self.lists) or "none"
        return f"{self.num_blocks} blocks, free {free}, hashed by key {hashed}"


@dataclass(frozen=True)
class PoolCall:
    """A method by the model's name, and what it is given: blocks, a number, or (block, key) pairs."""

    name: str
    argument: Any

    def __str__(self) -> str:
        return f"{self.name}({self.argument})"


@dataclass(frozen=True)
class Seen:
    """A pool after a call, as the model and an implementation are compared."""

    result: Any
    """Blocks taken, whether a reset was done, or None; "refused" for a call that cannot be."""
    queue: tuple[int, ...]
    references: Mapping[int, Any]
    keys: Mapping[int, int]
    lists: frozenset[tuple[int, tuple[int, ...]]]
    """(key, its blocks): the first is the hit."""


REFUSED = "refused"


class Refused(Exception):
    """The model says that the step cannot be."""


def contents(num_blocks: int) -> Iterator[Contents]:
    """Every pool of so many blocks, up to their names."""
    for num_free in range(num_blocks + 1):
        for lists in _arrangements(tuple(range(1, num_blocks + 1))):
            yield Contents(num_blocks, num_free, lists)


def _arrangements(blocks: tuple[int, ...]) -> Iterator[Lists]:
    if not blocks:
        yield ()
        return
    *rest, block = blocks
    for lists in _arrangements(tuple(rest)):
        yield lists
        yield (*lists, (block,))
        for n, one in enumerate(lists):
            for place in range(len(one) + 1):
                yield (*lists[:n], (*one[:place], block, *one[place:]), *lists[n + 1 :])


def calls(pool: Contents) -> Iterator[PoolCall]:
    """Every call that a manager may make: hits are hashed, what is freed is held, what is hashed is held and
    has no hash. One block more than is free is asked for as well."""
    blocks = range(1, pool.num_blocks + 1)
    held = [block for block in blocks if block > pool.num_free]
    for count in range(pool.num_free + 2):
        yield PoolCall("get_new_blocks", count)
    for some in _orders(list(pool.keys)):
        yield PoolCall("touch", some)
    for some in _orders(held):
        yield PoolCall("free_blocks", some)
    for named in product((False, True), repeat=pool.num_blocks):
        yield PoolCall(
            "evict_blocks", tuple(b for b, is_named in zip(blocks, named, strict=True) if is_named)
        )
    yield PoolCall("reset_prefix_cache", ())
    for some in _orders([block for block in held if block not in pool.keys]):
        for keys in product(range(1, len(pool.lists) + len(some) + 1), repeat=len(some)):
            if _is_new_in_order(keys, len(pool.lists)):
                yield PoolCall("cache_full_blocks", tuple(zip(some, keys, strict=True)))


def _orders(blocks: list[int]) -> Iterator[tuple[int, ...]]:
    for count in range(len(blocks) + 1):
        yield from permutations(blocks, count)


def _is_new_in_order(keys: tuple[int, ...], known: int) -> bool:
    """Keys that are not in the pool yet are alike: the first of them is the next number."""
    for key in keys:
        if key > known + 1:
            return False
        known = max(known, key)
    return True


class _Small:
    """The reading of a small pool: numbers, and references that are terms. Where these decide, the run forks
    (see `model.language.reading`)."""

    def __init__(self, keys: tuple[int, ...]) -> None:
        self._keys = keys

    def function(self, field: str, definition: Callable[..., Any]) -> Callable[..., Any]:
        return definition

    def when(self, condition: Any, then: Callable[[], State], otherwise: State) -> State:
        return then() if Path.current().decide(condition) else otherwise

    def loop(
        self, name: str, low: int, high: int, step: Callable[..., State], state: State, **_: Any
    ) -> State:
        for i in range(low, high):
            state = step(state, i)
        return state

    def require(self, step: str, state: State, condition: Any) -> None:
        if not Path.current().decide(condition):
            raise Refused(step)

    def expect(self, statement: str, condition: Callable[[], Any]) -> None:
        pass

    def times(self, blocks: int, size: int) -> int:
        return blocks * size

    def span(self, request: int, start: int, end: int) -> int:
        return end

    def digest(self, span: int, *_: int) -> int:
        return self._keys[span - 1]

    def salt(self, request: int) -> int:
        return 0

    lora = salt


def references(pool: Contents) -> dict[int, Any]:
    """How often each held block is referenced: any number."""
    return {block: z3.Int(f"references_{block}") for block in range(pool.num_free + 1, pool.num_blocks + 1)}


def expected(pool: Contents, references: Mapping[int, Any], call: PoolCall) -> Seen:
    """What the model does, on the path under way."""
    keys = tuple(key for _, key in call.argument) if call.name == "cache_full_blocks" else ()
    s = _state(pool, references, _Small(keys))
    try:
        after, result = _step(s, call)
    except Refused:
        after, result = s, REFUSED
    blocks = range(1, pool.num_blocks + 1)
    found = {b: after.block_hash(b) for b in blocks if after.block_hash(b) != NO_HASH}
    lists = {
        key: tuple(sorted((b for b in found if found[b] == key), key=after.stamp)) for key in found.values()
    }
    return Seen(
        result,
        tuple(after.at(i) for i in range(after.num_free)),
        {b: after.ref_cnt(b) for b in blocks},
        found,
        frozenset(lists.items()),
    )


def _state(pool: Contents, references: Mapping[int, Any], read: Any) -> State:
    n, free, keys = pool.num_blocks, pool.num_free, pool.keys
    stamps = {block: m for m, block in enumerate((b for one in pool.lists for b in one), 1)}
    engine = Engine(
        num_blocks=n + 1,
        max_model_len=n,
        groups=one_group(Group(block_size=1)),
        scheduler_block_size=1,
        hash_block_size=1,
        enable_caching=True,
        watermark_blocks=0,
        max_in_flight_tokens=n,
        rules=Rules(),
        read=read,
    )
    return initial(engine).replace(
        num_free=free,
        at=lambda i: i + 1,
        rank=lambda b: b - 1 if 1 <= b <= free else ABSENT,
        ref_cnt=lambda b: references.get(b, 0),
        block_hash=lambda b: keys.get(b, NO_HASH),
        stamp=lambda b: stamps.get(b, 0),
        clock=len(stamps) + 1,
        num_tokens=lambda r: n,
    )


def _step(s: State, call: PoolCall) -> tuple[State, Any]:
    given = call.argument
    if call.name == "get_new_blocks":
        t = take(s, 0, given)
        return t, tuple(t.table(0, i) for i in range(given))
    if call.name == "touch":
        for block in given:
            s = touch(s, 0, block)
        return s, None
    if call.name == "free_blocks":
        in_hand = s.replace(
            table=lambda r, i: given[i] if r == HAND else 0, length=lambda r: len(given) if r == HAND else 0
        )
        return free_blocks(in_hand, 0), None
    if call.name == "evict_blocks":
        return evict_blocks(s, lambda b: b in given), None
    if call.name == "reset_prefix_cache":
        return reset_prefix_cache(s), s.num_held == 0
    s = s.replace(table=lambda r, i: given[i][0], length=lambda r: len(given) if r == 0 else 0)
    for i in range(len(given)):
        s = publish(s, 0, i, True)
    return s, None
