"""The reading over Python's integers that works out what a call changes, and nothing else.

It is the text of the model all the same: a step says of a field where it changes and what is there
(`language/changes.py`). Tables are changed in place, and older states keep their view (`columns.py`). A field
that a step defines everywhere is worked out in full, as `dense.py` does.

Queues are spliced, which is what their definition says only as long as no block is in them twice: so with a
rule off the model runs densely.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from functools import partial
from typing import Any

from slotproof.model.integers.columns import Column, ColumnVersion, Keys, QueueVersion, Version
from slotproof.model.integers.dense import OUTSIDE, Dense, absent
from slotproof.model.integers.queue import Pieces
from slotproof.model.integers.text import NOBODY
from slotproof.model.language.algebra import Function
from slotproof.model.language.changes import Change, Splice, Spliced
from slotproof.model.language.state import FUNCTIONS, GHOSTS, NULL_BLOCK, State


class _Once:
    """A function, each of its values worked out once; and what is known of where it is false."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._values: dict[tuple[Any, ...], Any] = {}
        self.true_up_to: dict[tuple[Any, ...], int] = {}
        """By the first arguments: it is true from 0 on, below this."""
        self.false_at: dict[tuple[Any, ...], int] = {}
        """By the first arguments: where it was last seen to be false."""

    def __call__(self, *place: Any) -> Any:
        value = self._values.get(place)
        if value is None:
            value = self._values[place] = self._function(*place)
        return value


