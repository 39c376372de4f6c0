"""A decode step of many running requests, as one call on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotproof.impl.allocator.block_pool import BlockPool
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.managers.full_attention import FullAttentionManager
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.allocator.row_counts import Int64s


@dataclass(frozen=True)
class BatchSlots:
    """What a batch was granted. The lists run parallel: an entry for each block that was taken, request by
    request and within one group by group."""

    num_granted: int
    """Requests that have their slots: the first ones. The next one, if any, was refused."""
    indices: list[int]
    """Of the requests that took a block; the others had a slot left."""
    block_ids: list[int]
    """The blocks they took."""
    group_ids: list[int]
    """The groups that they took them for."""


class _Tables:
    """One group's block tables of the requests, in arrays that run parallel to them."""

    def __init__(self, group: SingleTypeKVCacheManager) -> None:
        self.group = group
        none, no_lists = np.zeros(0, np.int64), np.zeros(0, np.object_)
        self.blocks: NDArray[np.object_] = no_lists
        """list[int] [requests]: the tables. As lists lie far apart, an array gathers them fastest."""
        self.keys: NDArray[np.object_] = no_lists
        """list[bytes] [requests]: `Request.block_keys` of the group; none without prefix caching."""
        self.rows: Int64s = none
        """int64 [requests]: rows of the block table."""
        self._serials: Int64s = none
        self._num_removed = group.counts.num_removed

    def add(self, requests: Sequence[Request]) -> None:
        group = self.group
        held = [group.req_to_blocks[request.request_id] for request in requests]
        rows = np.array([table.row for table in held], np.int64)
        self.blocks = np.append(self.blocks, _lists([table.blocks for table in held]))
        if group.block_pool.enable_caching:
            keys = _lists([request.block_keys[group.group_id] for request in requests])
            self.keys = np.append(self.keys, keys)
        self.rows = np.append(self.rows, rows)
        self._serials = np.append(self._serials, group.counts.serial[rows])

    def remove(self, index: int) -> None:
        self.blocks = np.delete(self.blocks, index)
        if len(self.keys):
            self.keys = np.delete(self.keys, index)
        self.rows = np.delete(self.rows, index)
        self._serials = np.delete(self._serials, index)

    def freed(self) -> int | None:
        """Of a request that was freed since it was added, if there is one, the position."""
        counts = self.group.counts
        if counts.num_removed != self._num_removed:
            freed = np.flatnonzero(counts.serial[self.rows] != self._serials)
            if freed.size:
                return int(freed[0])
            self._num_removed = counts.num_removed
        return None


class DecodeBatch:
    """Running requests, in order, and the caller's counts of them in arrays that run parallel.

    The counts say what the requests say. Whoever changes one changes the other: for a step that was granted,
    `num_computed_tokens += 1`, and `num_tokens += 1` for each final token that is appended.

    Args:
        groups: The attention groups that have their block tables.
        requests: The first ones, see `add`.

    Raises:
        AllocatorError: see `add`.
    """

    def __init__(self, groups: Sequence[SingleTypeKVCacheManager], requests: Sequence[Request] = ()) -> None:
        self.tables = [_Tables(group) for group in groups]
        self.requests: list[Request] = []
        none = np.zeros(0, np.int64)
        self.num_computed_tokens: Int64s = none
        """int64 [requests]: `Request.num_computed_tokens`."""
        self.num_tokens: Int64s = none
        """int64 [requests]: `Request.num_tokens`."""
        self._ids: set[str] = set()
        self.add(requests)

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, requests: Sequence[Request]) -> None:
        """Put requests at the end.

        Raises:
            AllocatorError: one does not run, holds no blocks, or is in the batch already; none was added.
        """
        held = self.tables[0].group.req_to_blocks
        ids = {request.request_id for request in requests}
        for request in requests:
            if request.status is not RequestStatus.RUNNING or request.request_id not in held:
                raise AllocatorError(f"request {request.request_id} does not run: it cannot decode")
            if request.request_id in self._ids:
                raise AllocatorError(f"request {request.request_id} is in the batch already")
        if len(ids) < len(requests):
            raise AllocatorError("a request is named twice: it decodes one token a step")
        computed = np.array([request.num_computed_tokens for request in requests], np.int64)
        final = np.array([request.num_tokens for request in requests], np.int64)
        for tables in self.tables:
            tables.add(requests)
        self.requests.extend(requests)
        self.num_computed_tokens = np.append(self.num_computed_tokens, computed)
        self.num_tokens = np.append(self.num_tokens, final)
        self._ids |= ids

    def remove(self, request: Request) -> None:
        """Take a request out, before or after it is freed; the others keep their order.

        Raises:
            ValueError: it is not in the batch.
        """
        index = self.requests.index(request)
        del self.requests[index]
        for tables in self.tables:
            tables.remove(index)
        self.num_computed_tokens = np.delete(self.num_computed_tokens, index)
        self.num_tokens = np.delete(self.num_tokens, index)
        self._ids.remove(request.request_id)

    def check_held(self) -> None:
        """Raise AllocatorError if a request was freed since it was added."""
        for tables in self.tables:
            index = tables.freed()
            if index is not None:
                name = self.requests[index].request_id
                raise AllocatorError(f"request {name} was freed: remove it from the batch")

    def check_length(self, indices: NDArray[np.intp], max_model_len: int) -> None:
        """Raise AllocatorError if one of these requests has computed all the tokens it may have."""
        done = indices[self.num_computed_tokens[indices] >= max_model_len]
        if done.size:
            request = self.requests[int(done[0])]
            raise AllocatorError(
                f"request {request.request_id} has computed max_model_len {max_model_len} tokens: finish it"
            )

    def due(self, enable_caching: bool) -> NDArray[np.intp]:
        """The requests for which a decode may do anything: take a block, give one back, or fill one."""
        computed = self.num_computed_tokens
        due = np.zeros(len(self), np.bool_)
        for tables in self.tables:
            counts, rows = tables.group.counts, tables.rows
            due |= computed >= counts.takes_at.take(rows)
            due |= computed >= counts.gives_at.take(rows)
            if enable_caching:
                due |= computed >= counts.fills_at.take(rows)
        return np.flatnonzero(due)


