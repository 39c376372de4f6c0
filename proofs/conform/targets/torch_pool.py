"""Ours: `BlockPool` with its free queue.

The queue is a stack in front and a tail. In front lie blocks without a hash; in the tail lie the others, and
entries that count for nothing, of blocks that were hit since, before the one that counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from slotproof.impl.allocator.block_pool import BlockPool
from slotproof.proofs.conform.pools import Contents, PoolCall, Seen

LEFT_BEHIND = 2
"""Entries that count for nothing, at most. A pool that gets more than it has blocks sweeps them out."""


class TorchPool:
    """See `PoolTarget`."""

    name = "BlockPool"
    bounds = f"at most {LEFT_BEHIND} entries left behind in the queue before the call"

    def pools(self, held: Contents, references: Mapping[int, Any]) -> Iterator[BlockPool]:
        """Those with each number of blocks in front, and each way to have left entries behind."""
        queue = range(1, held.num_free + 1)
        unhashed = next((n for n, block in enumerate(queue) if block in held.keys), len(queue))
        for in_front in range(unhashed + 1):
            for tail in _tails(held.num_blocks, tuple(queue[in_front:]), LEFT_BEHIND):
                yield self._pool(held, references, tuple(queue[:in_front]), tail)

    @staticmethod
    def _pool(
        held: Contents, references: Mapping[int, Any], front: tuple[int, ...], tail: tuple[int, ...]
    ) -> BlockPool:
        pool = BlockPool(held.num_blocks + 1, enable_caching=True)
        queue = pool.free_queue
        queue._front, queue._tail = list(reversed(front)), deque(tail)
        queue.num_free_blocks = held.num_free
        for block in range(1, held.num_blocks + 1):
            is_there = block <= held.num_free and block not in front
            queue._left_behind[block] = tail.count(block) - is_there
            queue._num_left_behind += queue._left_behind[block]
            pool.ref_cnt[block] = references.get(block, 0)
        for block, key in held.keys.items():
            pool.block_hash[block] = _hash(key)
        for key, blocks in enumerate(held.lists, 1):
            pool._cached[_hash(key)] = blocks[0]
            if blocks[1:]:
                pool._duplicates[_hash(key)] = dict.fromkeys(blocks[1:])
        return pool

    def call(self, pool: BlockPool, call: PoolCall) -> Any:
        given = call.argument
        if call.name == "get_new_blocks":
            return tuple(pool.get_new_blocks(given))
        if call.name == "cache_full_blocks":
            return pool.cache_full_blocks([b for b, _ in given], [_hash(key) for _, key in given])
        if call.name == "reset_prefix_cache":
            return pool.reset_prefix_cache()
        return getattr(pool, call.name)(list(given))

    def seen(self, pool: BlockPool, result: Any) -> Seen:
        queue = tuple(pool.free_queue)
        counted = queue if len(queue) == pool.free_queue.num_free_blocks else (*queue, -1)
        blocks = range(1, pool.num_blocks)
        keys = {b: int(h) for b in blocks if (h := pool.block_hash[b]) is not None}
        lists = {(int(h), (b, *pool._duplicates.get(h, ()))) for h, b in pool._cached.items()}
        return Seen(result, counted, {b: pool.ref_cnt[b] for b in blocks}, keys, frozenset(lists))


def _hash(key: int) -> bytes:
    return str(key).encode()


def _tails(num_blocks: int, counting: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """The entries that count, with up to so many others among them, each before the one of its block."""
    found = {counting: None}
    yield counting
    for _ in range(most):
        longer: dict[tuple[int, ...], None] = {}
        for tail in found:
            for block, place in product(range(1, num_blocks + 1), range(len(tail) + 1)):
                if block not in counting or block in tail[place:]:
                    longer[(*tail[:place], block, *tail[place:])] = None
        yield from longer
        found = longer
