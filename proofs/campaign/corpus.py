"""Calls that a campaign plays first, because it would hardly ever draw them, or not before another fault."""

from __future__ import annotations

from slotproof.impl.protocol import AddRequest, Allocate, Call, Complete, Config, Finish, Group

CORPUS: tuple[tuple[Config, tuple[Call, ...]], ...] = (
    # Every free block is hashed, and the hits are the next to be taken: a group that takes blocks for its
    # external tokens before the next group has adopted takes that one's hits (vllm#33775).
    (
        Config(num_blocks=9, block_size=1, max_model_len=4, groups=(Group(block_size=1, sliding_window=3),)),
        (
            AddRequest(0, (1, 1)),
            Allocate(0, new=2),
            Finish(0),
            AddRequest(1, (2, 2)),
            Allocate(1, new=2),
            Finish(1),
            AddRequest(2, (1, 1, 1, 1)),
            Allocate(2, new=1, external=1),
        ),
    ),
)

_WINDOW = Config(num_blocks=5, block_size=1, max_model_len=12, sliding_window=2, max_in_flight_tokens=2)

OF_KINDS: tuple[tuple[Config, tuple[Call, ...]], ...] = (
    # A prompt longer than the pool, of which no more than a window is held at once (vllm#39734).
    (_WINDOW, (AddRequest(0, (1,) * 6), Allocate(0, new=2, must_fit=True))),
    # A step far behind the window takes two blocks, and one is free (vllm#45856).
    (
        _WINDOW,
        (
            AddRequest(0, (1, 1)),
            Allocate(0, new=2),
            AddRequest(1, (2,)),
            Allocate(1, new=1),
            AddRequest(2, (3,) * 8),
            Allocate(2, new=1, external=6),
        ),
    ),
    # Refused at stage 0, a request keeps the block that stage 1 would release.
    (
        _WINDOW,
        (
            AddRequest(0, (1,) * 6),
            Allocate(0, new=2),
            Complete(0, processed=2),
            AddRequest(1, (2, 2)),
            Allocate(1, new=2),
            Allocate(0, new=1, must_fit=True),
        ),
    ),
    # A hit that ends inside a chunk; the one before needs no block, as the next chunk starts there.
    (
        Config(num_blocks=5, block_size=1, max_model_len=4, attention_chunk_size=2),
        (
            AddRequest(0, (1, 1, 1, 1)),
            Allocate(0, new=2),
            Finish(0),
            AddRequest(1, (1, 1, 1, 1)),
            Allocate(1, new=1),
        ),
    ),
    # A full block whose last token a draft head may compute again.
    (
        Config(num_blocks=5, block_size=2, max_model_len=4, is_eagle=True, num_prefill_lookahead=2),
        (AddRequest(0, (1, 1, 1)), Allocate(0, new=2)),
    ),
)
"""For the gate alone: the search for stories draws these soon."""
