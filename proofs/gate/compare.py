"""What the model expects an implementation to show, and where the implementation shows something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from itertools import zip_longest
from typing import Any

import msgspec

from slotproof.impl.protocol import Allocate, Call, ResetPrefixCache, Result, Snapshot, TakeNewBlockIds
from slotproof.model.language.engine import Engine
from slotproof.model.language.state import State
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import Outcome
from slotproof.model.system.allocate_slots import Answer
from slotproof.model.system.prefix_cache import Hits
from slotproof.proofs.output.text import block_names
from slotproof.proofs.output.words import counted, one_line
from slotproof.proofs.traces.trace import usage_of

USAGE_TOLERANCE = 1e-7
"""What a usage in single precision may be off by; one block of ten million would be as much."""
BLOCKS = ("result.hits", "result.new_blocks", "free_queue", "tables", "to_zero", "blocks to zero")
"""Fields whose values are blocks."""
SHOWN = 120
"""Characters of a value that a difference shows."""
WHOLE = 8
"""Entries of a list that is shown whole; of longer ones, those that differ, and no more than that."""


class Strictness(Enum):
    """How much of an implementation must be as in the model."""

    EXACT = "exact"
    """Every block by its number, every order."""
    COUNTS = "counts"
    """How many blocks, whichever they are: for one that numbers blocks otherwise, or frees in another order
    that evicts the same."""
    INVARIANTS = "invariants"
    """Nothing of the model: each answer and state of the implementation is held against the statements
    (`by_itself/consistency.py`), and the calls follow its own answers (`by_itself/follow.py`)."""


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not as it should be."""

    field: str
    """What was compared, such as `free_queue` or `result.granted`."""
    expected: str
    got: str
    statement: str = ""
    """The statement that falls by it, where one is known."""

    @property
    def line(self) -> str:
        """The difference as one line for people."""
        where = f"{self.statement}: {self.field}" if self.statement else self.field
        return f"{where}: expected {self.expected}, got {self.got}"


def difference(field: str, expected: object, got: object) -> Difference:
    """A difference between two values, each shown on one short line."""
    return Difference(field, *(_short(_named(field, value)) for value in (expected, got)))


def _named(field: str, value: object) -> object:
    """Blocks by their names, whether a list of them or one entry."""
    if not field.startswith(BLOCKS) or not isinstance(value, int | tuple | list):
        return value
    return block_names(value if isinstance(value, tuple | list) else (value,))


