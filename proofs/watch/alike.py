"""Whether a live manager shows what the model says, by looking where a call changed something.

After each call: every place that the model changed, and as many others in turn, so that a place is looked at
again and again whoever wrote it. All of it now and then, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from slotproof.impl.protocol import Snapshot
from slotproof.model.integers.sparse import Sparse
from slotproof.model.language.state import HAND
from slotproof.model.running import Running
from slotproof.proofs.gate.compare import (
    USAGE_TOLERANCE,
    Difference,
    KeyMatch,
    Strictness,
    difference,
    snapshot_differences,
)
from slotproof.proofs.traces.trace import usage_of
from slotproof.proofs.watch.look import expected

IN_TURN = 16
"""Blocks that are looked at after each call, though the model did not change them."""
WHOLE_EVERY = 4096
"""Calls after which all is looked at."""
WHOLE_UP_TO = 2048
"""Blocks of a pool that is looked at in full before each call, for what was written since the last."""


class Shown(Protocol):
    """What a manager shows: `impl/vllm/live/view.py` has the meaning of each."""

    @property
    def num_free(self) -> int: ...
    @property
    def usage(self) -> float: ...
    @property
    def requests(self) -> set[str]: ...
    def ref_cnt(self, block: int) -> int: ...
    def key(self, block: int) -> Any: ...
    def is_free(self, block: int) -> bool: ...
    def front(self, n: int) -> list[int]: ...
    def back(self, n: int) -> list[int]: ...
    def length(self, request: str, group: int) -> int: ...
    def entry(self, request: str, group: int, i: int) -> int: ...
    def to_zero(self, group: int) -> Sequence[int]: ...
    def whole(self, number: Callable[[str], int]) -> Snapshot: ...


class Alike:
    """Compares one manager with the model that follows it.

    Args:
        shown: What the manager shows.
        running: The model.
        names: The requests' ids, by the model's number.
        zeroing: Whether the blocks to zero are compared.
    """

    def __init__(self, shown: Shown, running: Running, names: dict[int, str], zeroing: bool) -> None:
        assert isinstance(running.read, Sparse)
        self._running = running
        self._read = running.read
        self._shown = shown
        self._names = names
        self._zeroing = zeroing
        self._keys = KeyMatch()
        self._turn = 1
        self._calls = 0

    def after_call(self) -> list[Difference]:
        """Where the manager shows something else than the model, after a call of both."""
        self._calls += 1
        if self._calls % WHOLE_EVERY == 0 or self._read.overall - {"num_to_zero", "to_zero"}:
            return self.whole()
        return list(self._changed())

    def keys_in_use(self) -> frozenset[int]:
        """The keys of the model's blocks; of all others it is forgotten which of the manager's they are."""
        s = self._running.state
        keys = frozenset(s.block_hash(b) for b in range(1, s.engine.num_blocks))
        self._keys.keep(keys)
        return keys

    def is_as_before(self) -> bool:
        """Nothing has changed since the last call; of a large pool, nothing that is seen at a glance."""
        s, shown = self._running.state, self._shown
        if s.engine.num_blocks <= WHOLE_UP_TO:
            return not self.whole()
        ends = [s.at(0)] if s.num_free else []
        return shown.num_free == s.num_free and shown.front(1) == ends

    def snapshot(self) -> Snapshot | None:
        """What it shows now, by the model's numbers; None if it shows requests that have none."""
        numbers = {name: r for r, name in self._names.items()}
        known = self._shown.requests <= numbers.keys()
        return self._shown.whole(numbers.__getitem__) if known else None

    def whole(self) -> list[Difference]:
        """All of it."""
        got = self.snapshot()
        if got is None:
            strangers = self._shown.requests - set(self._names.values())
            return [difference("tables", "none", f"a table of {min(strangers)}")]
        hidden = frozenset() if self._zeroing else frozenset({"to_zero"})
        return snapshot_differences(
            Strictness.EXACT, expected(self._running, self._names), got, self._keys, hidden
        )

    def _changed(self) -> Iterator[Difference]:
        s, shown, changed = self._running.state, self._shown, self._read.changed
        if shown.num_free != s.num_free:
            yield difference("the free blocks", s.num_free, shown.num_free)
            return
        blocks = {b for f in ("at", "ref_cnt", "block_hash") for b in changed.get(f, ())}
        blocks.update(self._in_turn())
        for b in sorted(blocks):
            yield from self._block(b)
        moved = len(changed.get("at", ()))
        if moved:
            yield from self._ends(moved)
        for row in changed.get("length", ()):
            yield from self._length(row)
        for row, i in changed.get("table", ()):
            yield from self._entry(row, i)
        usage = usage_of(s.engine.num_blocks, s.num_free)
        if not abs(usage - shown.usage) <= USAGE_TOLERANCE:
            yield difference("usage", usage, shown.usage)
        if self._zeroing:
            yield from self._to_zero()

    def _in_turn(self) -> range:
        num = self._running.engine.num_blocks
        start = self._turn
        self._turn = start + IN_TURN if start + IN_TURN < num else 1
        return range(start, min(start + IN_TURN, num))

    def _block(self, b: int) -> Iterator[Difference]:
        s, shown = self._running.state, self._shown
        if b == 0:
            return
        if s.ref_cnt(b) != shown.ref_cnt(b):
            yield difference(f"ref_cnt[{b}]", s.ref_cnt(b), shown.ref_cnt(b))
        if (b in self._read.free_blocks(s)) != shown.is_free(b):
            state = ("not free", "free") if shown.is_free(b) else ("free", "not free")
            yield Difference(f"block {b}", *state, "free-count")
        yield from self._keys.of_block(b, s.block_hash(b) or None, shown.key(b))

    def _ends(self, moved: int) -> Iterator[Difference]:
        """The ends of the free queue, as far as so many blocks reach, and one further."""
        s, n = self._running.state, min(moved + 1, self._running.state.num_free)
        ours = [s.at(i) for i in range(n)]
        if ours != self._shown.front(n):
            yield difference("free_queue, from its front", tuple(ours), tuple(self._shown.front(n)))
        ours = [s.at(s.num_free - 1 - i) for i in range(n)]
        if ours != self._shown.back(n):
            yield difference("free_queue, from its back", tuple(ours), tuple(self._shown.back(n)))

    def _to_zero(self) -> Iterator[Difference]:
        s = self._running.state
        lists = [self._shown.to_zero(g) for g in range(s.engine.groups.num)]
        for g, listed in enumerate(lists):
            if len(listed) != s.num_to_zero(g):
                yield difference(f"to_zero, group {g}, entries", s.num_to_zero(g), len(listed))
                return
        for g, j in self._read.changed.get("to_zero", ()):
            if j < len(lists[g]) and lists[g][j] != s.to_zero(g, j):
                yield difference(f"to_zero, group {g}, [{j}]", s.to_zero(g, j), lists[g][j])

    def _length(self, row: int) -> Iterator[Difference]:
        engine = self._running.engine
        name = self._names.get(engine.owner(row)) if row != HAND else None
        if name is not None:
            ours, theirs = self._running.state.length(row), self._shown.length(name, engine.group(row))
            if ours != theirs:
                yield difference(f"tables[{name}], group {engine.group(row)}, entries", ours, theirs)

    def _entry(self, row: int, i: int) -> Iterator[Difference]:
        engine, s = self._running.engine, self._running.state
        name = self._names.get(engine.owner(row)) if row != HAND else None
        if name is not None and i < s.length(row) and i < self._shown.length(name, engine.group(row)):
            theirs = self._shown.entry(name, engine.group(row), i)
            if s.table(row, i) != theirs:
                yield difference(f"tables[{name}], group {engine.group(row)}, [{i}]", s.table(row, i), theirs)
