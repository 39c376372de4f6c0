"""The worker: what is written when a step runs (vLLM's `GPUModelRunner.execute_model`, and its connectors).

Steps run in the order in which they were made up, and within a step all KV is written before any is read.
So a step has run, as far as a later one can see, once it was handed to the worker.
"""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Function, Int, both, either, ite, maximum, minimum
from slotproof.model.language.changes import Change, one
from slotproof.model.language.state import RUNNING, State


def executed(s: State, r: Int) -> Int:
    """Tokens of r that are computed and whose KV is written."""
    return s.computed(r) - s.unwritten(r)


def writer_holds(s: State, b: Int) -> Bool:
    """The request that the block was taken for still has it."""
    row, i = s.writer_row(b), s.writer_index(b)
    return both(row >= 0, s.is_live(row, i), s.table(row, i) == b)


def arrives(s: State, b: Int) -> Bool:
    """The step that is being made up writes what the block still lacks."""
    r = s.writer(b)
    no_gap = either(executed(s, r) <= start_of(s, b), s.written(b) >= executed(s, r))
    whole = s.computed(r) >= end_of(s, b)
    return both(writer_holds(s, b), s.status(r) == RUNNING, whole, no_gap)


def is_written(s: State, b: Int) -> Bool:
    """Every slot of the block holds the KV of its writer's token."""
    return s.written(b) >= end_of(s, b)


def start_of(s: State, b: Int) -> Int:
    """The first token of the block's writer that has its slot there."""
    return s.engine.tokens(s.writer_index(b), s.engine.group(s.writer_row(b)))


def end_of(s: State, b: Int) -> Int:
    """The first token of the block's writer that has its slot behind it."""
    return s.engine.tokens(s.writer_index(b) + 1, s.engine.group(s.writer_row(b)))


def write(s: State, reach: Function) -> State:
    """The KV of each request's tokens up to `reach(r)` is written to its own slots, and nothing else."""

    def written(b: Int) -> Int:
        r, start, end = s.writer(b), start_of(s, b), end_of(s, b)
        no_gap = either(executed(s, r) <= start, s.written(b) >= executed(s, r))
        scheduled = both(executed(s, r) < end, start < reach(r))
        return ite(
            both(writer_holds(s, b), scheduled, no_gap),
            maximum(s.written(b), minimum(reach(r), end)),
            s.written(b),
        )

    return s.replace(written=written, unwritten=lambda r: s.computed(r) - reach(r))


def run_step(s: State) -> State:
    """The step that was made up runs: all that running requests have scheduled is written."""
    return write(s, lambda r: ite(s.status(r) == RUNNING, s.computed(r), executed(s, r)))


def write_up_to(s: State, r: Int, end: Int) -> State:
    """r's tokens up to `end` are written, and nobody else's."""
    return write(s, lambda q: ite(q == r, maximum(executed(s, r), end), executed(s, q)))


def roll_back(s: State, r: Int, n: Int) -> State:
    """r's last n computed tokens were drafts that are rejected: what its own blocks hold of them is void."""

    def own(b: Int) -> Bool:
        return both(s.writer(b) == r, writer_holds(s, b), s.is_private(b))

    return s.replace(
        computed=Change(s.computed, one(r), lambda q: s.computed(q) - n),
        written=lambda b: ite(own(b), minimum(s.written(b), executed(s, r) - n), s.written(b)),
    )