def allocate_full_attention(
    batch: DecodeBatch,
    block_pool: BlockPool,
    groups: Sequence[FullAttentionManager],
    max_model_len: int,
    enable_caching: bool,
) -> BatchSlots:
    """`allocate_slots(request, 1)` for the requests of a batch, in order, until one is refused; of an engine
    whose groups are all of full attention.

    All blocks are taken before any is published, where calls in order take turns. The outcome is the same:
    what is taken was free, what is published is held, and hits are looked up by neither.

    Raises:
        AllocatorError: a request has no token left to compute; nothing has changed.
    """
    # Stages 0 and 1 have nothing to do: nobody is admitted, and full attention gives nothing back.
    # Stage 2: count. The first for whom not all its blocks are left is refused, and ends the batch.
    computed = batch.num_computed_tokens
    taking = [np.flatnonzero(computed >= t.group.counts.takes_at.take(t.rows)) for t in batch.tables]
    batch.check_length(taking[0], max_model_len)
    indices, group_ids = _merged(taking)
    num_granted, num_free = len(batch), block_pool.get_num_free_blocks()
    if len(indices) > num_free:
        num_granted = int(indices[num_free])
        num_taken = int(np.searchsorted(indices, num_granted))
        indices, group_ids = indices[:num_taken], group_ids[:num_taken]
        taking = [of_group[: np.searchsorted(of_group, num_granted)] for of_group in taking]

    # Stage 3: commit.
    new_blocks = block_pool.get_new_blocks(len(indices))
    for group, tables, of_group in zip(groups, batch.tables, taking, strict=True):
        blocks = new_blocks if len(groups) == 1 else list(compress(new_blocks, group_ids == group.group_id))
        group.append_block_each(tables.rows[of_group], tables.blocks[of_group].tolist(), blocks)

    # Stage 4: hashes, for final tokens only, up to where a block of every group ends.
    if enable_caching:
        for group, tables in zip(groups, batch.tables, strict=True):
            rows = tables.rows[:num_granted]
            filled = np.flatnonzero(computed[:num_granted] >= group.counts.fills_at.take(rows))
            num_final = np.minimum(computed[filled] + 1, batch.num_tokens[filled])
            if group.scheduler_block_size != group.block_size:
                num_final -= num_final % group.scheduler_block_size
            group.cache_blocks_each(
                rows[filled],
                tables.blocks[filled].tolist(),
                tables.keys[filled].tolist(),
                num_final // group.block_size,
            )
    return BatchSlots(num_granted, indices.tolist(), new_blocks, group_ids.tolist())


def _merged(taking: Sequence[NDArray[np.intp]]) -> tuple[NDArray[np.intp], Int64s]:
    """Of the requests that take a block in each group: the requests, in order, one for each block, and the
    groups beside them."""
    if len(taking) == 1:
        return taking[0], np.zeros(len(taking[0]), np.int64)
    indices = np.concatenate(taking)
    order = np.argsort(indices, kind="stable")
    group_ids = np.repeat(np.arange(len(taking)), [len(of_group) for of_group in taking])
    return indices[order], group_ids[order]


def _lists(lists: Sequence[list[Any]]) -> NDArray[np.object_]:
    """An array of these very lists."""
    return np.fromiter(lists, np.object_, len(lists))
