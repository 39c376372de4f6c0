"""The block pool and its free queue: order, references, the prefix cache, misuse."""

from __future__ import annotations

import random

import pytest

from slotproof.impl.allocator.block_pool import NULL_BLOCK, BlockPool
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.free_queue import FreeQueue


def state(pool: BlockPool) -> tuple[object, ...]:
    hits = {block_hash: pool.get_cached_block(block_hash) for block_hash in pool.block_hash if block_hash}
    return list(pool.free_queue), list(pool.ref_cnt), list(pool.block_hash), hits, pool.get_num_free_blocks()


def test_free_queue_keeps_order_like_a_list() -> None:
    rng = random.Random(0)
    queue, order, away, appended = FreeQueue(9), list(range(1, 9)), list[int](), set[int]()
    for _ in range(4000):
        action = rng.choice(("pop", "remove", "prepend", "append"))
        if action == "pop":
            count = rng.randint(0, len(order))
            assert queue.popleft_n(count) == order[:count]
            away += order[:count]
            del order[:count]
        elif action == "remove":
            blocks = [block for block in order if block in appended and rng.random() < 0.5]
            queue.remove_n(blocks)
            order = [block for block in order if block not in blocks]
            away += blocks
        elif action in ("prepend", "append"):
            rng.shuffle(away)
            back = [away.pop() for _ in range(rng.randint(0, len(away)))]
            if action == "prepend":
                queue.prepend_n(back)
                order[:0] = back
                appended.difference_update(back)
            else:
                queue.append_n(back)
                order += back
                appended.update(back)
        assert list(queue) == order
        assert queue.num_free_blocks == len(order)


def test_entries_left_behind_are_swept_out() -> None:
    queue = FreeQueue(9)
    blocks = queue.popleft_n(8)
    queue.append_n(blocks)
    for _ in range(100):
        queue.remove_n(blocks[:3])
        queue.append_n(blocks[:3])
        assert len(queue._tail) <= 8 + 9
        assert sum(queue._left_behind) == queue._num_left_behind == len(queue._tail) - 8
    assert list(queue) == [*blocks[3:], *blocks[:3]]


def test_null_block_is_never_handed_out_hashed_or_freed() -> None:
    pool = BlockPool(4, enable_caching=True)
    pool.cache_full_blocks([NULL_BLOCK], [b"a"])
    assert pool.get_cached_block(b"a") is None
    assert pool.get_new_blocks(3) == [1, 2, 3]
    pool.free_blocks([NULL_BLOCK, NULL_BLOCK, 2])
    assert list(pool.free_queue) == [2]


def test_freed_blocks_unhashed_first_hashed_last() -> None:
    pool = BlockPool(8, enable_caching=True)
    blocks = pool.get_new_blocks(5)
    pool.cache_full_blocks(blocks[:2], [b"a", b"b"])
    pool.free_blocks(blocks[::-1])
    assert list(pool.free_queue) == [5, 4, 3, 6, 7, 2, 1]


def test_without_caching_every_freed_block_is_reused_first() -> None:
    pool = BlockPool(5, enable_caching=False)
    pool.free_blocks(pool.get_new_blocks(2)[::-1])
    assert list(pool.free_queue) == [2, 1, 3, 4]


def test_shared_block_is_free_with_its_last_reference() -> None:
    pool = BlockPool(3, enable_caching=True)
    (block,) = pool.get_new_blocks(1)
    pool.touch([block])
    pool.free_blocks([block])
    assert list(pool.free_queue) == [2]
    pool.free_blocks([block])
    assert list(pool.free_queue) == [1, 2]


def test_touch_takes_an_idle_block_out_of_the_queue() -> None:
    pool = BlockPool(5, enable_caching=True)
    blocks = pool.get_new_blocks(3)
    pool.cache_full_blocks(blocks, [b"a", b"b", b"c"])
    pool.free_blocks(blocks)
    pool.touch([2])
    assert list(pool.free_queue) == [4, 1, 3]
    assert pool.ref_cnt[2] == 1


def test_earliest_cached_live_block_is_the_hit() -> None:
    pool = BlockPool(6, enable_caching=True)
    for block in pool.get_new_blocks(4):
        pool.cache_full_blocks([block], [b"same"])
    assert pool.get_cached_block(b"same") == 1
    pool.evict_blocks([2])  # not the hit
    assert pool.get_cached_block(b"same") == 1
    pool.evict_blocks([1])
    assert pool.get_cached_block(b"same") == 3
    pool.cache_full_blocks([1], [b"same"])  # cached anew, so latest
    pool.evict_blocks([3, 4])
    assert pool.get_cached_block(b"same") == 1
    pool.evict_blocks([1])
    assert pool.get_cached_block(b"same") is None


def test_popping_evicts() -> None:
    pool = BlockPool(2, enable_caching=True)
    pool.cache_full_blocks(pool.get_new_blocks(1), [b"a"])
    pool.free_blocks([1])
    assert pool.get_cached_block(b"a") == 1
    pool.get_new_blocks(1)
    assert pool.get_cached_block(b"a") is None
    assert pool.block_hash[1] is None


def test_reset_needs_every_block_free() -> None:
    pool = BlockPool(4, enable_caching=True)
    pool.cache_full_blocks(pool.get_new_blocks(2), [b"a", b"a"])
    assert not pool.reset_prefix_cache()
    assert pool.get_cached_block(b"a") == 1
    pool.free_blocks([2, 1])
    order = list(pool.free_queue)
    assert pool.reset_prefix_cache()
    assert pool.get_cached_block(b"a") is None
    assert list(pool.free_queue) == order
    pool.cache_full_blocks(pool.get_new_blocks(1), [b"a"])
    pool.evict_blocks([3])
    assert pool.get_cached_block(b"a") is None  # and no duplicate of old comes back


def test_usage_counts_held_blocks_only() -> None:
    pool = BlockPool(5, enable_caching=True)
    assert pool.get_usage() == 0.0
    pool.cache_full_blocks(pool.get_new_blocks(2), [b"a", b"b"])
    assert pool.get_usage() == 0.5
    pool.free_blocks([2, 1])
    assert pool.get_usage() == 0.0
    assert BlockPool(1, enable_caching=True).get_usage() == 0.0


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda pool: pool.free_blocks([2, 2]), r"^block 2 is freed 2 times and has 1 references"),
        (lambda pool: pool.free_blocks([2, 3]), r"^block 3 is freed 1 times and has 0 references"),
        (lambda pool: pool.free_blocks([2, 5]), r"^block 5 is out of range: the pool has 0 to 4$"),
        (lambda pool: pool.free_blocks([2, -1]), r"^block -1 is out of range"),
        (lambda pool: pool.evict_blocks([1, 5]), r"^block 5 is out of range"),
        (lambda pool: pool.evict_blocks([1, -4]), r"^block -4 is out of range"),
        (lambda pool: pool.get_new_blocks(3), r"^cannot take 3 blocks: 2 are free$"),
        (lambda pool: pool.get_new_blocks(-1), r"^cannot take -1 blocks"),
        (lambda pool: pool.cache_full_blocks([2, 1], [b"x", b"y"]), r"^block 1 is cached already"),
    ],
)
def test_misuse_is_named_and_changes_nothing(misuse, message: str) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(5, enable_caching=True)
    pool.cache_full_blocks(pool.get_new_blocks(2)[:1], [b"a"])
    before = state(pool)
    with pytest.raises(AllocatorError, match=message) as error:
        misuse(pool)
    assert "\n" not in str(error.value)
    assert state(pool) == before
