"""Counts of all block tables of one attention group, in arrays, for decode steps of many requests at once."""

from __future__ import annotations

from array import array
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

_FIRST_ROWS = 64
_NEVER = 1 << 62

Counts = TypeVar("Counts", int, Int64s)


class RowCounts:
    """A row for each table, the same as on the device. Arrays are int64 [rows], and double when rows run out.

    Each array is there twice, in the same memory: for NumPy, and as Python's own, whose single elements are
    faster to reach.

    Args:
        block_size: Tokens in a block.
        max_model_len: Tokens a request may have.
        cache_unit: Tokens that are cached at a time, whole blocks.
    """

    def __init__(self, block_size: int, max_model_len: int, cache_unit: int) -> None:
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._cache_unit = cache_unit
        self._last_serial = 0
        self.num_removed = 0
        """Tables that are gone, in all."""
        self._use([array("q", bytes(8 * _FIRST_ROWS)) for _ in range(5)])

    def _use(self, columns: list[array[int]]) -> None:
        self._columns = columns
        self._takes_at, self._fills_at, self._gives_at, self._serial, self.num_cached_of_row = columns
        arrays: list[Int64s] = [np.frombuffer(column, np.int64) for column in columns]
        self.takes_at, self.fills_at, self.gives_at, self.serial, self.num_cached_blocks = arrays
        """Computed tokens from which on a decode needs another block, or has no token left to compute; those
        from which on it fills a block that is to be cached; those from which on it may give a block back; a
        number that no other table in this row had; leading blocks that need no more caching,
        `num_cached_of_row` for single calls."""

    def add(self, row: int, num_blocks: int, num_cached_blocks: int) -> None:
        """A table has got the row."""
        rows = len(self._serial)
        if row >= rows:
            self._use([column + array("q", bytes(8 * rows)) for column in self._columns])
        self._last_serial += 1
        self._serial[row] = self._last_serial
        self._gives_at[row] = _NEVER
        self.set_num_blocks(row, num_blocks)
        self.set_num_cached_blocks(row, num_cached_blocks)

    def remove(self, row: int) -> None:
        """The table in the row is gone."""
        self._serial[row] = 0
        self.num_removed += 1

    def set_num_blocks(self, row: int, num_blocks: int) -> None:
        """The table has so many blocks."""
        self._takes_at[row] = min(num_blocks * self._block_size, self._max_model_len)

    def set_num_cached_blocks(self, row: int, num_cached_blocks: int) -> None:
        """So many leading blocks of the table need no more caching."""
        self.num_cached_of_row[row] = num_cached_blocks
        self._fills_at[row] = self.fills(num_cached_blocks) - 1

    def fills(self, num_cached_blocks: Counts) -> Counts:
        """Computed tokens at which a block after so many is cached: a number, or an array of them."""
        unit = self._cache_unit
        return -(-(num_cached_blocks + 1) * self._block_size // unit) * unit

    def set_gives_at(self, row: int, num_computed_tokens: int) -> None:
        """With fewer computed tokens, the table gives no block back."""
        self._gives_at[row] = num_computed_tokens
