"""A sliding window (vLLM's `SlidingWindowManager`): a token looks at itself and the window - 1 before it."""

from __future__ import annotations

from slotproof.model.language.algebra import Bool, Int, both, either, ite, maximum, minimum, within
from slotproof.model.language.behaviours import GROUPS_CACHE_ALL, WINDOW_OF_ONE_CACHED
from slotproof.model.language.engine import DENSE, Engine
from slotproof.model.language.state import State


def skipped_tokens(engine: Engine, g: Int, computed: Int) -> Int:
    """Tokens before the window of token `computed`, and before those that are retained behind it."""
    return maximum(0, computed - engine.groups.window(g) + 1 - engine.groups.retained(g))


def admission_cap(engine: Engine, g: Int) -> Int:
    """The window and what is in flight, which may start inside a block."""
    window = engine.groups.window(g) - 1 + engine.groups.retained(g)
    tokens = minimum(window + engine.max_in_flight_tokens, engine.max_model_len)
    return engine.blocks(tokens, g) + 1


def hit_start(engine: Engine, g: Int, blocks: Int) -> Int:
    """Where the blocks start that span the window of the next token, which looks back from its own slot."""
    return maximum(0, blocks - maximum(1 - behind(engine, g), _run(engine, g)))


def is_reachable(s: State, row: Int, i: Int) -> Bool:
    """One of the blocks before a place at which a hit may end that windows keep blocks for: densely, every
    place at which groups can agree; sparsely, one in each interval, and where a prompt can be taken up again.
    """
    engine, g = s.engine, s.engine.group(row)
    if engine.groups.is_one and WINDOW_OF_ONE_CACHED in engine.behaviours:
        return True
    if engine.groups.is_one and engine.retention_interval is DENSE and engine.groups.drops(g) is False:
        return engine.groups.window(g) > 1  # every block is such a place
    if GROUPS_CACHE_ALL in engine.behaviours:
        return True
    every, dense = engine.retention_interval, is_before_each(engine, g, i, engine.scheduler_block_size)
    if every is DENSE:
        return dense
    sparse = either(
        both(every > 0, is_before_each(engine, g, i, maximum(1, every))),
        *(both(there, is_before(engine, g, i, place)) for there, place in resumed_at(s, engine.owner(row))),
    )
    if not engine.rules.retention_keeps_resumed:
        sparse = both(every > 0, is_before_each(engine, g, i, maximum(1, every)))
    return ite(every == DENSE, dense, sparse)


def is_before_each(engine: Engine, g: Int, i: Int, interval: Int) -> Bool:
    """Block i is one of those that a hit needs which ends at a multiple of an interval. Where a hit drops its
    last block, that one counts too."""
    read, needed, shift = engine.read, _needed(engine, g), behind(engine, g)
    end = engine.tokens(i - shift + 1, g)
    up_to_place = read.times(read.ceil_div(end, interval), interval) - end
    whole = engine.tokens(needed, g) >= interval
    return both(either(i >= shift, whole), up_to_place < engine.tokens(needed, g))


def is_before(engine: Engine, g: Int, i: Int, place: Int) -> Bool:
    """Block i is one of those that a hit needs which ends at the last place that groups can agree on up to
    `place`."""
    end = engine.full_blocks(engine.align_down(place), g) + behind(engine, g)
    return within(end - _needed(engine, g), i, end)


def resumed_at(s: State, r: Int) -> list[tuple[Bool, Int]]:
    """Where the prompt of r can be taken up, if there is such a place: by one that is sent again, which
    leaves a token to compute; with a draft head a block lower, and there by one that goes on too; and where
    its groups did not agree."""
    engine, dropped = s.engine, s.engine.some_group_drops
    lower = engine.align_down(s.prompt(r)) - engine.scheduler_block_size
    return [
        (True, sent_again(s, r)),
        (dropped, maximum(0, lower)),
        (s.junction(r) > 0, s.junction(r)),
    ]


def sent_again(s: State, r: Int) -> Int:
    """Where the prompt of r is taken up if it is sent again: where its last token is left, and if a group
    drops a block, the next place before."""
    engine, last = s.engine, s.prompt(r) - 1
    lower = maximum(0, engine.align_down(last) - engine.scheduler_block_size)
    return ite(engine.some_group_drops, lower, last)


def behind(engine: Engine, g: Int) -> Int:
    """Blocks behind a hit that it takes to find it."""
    drops = both(engine.groups.drops(g), engine.rules.lookup_drops_last_block)
    return ite(drops, 1, 0)


def _needed(engine: Engine, g: Int) -> Int:
    """Blocks in a row that it takes to find a hit."""
    return engine.blocks(engine.groups.window(g) - 1, g) + behind(engine, g)


def _run(engine: Engine, g: Int) -> Int:
    """Blocks in a row that a hit needs so that the next token finds all it attends to."""
    reach = engine.groups.window(g) - 1
    if engine.rules.lookup_run_covers_window:
        return engine.blocks(reach, g)
    return engine.full_blocks(reach, g)
