"""A sliding window: a request keeps the blocks that its window still spans."""

from __future__ import annotations

from collections.abc import Sequence

from slotproof.impl.allocator.block_pool import NULL_BLOCK, BlockPool
from slotproof.impl.allocator.block_table import BlockTable
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.request import Request


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Every token looks at itself and the `sliding_window - 1` tokens before it.

    Args:
        block_size: Tokens in a block.
        block_pool: The pool, which all groups share.
        block_table: The device's copy of this group's tables.
        max_model_len: Tokens a request may have.
        sliding_window: Tokens a window spans.
        max_in_flight_tokens: Most tokens of one request scheduled and not yet settled.
    """

    def __init__(
        self,
        block_size: int,
        block_pool: BlockPool,
        block_table: BlockTable,
        max_model_len: int,
        *,
        sliding_window: int,
        max_in_flight_tokens: int,
    ) -> None:
        super().__init__(block_size, block_pool, block_table, max_model_len)
        self.sliding_window = sliding_window
        self._blocks_in_window = -(-(sliding_window - 1) // block_size)
        # One block more, because a window may start in the middle of its first block.
        most_tokens = min(sliding_window - 1 + max_in_flight_tokens, max_model_len)
        self.max_admission_blocks = -(-most_tokens // block_size) + 1

    def find_longest_cache_hit(self, block_hashes: Sequence[bytes], max_length: int) -> list[int]:
        """The rightmost run of cached blocks that fills the window of the next token, nulls before it.

        Without such a run, the longest cached prefix, whose window starts at the first token.
        """
        run: list[int] = []
        for index in range(max_length // self.block_size - 1, -1, -1):
            block = self.block_pool.get_cached_block(block_hashes[index])
            if block is None:
                run.clear()
                continue
            run.append(block)
            if len(run) == self._blocks_in_window:
                return [NULL_BLOCK] * index + run[::-1]
        return run[::-1]

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """As for every group; but a window of one token never looks back, so nothing is cached (0.32.0)."""
        if self.sliding_window > 1:
            super().cache_blocks(request, num_tokens)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Those before the window of the next token."""
        return max(0, num_computed_tokens - self.sliding_window + 1)
