"""The block pool: reference counts, the prefix cache and the free queue of all KV-cache blocks."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import repeat

from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.free_queue import FreeQueue

NULL_BLOCK = 0
"""Stands in block tables where attention never looks: never free, hashed or handed out."""

_NEVER_FREE = 1 << 60


class BlockPool:
    """Blocks are integers; what is known of them lies in flat lists on the host, indexed by block.

    The host is the authority because every admission depends on these counts: read from the device,
    each read would wait for all work queued on its stream. Plain lists, because calls touch a few
    blocks at a time, where an array library's overhead for each operation outweighs the work.

    Args:
        num_blocks: Blocks in the pool, the null block included.
        enable_caching: Whether freed blocks keep their place by their hash (LRU), see `release`.
    """

    def __init__(self, num_blocks: int, enable_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.ref_cnt = [0] * num_blocks
        # Nobody counts references to the null block; from here they never bring it to 0.
        self.ref_cnt[NULL_BLOCK] = _NEVER_FREE
        self.block_hash: list[bytes | None] = [None] * num_blocks
        self.free_queue = FreeQueue(num_blocks)
        self._cached: dict[bytes, int] = {}  # the earliest live block of each hash: the hit
        self._duplicates: dict[bytes, dict[int, None]] = {}  # later blocks of the same hash, in order

    def get_num_free_blocks(self) -> int:
        """Blocks in the free queue, cached ones included."""
        return self.free_queue.num_free_blocks

    def get_usage(self) -> float:
        """Share of the pool that requests hold, 0.0 to 1.0; cached blocks that are free do not count."""
        usable = self.num_blocks - 1
        return 1.0 - self.free_queue.num_free_blocks / usable if usable else 0.0

    def get_cached_block(self, block_hash: bytes) -> int | None:
        """The block cached earliest, among those that still hold this content; None if none does."""
        return self._cached.get(block_hash)

    def get_cached_prefix(self, block_hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of these hashes, up to the first that has none."""
        blocks: list[int] = []
        for block in map(self._cached.get, block_hashes):
            if block is None:
                break
            blocks.append(block)
        return blocks

    def copies(self) -> tuple[tuple[int, ...], ...]:
        """The blocks under each hash, the hit first."""
        later = self._duplicates
        return tuple(sorted((first, *later.get(key, ())) for key, first in self._cached.items()))

    def uncached(self, blocks: Sequence[int]) -> list[int]:
        """Those of the named blocks, ids of this pool or not, that are not in the prefix cache; null blocks
        aside, which lead where there are any."""
        known, block_hash = self.num_blocks, self.block_hash
        if num_null := blocks.count(NULL_BLOCK):
            blocks = blocks[num_null:] if not any(blocks[:num_null]) else [b for b in blocks if b]
        in_range = not blocks or (min(blocks) >= 0 and max(blocks) < known)
        if in_range and None not in map(block_hash.__getitem__, blocks):  # as good as always
            return []
        return [block for block in blocks if not 0 <= block < known or block_hash[block] is None]

    def get_new_blocks(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the free queue; they lose their hashes (popping evicts).

        Raises:
            AllocatorError: fewer are free, or the count is negative.
        """
        if not 0 <= num_blocks <= self.free_queue.num_free_blocks:
            raise AllocatorError(
                f"cannot take {num_blocks} blocks: {self.free_queue.num_free_blocks} are free"
            )
        num_unhashed = self.free_queue.num_in_front  # see `release`
        blocks = self.free_queue.popleft_n(num_blocks)
        self._evict(blocks[num_unhashed:])
        ref_cnt = self.ref_cnt
        for block in blocks:
            ref_cnt[block] = 1
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Add one reference to each block of a hit; an idle one leaves the free queue. Ids are in range."""
        ref_cnt = self.ref_cnt
        if not any(map(ref_cnt.__getitem__, blocks)) and len(set(blocks)) == len(blocks):  # all are idle
            deque(map(ref_cnt.__setitem__, blocks, repeat(1)), maxlen=0)
            self.free_queue.remove_n(blocks)
            return
        idle: list[int] = []
        for block in blocks:
            count = ref_cnt[block]
            ref_cnt[block] = count + 1
            if count == 0:
                idle.append(block)
        self.free_queue.remove_n(idle)

    def free_blocks(self, ordered_blocks: Sequence[int]) -> None:
        """`release`, for blocks of the caller's own choice.

        Raises:
            AllocatorError: an id is out of range, or a block is named more often than it is referenced.
        """
        self.check_ids(ordered_blocks)
        for block, times in Counter(ordered_blocks).items():
            if times > self.ref_cnt[block]:
                raise AllocatorError(
                    f"block {block} is freed {times} times and has {self.ref_cnt[block]} references: "
                    "free a block once for each reference"
                )
        self.release(ordered_blocks)

    def release(self, ordered_blocks: Iterable[int]) -> None:
        """Drop one reference from each block, those to be reused first coming first.

        Blocks without references become free. Unhashed ones, good for nothing but reuse, go to the front
        of the queue; hashed ones to its tail, so that the least recently used are evicted first (0.32.0).
        The caller owns the references, as block tables do: nothing is checked.
        """
        ref_cnt, block_hash = self.ref_cnt, self.block_hash
        reuse_first: list[int] = []
        reuse_last: list[int] = []
        for block in ordered_blocks:
            left = ref_cnt[block] - 1
            ref_cnt[block] = left
            if left == 0:
                if block_hash[block] is None:
                    reuse_first.append(block)
                else:
                    reuse_last.append(block)
        self.free_queue.prepend_n(reuse_first)
        self.free_queue.append_n(reuse_last)

    def cache_full_blocks(self, blocks: Sequence[int], block_hashes: Sequence[bytes]) -> None:
        """Publish full blocks under their hashes, which run parallel to them. Null blocks are passed over.

        Raises:
            AllocatorError: a block is cached already.
        """
        of_block, cached = self.block_hash, self._cached
        if any(map(of_block.__getitem__, blocks)):
            block = next(block for block in blocks if of_block[block] is not None)
            raise AllocatorError(f"block {block} is cached already: it can hold one hash only")
        if NULL_BLOCK in blocks:
            pairs = [pair for pair in zip(blocks, block_hashes, strict=True) if pair[0] != NULL_BLOCK]
            blocks, block_hashes = [block for block, _ in pairs], [block_hash for _, block_hash in pairs]
        for block, block_hash in zip(blocks, block_hashes, strict=True):
            of_block[block] = block_hash
        earliest = list(map(cached.setdefault, block_hashes, blocks))
        if earliest != blocks:
            for block, block_hash, hit in zip(blocks, block_hashes, earliest, strict=True):
                if hit != block:
                    self._duplicates.setdefault(block_hash, {})[block] = None

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """The named blocks lose their hashes, and stay where they are.

        Raises:
            AllocatorError: an id is out of range.
        """
        block_ids = set(block_ids)
        self.check_ids(block_ids)
        self._evict(block_ids)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, unless a request still holds a block; whether it was done."""
        if self.free_queue.num_free_blocks != self.num_blocks - 1:
            return False
        self.block_hash = [None] * self.num_blocks
        self._cached.clear()
        self._duplicates.clear()
        return True

    def check_ids(self, blocks: Iterable[int]) -> None:
        """Raise AllocatorError if an id is not one of this pool."""
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise AllocatorError(
                    f"block {block} is out of range: the pool has 0 to {self.num_blocks - 1}"
                )

    def _evict(self, blocks: Iterable[int]) -> None:
        of_block, cached, duplicates = self.block_hash, self._cached, self._duplicates
        for block in blocks:
            block_hash = of_block[block]
            if block_hash is None:
                continue
            of_block[block] = None
            if block_hash not in duplicates:
                del cached[block_hash]
                continue
            later = duplicates[block_hash]
            if cached[block_hash] == block:
                block = cached[block_hash] = next(iter(later))
            del later[block]
            if not later:
                del duplicates[block_hash]
