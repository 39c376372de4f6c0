"""One attention group: the block tables of its requests, and what its kind of attention needs of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from slotproof.impl.allocator.block_pool import NULL_BLOCK, BlockPool
from slotproof.impl.allocator.block_table import BlockTable
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.request import Request
from slotproof.impl.allocator.row_counts import RowCounts


class RequestBlocks:
    """What one request holds: its table, and the row of it."""

    __slots__ = ("blocks", "row")

    def __init__(self, blocks: list[int], row: int) -> None:
        self.blocks = blocks
        self.row = row


class SingleTypeKVCacheManager(ABC):
    """Block tables by request; a request is in `req_to_blocks` from its first granted slots to its release.

    Counts and ids come checked from `KVCacheManager`; methods here assume them.

    Args:
        block_size: Tokens in a block.
        block_pool: The pool, which all groups share.
        block_table: The device's copy of this group's tables.
        max_model_len: Tokens a request may have.
        group_id: The group's number.
        scheduler_block_size: Tokens, whole blocks of every group; hits end at multiples of it.
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
    ) -> None:
        self.group_id = group_id
        self.block_size = block_size
        self.scheduler_block_size = scheduler_block_size
        self.max_model_len = max_model_len
        self.block_pool = block_pool
        self.block_table = block_table
        self.max_admission_blocks: int | None = None
        """Most blocks that admission asks for; None where a request keeps every block."""
        self.req_to_blocks: dict[str, RequestBlocks] = {}
        self.counts = RowCounts(block_size, max_model_len, scheduler_block_size)
        """Counts of the tables by their rows, for calls on many requests at once."""
        self.new_block_ids: list[int] = []
        """Blocks to zero, in the order they were taken."""

    @abstractmethod
    def find_longest_cache_hit(self, block_keys: Sequence[bytes], max_length: int) -> list[int]:
        """Cached blocks for a prefix, null where they are skipped.

        Args:
            block_keys: What the request's blocks of this group are found by.
            max_length: Tokens that the prefix may have; it has a multiple of `scheduler_block_size`.
        """

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that attention never looks at again, once so many are computed."""

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[int],
        total_computed_tokens: int,
        apply_admission_cap: bool,
    ) -> int:
        """How far the free count falls if this group gives the request slots for `num_tokens` tokens.

        An idle hit counts although no memory is newly used: touching takes it out of the free queue.

        Args:
            request_id: The request.
            num_tokens: Tokens that need a slot, those that have one included.
            new_computed_blocks: The hit, empty for a request that holds blocks.
            total_computed_tokens: Computed tokens, the hit's and external ones included.
            apply_admission_cap: Count no more than a request can hold at once (stage 0 only).
        """
        num_required = -(-num_tokens // self.block_size)
        if apply_admission_cap and self.max_admission_blocks is not None:
            num_required = min(num_required, self.max_admission_blocks)
        held = self.req_to_blocks.get(request_id)
        if held is not None:
            num_missing = num_required - len(held.blocks)
            return num_missing if num_missing > 0 else 0
        num_skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        num_new = max(num_required - max(num_skipped, len(new_computed_blocks)), 0)
        references = map(self.block_pool.ref_cnt.__getitem__, new_computed_blocks[num_skipped:])
        return num_new + list(references).count(0)

    def add_local_computed_blocks(
        self, request_id: str, new_computed_blocks: Sequence[int], total_computed_tokens: int
    ) -> None:
        """Start the table of a request with its hit: touched, and null where attention skips it."""
        num_skipped = self.get_num_skipped_tokens(total_computed_tokens) // self.block_size
        hit = new_computed_blocks[num_skipped:]
        self.block_pool.touch(hit)
        blocks = [NULL_BLOCK] * num_skipped
        blocks += hit
        self._add_table(request_id, blocks, len(blocks), num_skipped)

    def allocate_external_computed_blocks(
        self, request_id: str, total_computed_tokens: int, record_for_zeroing: bool
    ) -> None:
        """Take blocks for external tokens that attention can still see.

        Args:
            request_id: The request, whose hit is in its table.
            total_computed_tokens: Computed tokens, external ones included.
            record_for_zeroing: False when the load may write the blocks before they would be zeroed.
        """
        if self.get_num_skipped_tokens(total_computed_tokens) < total_computed_tokens:
            self._append_new_blocks(self.req_to_blocks[request_id], total_computed_tokens, record_for_zeroing)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[int]:
        """Take the blocks that are missing for `num_tokens` tokens, and return them."""
        held = self.req_to_blocks.get(request_id)
        if held is None:
            held = self._add_table(request_id, [], 0, 0)
        return self._append_new_blocks(held, num_tokens, True)

    def _add_table(
        self, request_id: str, blocks: list[int], num_cached_blocks: int, num_skipped_blocks: int
    ) -> RequestBlocks:
        row = self.block_table.add_row(blocks)
        self.counts.add(row, len(blocks), num_cached_blocks)
        held = self.req_to_blocks[request_id] = RequestBlocks(blocks, row)
        self._note_skipped(held, num_skipped_blocks)
        return held

    def _note_skipped(self, held: RequestBlocks, num_blocks: int) -> None:  # noqa: B027 (most skip nothing)
        """So many leading blocks of a table are null: a kind that skips tokens notes when it gives the next
        one back."""

    def _append_new_blocks(self, held: RequestBlocks, num_tokens: int, record_for_zeroing: bool) -> list[int]:
        end = len(held.blocks)
        num_new = -(-num_tokens // self.block_size) - end
        if num_new <= 0:
            return []
        new_blocks = self.block_pool.get_new_blocks(num_new)
        held.blocks.extend(new_blocks)
        self.counts.set_num_blocks(held.row, end + num_new)
        self.block_table.mark(held.row, end, end + num_new)
        if record_for_zeroing:
            self.new_block_ids.extend(new_blocks)
        return new_blocks

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish the blocks that the first `num_tokens` tokens fill and that are not published yet.

        Raises:
            AllocatorError: see `check_can_cache`.
        """
        num_full = num_tokens // self.block_size
        held = self.req_to_blocks.get(request.request_id)
        if held is not None and num_full <= (num_cached := self.counts.num_cached_of_row[held.row]):
            return
        keys = request.block_keys[self.group_id]
        if held is None or num_full > len(held.blocks) or num_full > len(keys):
            raise self._cannot_cache(request, num_tokens)
        self._publish(held.blocks, keys, num_cached, num_full)
        self.counts.set_num_cached_blocks(held.row, num_full)

    def check_can_cache(self, request: Request, num_tokens: int) -> None:
        """Raise AllocatorError if the request lacks the blocks that the tokens fill, or keys for them."""
        num_full = num_tokens // self.block_size
        held = self.req_to_blocks.get(request.request_id)
        if num_full > min(len(held.blocks) if held else 0, len(request.block_keys[self.group_id])):
            raise self._cannot_cache(request, num_tokens)

    def _cannot_cache(self, request: Request, num_tokens: int) -> AllocatorError:
        held = self.req_to_blocks.get(request.request_id)
        return AllocatorError(
            f"request {request.request_id} cannot cache {num_tokens} tokens: it has "
            f"{len(held.blocks) if held else 0} blocks and {len(request.block_keys[self.group_id])} hashes "
            f"of {self.block_size} tokens"
        )

    def _publish(self, blocks: list[int], keys: list[bytes], start: int, end: int) -> None:
        """Entries `start` to `end` (exclusive) of a table get their keys."""
        self.block_pool.cache_full_blocks(blocks[start:end], keys[start:end])

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Release the blocks whose tokens are all skipped, and put the null block in their place.

        From the last of them backward until a null block: whatever lies before it went earlier.

        Args:
            request_id: The request; nothing happens if it holds no blocks.
            processed_computed_tokens: Tokens that are computed and no longer in flight.
        """
        num_skipped = self.get_num_skipped_tokens(processed_computed_tokens) // self.block_size
        if num_skipped == 0:
            return
        held = self.req_to_blocks.get(request_id)
        if held is None:
            return
        blocks = held.blocks
        end = min(num_skipped, len(blocks))
        start = next((i + 1 for i in range(end - 1, -1, -1) if blocks[i] == NULL_BLOCK), 0)
        if start < end:
            self.block_pool.release(blocks[start:end][::-1])
            blocks[start:end] = [NULL_BLOCK] * (end - start)
            self.block_table.mark(held.row, start, end)
            self._note_skipped(held, end)

    def free(self, request_id: str) -> None:
        """Release all blocks of a request, its tail to be reused first; nothing if it holds none."""
        held = self.req_to_blocks.pop(request_id, None)
        if held is not None:
            self.block_table.remove_row(held.row)
            self.counts.remove(held.row)
            self.block_pool.release(reversed(held.blocks))

    def take_new_block_ids(self) -> list[int]:
        """Drain the list of blocks to zero."""
        taken, self.new_block_ids = self.new_block_ids, []
        return taken
