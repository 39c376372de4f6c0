"""The free queue: which blocks are free, and in which order they are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence


class FreeQueue:
    """Two parts, taken one after the other: in front a stack, behind it a queue.

    Blocks that are good for nothing but reuse come back to the front. Cached ones go to the tail, and a hit
    may take them out from anywhere: the block's entry stays behind, and is passed over when its turn comes.
    As a block comes back at the end only, its entries that count for nothing precede the one that counts.
    So every operation works in bulk, and takes constant time for each block (on average: once as many
    entries as there are blocks have been left behind, they are swept out).

    Args:
        num_blocks: Ids are `0 .. num_blocks - 1`; all but block 0, the null block, start free, in order.
    """

    def __init__(self, num_blocks: int) -> None:
        self._front = list(range(num_blocks - 1, 0, -1))  # the last one is taken first
        self._tail: deque[int] = deque()
        self._left_behind = [
            0
        ] * num_blocks  # by block, how many of its entries in the tail count for nothing
        self._num_left_behind = 0
        self.num_free_blocks = num_blocks - 1
        """How many blocks are free."""

    def __iter__(self) -> Iterator[int]:
        """Free blocks, next to be taken first."""
        yield from reversed(self._front)
        yield from self._entries_that_count()

    @property
    def num_in_front(self) -> int:
        """How many blocks are taken before the first that was appended at the tail."""
        return len(self._front)

    def popleft_n(self, count: int) -> list[int]:
        """Take `count` blocks from the front; the caller has checked that there are as many."""
        start = max(len(self._front) - count, 0)
        taken = self._front[start:]
        del self._front[start:]
        taken.reverse()
        left_behind = self._left_behind
        while len(taken) < count:
            block = self._tail.popleft()
            if left_behind[block]:
                left_behind[block] -= 1
                self._num_left_behind -= 1
            else:
                taken.append(block)
        self.num_free_blocks -= count
        return taken

    def remove_n(self, blocks: Sequence[int]) -> None:
        """Take blocks out from wherever they are in the tail: each was appended and is free."""
        left_behind = self._left_behind
        for block in blocks:
            left_behind[block] += 1
        self._num_left_behind += len(blocks)
        self.num_free_blocks -= len(blocks)
        if self._num_left_behind > len(left_behind):
            self._tail = deque(self._entries_that_count())
            self._left_behind = [0] * len(left_behind)
            self._num_left_behind = 0

    def prepend_n(self, blocks: Sequence[int]) -> None:
        """Put blocks at the front, the first of them to be taken first."""
        self._front.extend(reversed(blocks))
        self.num_free_blocks += len(blocks)

    def append_n(self, blocks: Sequence[int]) -> None:
        """Put blocks at the tail, in order."""
        self._tail.extend(blocks)
        self.num_free_blocks += len(blocks)

    def _entries_that_count(self) -> Iterator[int]:
        """The blocks of the tail, in order."""
        left_behind = self._left_behind.copy()
        for block in self._tail:
            if left_behind[block]:
                left_behind[block] -= 1
            else:
                yield block
