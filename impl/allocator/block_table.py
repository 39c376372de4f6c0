"""Block tables on the device: one tensor that attention reads, brought up to date once a step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch


class BlockTable:
    """The block tables of all requests of one attention group, a row of the tensor for each.

    Tables live on the host as lists, which their owner changes in place and then names here by row and
    range. `commit` gathers what was named and sends it with one copy. Nothing waits for the device: the
    copy starts from pinned memory, which the allocator of pinned memory reuses only after the copy ran.

    Args:
        device: Where the tensor lives, "cpu" or "cuda".
        max_requests: Rows to start with; they double when more requests hold blocks.
        max_blocks_per_request: Columns to start with; they double when a table outgrows them.
    """

    def __init__(self, device: torch.device | str, max_requests: int, max_blocks_per_request: int) -> None:
        self.device = torch.device(device)
        self.tensor = torch.zeros(
            (max(1, max_requests), max(1, max_blocks_per_request)), dtype=torch.int32, device=self.device
        )
        """int32 [requests, blocks]. Entries past the end of a table, and rows without one, mean nothing.
        Growing replaces the tensor: take it from `commit` anew each step."""
        self.tables: list[list[int]] = []
        self._free_rows: list[int] = []
        self._changes: list[tuple[int, int, int]] = []
        self._marked_each: list[tuple[Sequence[int], Sequence[int]]] = []

    def add_row(self, blocks: list[int]) -> int:
        """Give a table a row; `blocks` stays the caller's, who names its changes with `mark`."""
        if self._free_rows:
            row = self._free_rows.pop()
            self.tables[row] = blocks
        else:
            row = len(self.tables)
            self.tables.append(blocks)
        self.mark(row, 0, len(blocks))
        return row

    def remove_row(self, row: int) -> None:
        """Forget a table; its row goes to the next one that is added."""
        self.tables[row] = []
        self._free_rows.append(row)

    def mark(self, row: int, start: int, end: int) -> None:
        """Entries `start` to `end` (exclusive) of a table have changed since the last commit."""
        if start < end:
            self._changes.append((row, start, end))

    def mark_each(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """One entry of each of these tables has changed since the last commit."""
        self._marked_each.append((rows, columns))

    def commit(self) -> torch.Tensor:
        """Send the changes of this step; the tensor as work that is queued from now on finds it.

        Values are read only now. So an entry that was marked twice is sent twice with the same value,
        and the order in which the device writes does not matter.
        """
        for marked_rows, marked_columns in self._marked_each:
            marked = zip(marked_rows, marked_columns, strict=True)
            self._changes += [(row, column, column + 1) for row, column in marked]
        self._marked_each.clear()
        if not self._changes:
            return self.tensor
        rows, columns, values = array("i"), array("i"), array("i")
        for row, start, end in self._changes:
            changed = self.tables[row][start:end]
            rows.extend([row] * len(changed))
            columns.extend(range(start, start + len(changed)))
            values.extend(changed)
        self._changes.clear()
        if values:
            self._grow(max(rows) + 1, max(columns) + 1)
            packed = torch.frombuffer(rows + columns + values, dtype=torch.int32)
            if self.device.type == "cuda":
                packed = packed.pin_memory()
            row_index, column_index, value = packed.to(self.device, non_blocking=True).view(3, -1)
            self.tensor.index_put_((row_index.long(), column_index.long()), value)
        return self.tensor

    def _grow(self, rows: int, columns: int) -> None:
        old_rows, old_columns = self.tensor.shape
        if rows <= old_rows and columns <= old_columns:
            return
        while old_rows < rows:
            old_rows *= 2
        while old_columns < columns:
            old_columns *= 2
        grown = torch.zeros((old_rows, old_columns), dtype=torch.int32, device=self.device)
        grown[: self.tensor.shape[0], : self.tensor.shape[1]] = self.tensor
        self.tensor = grown
