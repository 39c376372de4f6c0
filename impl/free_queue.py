"""The free queue: which blocks are free, and in which order they are taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class FreeQueue:
    """A doubly linked list over block ids, in two flat lists of integers.

    A block is taken from the front; a cache hit leaves from the middle, in constant time. The links of
    a block that is not free are stale: the caller knows which blocks are free (`ref_cnt` 0).

    Args:
        num_blocks: Ids are `0 .. num_blocks - 1`; all but block 0, the null block, start free, in order.
    """

    def __init__(self, num_blocks: int) -> None:
        # Entry num_blocks of both lists is the end that closes the ring: its next is the front.
        self._end = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [num_blocks, *range(num_blocks)]
        self.num_free_blocks = num_blocks
        """How many blocks are free."""
        self.remove(0)

    def __iter__(self) -> Iterator[int]:
        """Free blocks, next to be taken first."""
        block = self._next[self._end]
        while block != self._end:
            yield block
            block = self._next[block]

    def popleft_n(self, count: int) -> list[int]:
        """Take `count` blocks from the front; the caller has checked that there are as many."""
        following = self._next
        block = self._end
        taken = [block := following[block] for _ in range(count)]
        front = following[block]
        following[self._end] = front
        self._prev[front] = self._end
        self.num_free_blocks -= count
        return taken

    def remove(self, block: int) -> None:
        """Take a free block out from wherever it is."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free_blocks -= 1

    def prepend_n(self, blocks: Sequence[int]) -> None:
        """Put blocks at the front, the first of them to be taken first."""
        self._insert(self._end, blocks)

    def append_n(self, blocks: Sequence[int]) -> None:
        """Put blocks at the tail, in order."""
        self._insert(self._prev[self._end], blocks)

    def _insert(self, before: int, blocks: Sequence[int]) -> None:
        following, preceding = self._next, self._prev
        after = following[before]
        for block in blocks:
            following[before] = block
            preceding[block] = before
            before = block
        following[before] = after
        preceding[after] = before
        self.num_free_blocks += len(blocks)
