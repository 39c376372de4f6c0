"""Full attention: a request keeps its blocks; and a decode step's tables grow as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import getitem

import numpy as np

from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.row_counts import Int64s


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every token looks at all before it: a request keeps its blocks until it is freed."""

    def find_longest_cache_hit(self, block_keys: Sequence[bytes], max_length: int) -> list[int]:
        """The longest cached prefix. Hashes are chained, so it ends at the first miss."""
        blocks = self.block_pool.get_cached_prefix(block_keys[: max_length // self.block_size])
        if self.scheduler_block_size != self.block_size:
            del blocks[len(blocks) - len(blocks) % (self.scheduler_block_size // self.block_size) :]
        return blocks

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """None."""
        return 0

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """None are."""

    def append_block_each(self, rows: Int64s, tables: Sequence[list[int]], new_blocks: Sequence[int]) -> None:
        """Put a block that was taken from the pool at the end of each of these tables.

        Args:
            rows: int64 [tables], none of them twice.
            tables: What is in these rows; none reaches max_model_len.
            new_blocks: One for each.
        """
        counts = self.counts
        ends = counts.takes_at[rows] // self.block_size
        counts.takes_at[rows] = np.minimum((ends + 1) * self.block_size, self.max_model_len)
        # Tables lie far apart: without bytecode in between, waits for memory overlap.
        deque(map(list.append, tables, new_blocks), maxlen=0)
        self.block_table.mark_each(rows.tolist(), ends.tolist())
        self.new_block_ids.extend(new_blocks)

    def cache_blocks_each(
        self,
        rows: Int64s,
        tables: Sequence[list[int]],
        block_keys: Sequence[list[bytes]],
        num_full_blocks: Int64s,
    ) -> None:
        """Publish, table by table, the first blocks that are not published yet.

        Args:
            rows: int64 [tables], none of them twice.
            tables: What is in these rows.
            block_keys: `Request.block_keys` of this group, of the requests that the tables belong to.
            num_full_blocks: int64 [tables]: how many of their blocks are full and final.
        """
        counts = self.counts
        num_cached = counts.num_cached_blocks[rows]
        starts, ends = num_cached.tolist(), num_full_blocks.tolist()
        blocks: list[int] = []
        hashes: list[bytes] = []
        if ends == (num_cached + 1).tolist():  # as good as always: one block each
            blocks.extend(map(getitem, tables, starts))
            hashes.extend(map(getitem, block_keys, starts))
        else:  # drafts have filled several, or what fills a block is not final
            for table, of_request, start, end in zip(tables, block_keys, starts, ends, strict=True):
                blocks += table[start:end]
                hashes += of_request[start:end]
            num_full_blocks = np.maximum(num_full_blocks, num_cached)
        self.block_pool.cache_full_blocks(blocks, hashes)
        counts.num_cached_blocks[rows] = num_full_blocks
        counts.fills_at[rows] = counts.fills(num_full_blocks) - 1
