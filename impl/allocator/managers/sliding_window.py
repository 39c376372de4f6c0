"""A sliding window: a request keeps the blocks that its window still spans."""

from __future__ import annotations

from collections.abc import Sequence

from slotproof.impl.allocator.block_pool import NULL_BLOCK, BlockPool
from slotproof.impl.allocator.block_table import BlockTable
from slotproof.impl.allocator.managers.single_type import RequestBlocks, SingleTypeKVCacheManager


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Every token looks at itself and the `sliding_window - 1` tokens before it.

    Args:
        block_size: Tokens in a block.
        block_pool: The pool, which all groups share.
        block_table: The device's copy of this group's tables.
        max_model_len: Tokens a request may have.
        group_id: The group's number.
        scheduler_block_size: Tokens, whole blocks of every group; hits end at multiples of it.
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
        group_id: int,
        scheduler_block_size: int,
        sliding_window: int,
        max_in_flight_tokens: int,
    ) -> None:
        super().__init__(
            block_size,
            block_pool,
            block_table,
            max_model_len,
            group_id=group_id,
            scheduler_block_size=scheduler_block_size,
        )
        self.sliding_window = sliding_window
        self._blocks_in_window = -(-(sliding_window - 1) // block_size)
        self._blocks_in_unit = 1 if scheduler_block_size == block_size else scheduler_block_size // block_size
        # One block more, because a window may start in the middle of its first block.
        most_tokens = min(sliding_window - 1 + max_in_flight_tokens, max_model_len)
        self.max_admission_blocks = -(-most_tokens // block_size) + 1

    def find_longest_cache_hit(self, block_keys: Sequence[bytes], max_length: int) -> list[int]:
        """The rightmost run of cached blocks that fills the window of the next token, nulls before it.

        Without such a run, the longest cached prefix, whose window starts at the first token.
        """
        get_cached_block, unit = self.block_pool.get_cached_block, self._blocks_in_unit
        run: list[int] = []
        for index in range(max_length // self.block_size - 1, -1, -1):
            block = get_cached_block(block_keys[index])
            if block is None:
                run.clear()
                continue
            if not run and (index + 1) % unit:
                continue  # no hit ends here
            run.append(block)
            if len(run) == self._blocks_in_window:
                return [NULL_BLOCK] * index + run[::-1]
        return run[::-1]

    def _publish(self, blocks: list[int], keys: list[bytes], start: int, end: int) -> None:
        """As for every group, but for blocks that no hit needs (0.32.0): those that lie further before the
        next place where a hit may end than a window reaches back."""
        unit, in_window = self._blocks_in_unit, self._blocks_in_window
        if in_window == 0:  # a window of one token never looks back
            return
        if in_window < unit:
            needed = [i for i in range(start, end) if -(i + 1) % unit < in_window]
            self.block_pool.cache_full_blocks([blocks[i] for i in needed], [keys[i] for i in needed])
        else:
            super()._publish(blocks, keys, start, end)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Those before the window of the next token."""
        return max(0, num_computed_tokens - self.sliding_window + 1)

    def _note_skipped(self, held: RequestBlocks, num_blocks: int) -> None:
        self.counts.set_gives_at(held.row, (num_blocks + 1) * self.block_size + self.sliding_window - 1)
