"""A decode step of many running requests, as one call on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.allocator.row_counts import Int64s


@dataclass(frozen=True)
class BatchSlots:
    """What a batch was granted."""

    num_granted: int
    """Requests that have their slots: the first ones. The next one, if any, was refused."""
    indices: list[int]
    """Of the requests that took a block, in order; the others had a slot left."""
    block_ids: list[int]
    """The blocks they took, one each."""


class DecodeBatch:
    """Running requests, in order, and the caller's counts of them in arrays that run parallel.

    The counts say what the requests say. Whoever changes one changes the other: for a step that was granted,
    `num_computed_tokens += 1`, and `num_tokens += 1` for each final token that is appended.

    Args:
        group: The attention group that has their block tables.
        requests: The first ones, see `add`.

    Raises:
        AllocatorError: see `add`.
    """

    def __init__(self, group: SingleTypeKVCacheManager, requests: Sequence[Request] = ()) -> None:
        self._group = group
        self.requests: list[Request] = []
        none, no_lists = np.zeros(0, np.int64), np.zeros(0, np.object_)
        self.tables: NDArray[np.object_] = no_lists
        """list[int] [requests]: their block tables. As lists lie far apart, an array gathers them fastest."""
        self.block_hashes: NDArray[np.object_] = no_lists
        """list[bytes] [requests]: `Request.block_hashes`."""
        self.num_computed_tokens: Int64s = none
        """int64 [requests]: `Request.num_computed_tokens`."""
        self.num_tokens: Int64s = none
        """int64 [requests]: `Request.num_tokens`."""
        self.rows: Int64s = none
        """int64 [requests]: rows of the block table."""
        self._serials: Int64s = none
        self._ids: set[str] = set()
        self._num_removed = group.counts.num_removed
        self.add(requests)

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests at the end.

        Raises:
            AllocatorError: one does not run, holds no blocks, or is in the batch already; none was added.
        """
        tables = self._group.req_to_blocks
        ids = {request.request_id for request in requests}
        for request in requests:
            if request.status is not RequestStatus.RUNNING or request.request_id not in tables:
                raise AllocatorError(f"request {request.request_id} does not run: it cannot decode")
            if request.request_id in self._ids:
                raise AllocatorError(f"request {request.request_id} is in the batch already")
        if len(ids) < len(requests):
            raise AllocatorError("a request is named twice: it decodes one token a step")
        rows = np.array([tables[request.request_id].row for request in requests], np.int64)
        computed = np.array([request.num_computed_tokens for request in requests], np.int64)
        final = np.array([request.num_tokens for request in requests], np.int64)
        self.requests.extend(requests)
        held = [tables[request.request_id] for request in requests]
        self.tables = np.append(self.tables, _lists([table.blocks for table in held]))
        hashes = _lists([request.block_hashes for request in requests])
        self.block_hashes = np.append(self.block_hashes, hashes)
        self.num_computed_tokens = np.append(self.num_computed_tokens, computed)
        self.num_tokens = np.append(self.num_tokens, final)
        self.rows = np.append(self.rows, rows)
        self._serials = np.append(self._serials, self._group.counts.serial[rows])
        self._ids |= ids

    def remove(self, request: Request) -> None:
        """Take a request out, before or after it is freed; the others keep their order.

        Raises:
            ValueError: it is not in the batch.
        """
        index = self.requests.index(request)
        del self.requests[index]
        self.tables = np.delete(self.tables, index)
        self.block_hashes = np.delete(self.block_hashes, index)
        self.num_computed_tokens = np.delete(self.num_computed_tokens, index)
        self.num_tokens = np.delete(self.num_tokens, index)
        self.rows = np.delete(self.rows, index)
        self._serials = np.delete(self._serials, index)
        self._ids.remove(request.request_id)

    def check_held(self) -> None:
        """Raise AllocatorError if a request was freed since it was added."""
        counts = self._group.counts
        if counts.num_removed != self._num_removed:
            freed = np.flatnonzero(counts.serial[self.rows] != self._serials)
            if freed.size:
                request = self.requests[int(freed[0])]
                raise AllocatorError(f"request {request.request_id} was freed: remove it from the batch")
            self._num_removed = counts.num_removed

    def check_length(self, indices: NDArray[np.intp], max_model_len: int) -> None:
        """Raise AllocatorError if one of these requests has computed all the tokens it may have."""
        done = indices[self.num_computed_tokens[indices] >= max_model_len]
        if done.size:
            request = self.requests[int(done[0])]
            raise AllocatorError(
                f"request {request.request_id} has computed max_model_len {max_model_len} tokens: finish it"
            )


def _lists(lists: Sequence[list[Any]]) -> NDArray[np.object_]:
    """An array of these very lists."""
    return np.fromiter(lists, np.object_, len(lists))
