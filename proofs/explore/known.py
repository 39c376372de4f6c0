"""Short stories of engines with several groups, where every call more takes the search long.

They are told on the running reading like any other story; the search then looks for shorter ones alone.
"""

from __future__ import annotations

from slotproof.impl.protocol import AddRequest, Allocate, Call, Config, EvictBlocks, Group, Preempt

_FULL_AND_WINDOW = Config(
    num_blocks=5, block_size=1, max_model_len=3, groups=(Group(block_size=1, sliding_window=2),)
)
_TWO_SIZES = Config(num_blocks=5, block_size=1, max_model_len=3, groups=(Group(block_size=2),))
_ROOMY = Config(num_blocks=7, block_size=1, max_model_len=5, groups=(Group(block_size=1, sliding_window=3),))

GROUP_ENGINES = (_FULL_AND_WINDOW, _TWO_SIZES, _ROOMY)
"""Full attention beside a window; blocks of two sizes; room for a hit and external tokens in two groups."""

KNOWN: tuple[tuple[Config, tuple[Call, ...]], ...] = (
    # All blocks are hashed and idle. Once the first group has adopted its own, the next in the queue is the
    # one that the second group is about to adopt (vllm#33775).
    (
        _ROOMY,
        (
            AddRequest(0, (1, 1, 1, 1, 1)),
            Allocate(0, new=3),
            Preempt(0),
            Allocate(0, new=0, external=1, delay_cache=True),
        ),
    ),
    # The second group has lost the block at which the first one's hit ends.
    (
        _FULL_AND_WINDOW,
        (AddRequest(0, (1, 1, 1)), Allocate(0, new=2), EvictBlocks((4,)), Preempt(0)),
    ),
    # Both groups hash a block of the same tokens.
    (_FULL_AND_WINDOW, (AddRequest(0, (1, 1)), Allocate(0, new=1))),
    # One token may be hit, and the second group's block has two.
    (_TWO_SIZES, (AddRequest(0, (1, 1)), Allocate(0, new=2), Preempt(0))),
)