class Sparse(Dense):
    """The reading over integers, with all rules and no ghosts.

    Args:
        num_blocks: Of the pool.
        unit: Tokens of which every block has a whole number: a request's prefixes are told apart in these.
    """

    def __init__(self, num_blocks: int, unit: int) -> None:
        super().__init__(num_blocks, ghosts=False)
        self.unit = unit
        self.changed: dict[str, set[Any]] = {}
        """By field, the places that changed since `changed` was last cleared; of `at`, the blocks that
        joined or left the free queue."""
        self.overall: set[str] = set()
        """The fields that were defined everywhere since then."""
        self._splice: tuple[Splice, QueueVersion] | None = None
        self._emptied: list[tuple[int, int]] = []

    def function(self, field: str, definition: Function) -> Function:
        if field in GHOSTS:
            return absent
        if isinstance(definition, Spliced):
            queue = self._spliced(definition.splice)
            if queue is not None:
                return queue.at if definition.field == "at" else queue.rank
        elif isinstance(definition, Change):
            column = self._changed(field, definition)
            if column is not None:
                return column.get if FUNCTIONS[field] == 1 else column.get_pair
        self.overall.add(field)
        return super().function(field, definition)

    def settle(self, s: State) -> State:
        """The same state, with tables for what was defined everywhere, and nothing kept of block tables that
        were emptied."""
        settled = super().settle(s)
        emptied, self._emptied = self._emptied, []
        table = getattr(settled.table, "__self__", None)
        assert isinstance(table, ColumnVersion)
        gone = [((row, i), NULL_BLOCK) for row, n in emptied if settled.length(row) == 0 for i in range(n)]
        if gone:
            settled.__dict__["table"] = table.changed(gone).get_pair
        return settled

    def every(self, low: int, high: int, predicate: Callable[[int], bool]) -> bool:
        """As it says; of a function that is worked out once, what was seen before is not asked again."""
        if not isinstance(predicate, partial) or not isinstance(predicate.func, _Once):
            return super().every(low, high, predicate)
        once, of = predicate.func, predicate.args
        if low <= once.false_at.get(of, -1) < high:
            return False
        # A window slides down: what is false is met again later, the longer the nearer to its start.
        upwards = range(once.true_up_to.get(of, 0), high)
        order = range(high - 1, low - 1, -1) if low > 0 else upwards
        for i in order:
            if not once(*of, i):
                once.false_at[of] = i
                return False
        if low == 0 and high > once.true_up_to.get(of, 0):
            once.true_up_to[of] = high
        return True

    def once(self, function: Function) -> Function:
        return _Once(function)

    def earliest(self, state: State, key: int) -> int:
        column = getattr(state.block_hash, "__self__", None)
        if not isinstance(column, ColumnVersion):
            return super().earliest(state, key)
        keys = column.held()
        assert isinstance(keys, Keys)
        return min(keys.blocks.get(key, ()), key=state.stamp, default=NULL_BLOCK)

    def span(self, request: int, start: int, end: int) -> int:
        text = self.texts.get(request, NOBODY)
        if start or end > len(text.tokens):
            return super().span(request, start, end)
        units, rest = divmod(end, self.unit)
        prefixes, size = text.prefixes, self.unit
        for n in range(len(prefixes), units):
            before = prefixes[-1] if prefixes else 0
            prefixes.append(self._id((before, tuple(text.tokens[n * size : (n + 1) * size]))))
        whole = prefixes[units - 1] if units else 0
        return self._id((whole, tuple(text.tokens[end - rest : end]))) if rest else whole

    def free_blocks(self, s: State) -> Container[int]:
        """The blocks of a settled state's free queue."""
        queue = getattr(s.at, "__self__", None)
        assert isinstance(queue, QueueVersion)
        return queue.held()

    @property
    def num_ids(self) -> int:
        """How many prefixes and keys are told apart."""
        return len(self._ids)

    def forget_all_but(self, keys: Collection[int]) -> None:
        """Forget what tells apart the tokens of requests that are forgotten, but for those of some keys. If
        they come again they are told apart anew."""
        values = {number: value for value, number in self._ids.items()}
        left = [*keys, *(number for text in self.texts.values() for number in text.prefixes)]
        kept: set[int] = set()
        while left:
            number = left.pop()
            if number in kept or number not in values:
                continue
            kept.add(number)
            left.append(values[number][0])  # of a key the tokens, of a prefix the prefix before it
        self._ids = {value: number for value, number in self._ids.items() if number in kept}

    def _changed(self, field: str, change: Change) -> ColumnVersion | None:
        """The column with the change; None if there is no column, or nobody knows where it changes."""
        layers = [change]
        while isinstance(layers[-1].base, Change):
            layers.append(layers[-1].base)
        column = getattr(layers[-1].base, "__self__", None)
        if not isinstance(column, ColumnVersion):
            return None
        values: list[tuple[Any, Any]] = []
        pairs = FUNCTIONS[field] == 2
        for layer in reversed(layers):
            value = layer.value
            if not callable(value):
                values += [(place, value) for place in layer.where.places()]
            elif pairs:
                values += [(place, value(*place)) for place in layer.where.places()]
            else:
                values += [(place, value(place)) for place in layer.where.places()]
        if not values:
            return column
        self.changed.setdefault(field, set()).update([place for place, _ in values])
        if field == "length":
            emptied = [(row, column.get(row)) for row, n in values if n == 0]
            self._emptied += [(row, n) for row, n in emptied if n]
        return column.changed(values)

    def _spliced(self, splice: Splice) -> QueueVersion | None:
        """The queue spliced; None if there is no queue."""
        if self._splice is not None and self._splice[0] is splice:
            return self._splice[1]
        queue = getattr(splice.base.at, "__self__", None)
        if not isinstance(queue, QueueVersion):
            return None
        blocks = [] if splice.block is None else [splice.block]
        removed = [queue.at(i) for i in range(splice.low, splice.low + splice.removed)]
        self.changed.setdefault("at", set()).update((*blocks, *removed))
        version = queue.spliced(splice.low, splice.removed, blocks)
        self._splice = (splice, version)
        return version

    def _is_settled(self, function: Function) -> bool:
        return isinstance(getattr(function, "__self__", None), Version)

    def _tabulated(self, s: State, field: str, function: Function) -> Function:
        if field in ("at", "rank"):
            self.overall.add("at")
            queue = getattr(s.at, "__self__", None)
            if not isinstance(queue, QueueVersion):
                queue = QueueVersion(Pieces(s.at(i) for i in range(max(0, s.num_free))))
                s.__dict__.update(at=queue.at, rank=queue.rank)
            return queue.at if field == "at" else queue.rank
        default = OUTSIDE.get(field, 0)
        values = ((place, v) for place, v in self._values(s, field, function) if v != default)
        column = ColumnVersion(Keys(values) if field == "block_hash" else Column(values, default))
        return column.get if FUNCTIONS[field] == 1 else column.get_pair