def list_difference(field: str, expected: Sequence[Any], got: Sequence[Any]) -> Difference:
    """A difference between two lists: whole if they are short, else the entries that differ, by index."""
    longest = max(len(expected), len(got))
    if longest <= WHOLE:
        return difference(field, expected, got)
    pairs = list(zip_longest(expected, got, fillvalue="nothing"))
    differ = [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
    more = f" and {len(differ) - WHOLE} more" if len(differ) > WHOLE else ""
    texts = (
        " ".join(f"[{i}] {_named(field, pairs[i][side])}" for i in differ[:WHOLE]) + more for side in (0, 1)
    )
    return difference(field, *texts)


def _short(value: object) -> str:
    text = one_line(value if isinstance(value, str) else repr(value))
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def expected_result(before: State, call: Call, outcome: Outcome) -> Result:
    """What the protocol answers for a call that the model took from the state `before`."""
    if isinstance(call, TakeNewBlockIds):
        return Result(new_blocks=to_zero(before))
    if isinstance(call, ResetPrefixCache):
        return Result(granted=bool(outcome.granted))
    if not isinstance(call, Allocate):
        return Result()
    hits, answer = hit_blocks(before.engine, outcome.hits), outcome.answer
    if answer is None or not outcome.granted:
        return Result(granted=False, hits=hits)
    return Result(hits=hits, new_blocks=new_blocks(outcome.state, call.request, answer))


def hit_blocks(engine: Engine, hits: Hits) -> tuple[int, ...]:
    """The blocks of a hit, group after group."""
    return tuple([hits.at(g, i) for g in range(engine.groups.num) for i in range(hits.num(g))])


def new_blocks(s: State, request: int, answer: Answer) -> tuple[int, ...]:
    """The blocks that a grant returns, group after group."""
    rows = [(s.engine.row(request, g), g) for g in range(s.engine.groups.num)]
    return tuple([s.table(row, i) for row, g in rows for i in range(answer.new_low(g), answer.new_high(g))])


def to_zero(s: State) -> tuple[int, ...]:
    """The blocks to zero, group after group."""
    return tuple([s.to_zero(g, i) for g in range(s.engine.groups.num) for i in range(s.num_to_zero(g))])


def expected_snapshot(running: Running) -> Snapshot:
    """The model's state as the protocol shows it."""
    s = running.state
    blocks = range(1, running.engine.num_blocks)
    lengths = {row: s.length(row) for row in running.rows}
    return Snapshot(
        free_queue=tuple([s.at(i) for i in range(s.num_free)]),
        ref_cnt=(0, *[s.ref_cnt(b) for b in blocks]),
        hashes=(None, *[s.block_hash(b) or None for b in blocks]),
        tables={r: tuple([s.table(r, i) for i in range(n)]) for r, n in lengths.items() if n},
        usage=usage_of(running.engine.num_blocks, s.num_free),
        to_zero=to_zero(s),
        copies=_copies(s),
    )


def _copies(s: State) -> tuple[tuple[int, ...], ...]:
    by_key: dict[int, list[int]] = {}
    hashed = [b for b in range(1, s.engine.num_blocks) if s.block_hash(b)]
    for b in sorted(hashed, key=s.stamp):
        by_key.setdefault(s.block_hash(b), []).append(b)
    return tuple(sorted(map(tuple, by_key.values())))


class KeyMatch:
    """Which key of the implementation is which of the model's: one to one, for the life of an allocator."""

    def __init__(self) -> None:
        self._to_got: dict[Any, Any] = {}
        self._to_expected: dict[Any, Any] = {}
        self._last: tuple[Any, Any] = ((), ())

    def differences(self, expected: tuple[Any, ...], got: tuple[Any, ...]) -> list[Difference]:
        """Blocks hashed on one side only, and keys that are equal on one side only."""
        if (expected, got) == self._last:
            return []
        found = []
        for block, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
            found += self.of_block(block, ours, theirs)
        self._last = (expected, got)
        return found

    def of_block(self, block: int, ours: Any, theirs: Any) -> list[Difference]:
        """A block hashed on one side only, or by a key that is equal to another on one side only."""
        if ours is None and theirs is None:
            return []
        if ours is None or theirs is None:
            state = ("no hash", "a hash") if ours is None else ("a hash", "no hash")
            return [Difference(f"hashes[{block}]", *state)]
        if self._to_got.setdefault(ours, theirs) != theirs:
            return [Difference(f"hashes[{block}]", "the key of equal tokens before", "another key")]
        if self._to_expected.setdefault(theirs, ours) != ours:
            return [Difference(f"hashes[{block}]", "a key of its own", "the key of other tokens")]
        return []

    def keep(self, keys: Collection[Any]) -> None:
        """Forget every key of the model but these."""
        self._to_got = {ours: theirs for ours, theirs in self._to_got.items() if ours in keys}
        self._to_expected = {theirs: ours for ours, theirs in self._to_got.items()}


def result_differences(
    strictness: Strictness, expected: Result, got: Result, hidden: frozenset[str] = frozenset()
) -> list[Difference]:
    """Where a call's answer is not the model's.

    Args:
        hidden: fields that are not compared.
    """
    if expected == got:
        return []
    found = []
    if expected.granted != got.granted:
        found.append(difference("result.granted", expected.granted, got.granted))
    for field in ("hits", "new_blocks"):
        ours, theirs = getattr(expected, field), getattr(got, field)
        if field in hidden:
            continue
        if strictness is Strictness.COUNTS:
            found += _count(f"result.{field}", ours, theirs)
        elif ours != theirs:
            found.append(list_difference(f"result.{field}", ours, theirs))
    return found


def snapshot_differences(
    strictness: Strictness,
    expected: Snapshot,
    got: Snapshot,
    keys: KeyMatch,
    hidden: frozenset[str] = frozenset(),
) -> list[Difference]:
    """Where an implementation's state is not as the strictness asks.

    Args:
        expected: the model's state.
        keys: which keys were matched in the snapshots before; `EXACT` adds those of this one.
        hidden: fields that are not compared.
    """
    if hidden:  # as if it showed what the model does
        as_expected = {name: getattr(expected, name) for name in Snapshot.__struct_fields__ if name in hidden}
        got = msgspec.structs.replace(got, **as_expected)
    return list(_exact(expected, got, keys) if strictness is Strictness.EXACT else _counts(expected, got))


def _exact(expected: Snapshot, got: Snapshot, keys: KeyMatch) -> Iterator[Difference]:
    for field in ("free_queue", "ref_cnt", "tables", "to_zero"):
        ours, theirs = getattr(expected, field), getattr(got, field)
        if ours != theirs:
            if isinstance(ours, dict):
                yield _tables(ours, theirs)
            else:
                yield list_difference(field, ours, theirs)
    if len(expected.hashes) == len(got.hashes):
        yield from keys.differences(expected.hashes, got.hashes)
    else:
        yield _number("hashes", len(expected.hashes), len(got.hashes))
    if None not in (expected.copies, got.copies) and expected.copies != got.copies:
        yield _copies_difference(expected.copies or (), got.copies or ())
    yield from _usage(expected.usage, got.usage)


def _copies_difference(ours: tuple[tuple[int, ...], ...], theirs: tuple[tuple[int, ...], ...]) -> Difference:
    """The keys whose blocks are others, on either side."""
    sides = (set(ours) - set(theirs), set(theirs) - set(ours))
    told = [", ".join(block_names(blocks) for blocks in sorted(side)) or "none of them" for side in sides]
    return difference("copies under a key", *told)


def _tables(ours: dict[int, tuple[int, ...]], theirs: dict[int, tuple[int, ...]]) -> Difference:
    """The first table that differs."""
    r = next(r for r in sorted({*ours, *theirs}) if ours.get(r) != theirs.get(r))
    if r in ours and r in theirs:
        return list_difference(f"tables[{r}]", ours[r], theirs[r])
    return difference(f"tables[{r}]", ours.get(r, "no table"), theirs.get(r, "no table"))


def _usage(expected: float, got: float) -> Iterator[Difference]:
    if not abs(expected - got) <= USAGE_TOLERANCE:  # a NaN differs too
        yield difference("usage", expected, got)


def _counts(expected: Snapshot, got: Snapshot) -> Iterator[Difference]:
    for field in ("free_queue", "to_zero"):
        yield from _count(field, getattr(expected, field), getattr(got, field))
    ours, theirs = (Counter(snapshot.ref_cnt[1:]) for snapshot in (expected, got))
    if ours != theirs:
        yield difference("blocks by ref_cnt", dict(sorted(ours.items())), dict(sorted(theirs.items())))
    hashed = [sum(key is not None for key in snapshot.hashes) for snapshot in (expected, got)]
    if hashed[0] != hashed[1]:
        yield _number("hashes", *hashed)
    for r in sorted({*expected.tables, *got.tables}):
        yield from _count(f"tables[{r}]", expected.tables.get(r, ()), got.tables.get(r, ()))
    yield from _usage(expected.usage, got.usage)


def _count(field: str, ours: tuple[int, ...], theirs: tuple[int, ...]) -> Iterator[Difference]:
    """Two lists of blocks are alike if they have as many entries and as many null blocks."""
    pair = [(len(blocks), blocks.count(0)) for blocks in (ours, theirs)]
    if pair[0] != pair[1]:
        texts = [counted(n, "block") + (f" ({nulls} null)" if nulls else "") for n, nulls in pair]
        yield difference(field, *texts)


def _number(field: str, ours: int, theirs: int) -> Difference:
    return difference(field, counted(ours, "block"), counted(theirs, "block"))
