"""The state: every field a function, so that one definition can be proved, run and searched.

Blocks are `0 .. num_blocks - 1`, block 0 the null block. Requests are integers from 0, and so are the rows of
the block tables, one for each request and group (`groups.py`). The row `HAND` belongs to no request: it is
the list of blocks a call is giving back, on its way to the pool.

A row has `length` entries; those below `first` are the null block (they fell out of the attention window),
the others are *live*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotproof.model.language.algebra import Bool, Function, Int, both, ite, within
from slotproof.model.language.engine import Engine
from slotproof.model.language.reading import Reading

NULL_BLOCK = 0
NO_HASH = 0
ABSENT = -1
"""The rank of a block that is not in a queue."""
HAND = -1

UNKNOWN, WAITING, LOADING, RUNNING, PREEMPTED = range(5)
"""A request's status: not arrived or gone; waiting; waiting for an external load; running; preempted."""


@dataclass(frozen=True)
class State:
    """The pool, the block tables and the caller's ledger between two steps."""

    engine: Engine

    num_free: Int
    """The counter of free blocks."""
    at: Function
    """position -> block: the free queue, next to be taken at 0."""
    rank: Function
    """block -> its position in the free queue, ABSENT if it is not there."""
    ref_cnt: Function
    """block -> references."""
    block_hash: Function
    """block -> key in the prefix cache, NO_HASH for none."""
    stamp: Function
    """block -> when it was hashed."""
    clock: Int
    """The next stamp."""
    front: Int
    """Blocks that the call in progress has put at the front of the free queue."""

    table: Function
    """(row, index) -> block: the block tables."""
    length: Function
    """row -> its entries."""
    first: Function
    """row -> index of its first live entry."""
    num_cached: Function
    """row -> entries that need no hash any more: hits, and blocks hashed by it."""

    status: Function
    """request -> status."""
    num_tokens: Function
    """request -> final tokens: prompt and accepted output."""
    computed: Function
    """request -> tokens computed or scheduled, drafts included."""
    in_flight: Function
    """request -> the last of these, scheduled and not yet processed."""
    prompt: Function
    """request -> tokens that it came with."""
    junction: Function
    """request -> where it left a longer hit of one group behind, at its last lookup; 0 for nowhere."""

    num_to_zero: Function
    """group -> its blocks to zero before the next forward pass."""
    to_zero: Function
    """(group, position) -> block: these blocks."""

    # Ghosts: what a proof needs to count by bijection. No rule reads them.
    holder_row: Function
    """(block, k) -> row of its k-th reference, k < ref_cnt."""
    holder_index: Function
    """(block, k) -> index there of its k-th reference."""
    slot: Function
    """(row, index) -> which reference of its block a live entry is."""
    held: Function
    """position -> block: the blocks that are not free, in any order."""
    held_rank: Function
    """block -> its position there, ABSENT if it is free."""
    writer_row: Function
    """block -> the row that it was taken for."""
    writer_index: Function
    """block -> the index there that it was taken for."""
    evicted_idle: Function
    """block -> it lost its hash while it was in the free queue."""
    unwritten: Function
    """request -> the last of its computed tokens, those whose KV is still to be written."""
    written: Function
    """block -> the token up to which it holds the KV of its writer's tokens."""
    slots: Function
    """request -> tokens for which every one of its tables has slots, and none has a block for more."""

    @property
    def read(self) -> Reading[State]:
        """What this state's reading does in its own way."""
        return self.engine.read

    @property
    def num_held(self) -> Int:
        """Blocks that are not free, the null block aside."""
        return self.engine.num_blocks - 1 - self.num_free

    def is_block(self, block: Int) -> Bool:
        """A block that can hold tokens: any but the null block."""
        return within(1, block, self.engine.num_blocks)

    def writer(self, block: Int) -> Int:
        """The request whose tokens the block was taken for."""
        return self.engine.owner(self.writer_row(block))

    def is_live(self, row: Int, index: Int) -> Bool:
        """The entry holds a block that the request needs."""
        return within(self.first(row), index, self.length(row))

    def is_free(self, block: Int) -> Bool:
        """The block is in the free queue."""
        return self.rank(block) >= 0

    def is_hashed(self, block: Int) -> Bool:
        """The block is in the prefix cache."""
        return self.block_hash(block) != NO_HASH

    def is_private(self, block: Int) -> Bool:
        """Only one entry holds the block, and no lookup can find it."""
        return both(self.ref_cnt(block) == 1, self.block_hash(block) == NO_HASH)

    def replace(self, **changes: Any) -> State:
        """This state with some fields changed. Raises TypeError for a name that is no field."""
        new = object.__new__(State)
        fields = new.__dict__
        fields.update(self.__dict__)
        function = self.read.function
        for name, value in changes.items():
            fields[name] = function(name, value) if callable(value) else value
        if len(fields) > len(self.__dict__):
            raise TypeError(f"a state has no field {', '.join(fields.keys() - self.__dict__.keys())}")
        return new


FIELDS = tuple(name for name in State.__dataclass_fields__ if name != "engine")
GHOSTS = FIELDS[FIELDS.index("holder_row") :]
FUNCTIONS = {
    "at": 1,
    "rank": 1,
    "ref_cnt": 1,
    "block_hash": 1,
    "stamp": 1,
    "table": 2,
    "length": 1,
    "first": 1,
    "num_cached": 1,
    "status": 1,
    "num_tokens": 1,
    "computed": 1,
    "in_flight": 1,
    "prompt": 1,
    "junction": 1,
    "num_to_zero": 1,
    "to_zero": 2,
    "holder_row": 2,
    "holder_index": 2,
    "slot": 2,
    "held": 1,
    "held_rank": 1,
    "writer_row": 1,
    "writer_index": 1,
    "evicted_idle": 1,
    "unwritten": 1,
    "written": 1,
    "slots": 1,
}
"""The fields that are functions, with their number of arguments."""


def initial(engine: Engine) -> State:
    """An idle pool: every block but the null block is free, in the order of the blocks."""
    start = 1 if engine.rules.null_block_set_aside else 0
    num_free = engine.num_blocks - start
    function = engine.read.function

    def constant(value: Any) -> Function:
        return lambda *_: value

    fields: dict[str, Any] = {name: function(name, constant(0)) for name in FUNCTIONS}
    fields |= {
        "num_free": num_free,
        "at": function("at", lambda i: i + start),
        "rank": function("rank", lambda b: _position(b, start, engine.num_blocks)),
        "held_rank": function("held_rank", constant(ABSENT)),
        "evicted_idle": function("evicted_idle", constant(False)),
        "clock": 1,
        "front": 0,
    }
    return State(engine=engine, **fields)


def _position(block: Int, start: int, num_blocks: Int) -> Int:
    return ite(within(start, block, num_blocks), block - start, ABSENT)
