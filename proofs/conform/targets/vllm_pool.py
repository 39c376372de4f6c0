"""vLLM 0.32.0: `BlockPool`, with its linked list of free blocks and its map from keys to blocks.

A key's only block is in the map by itself, or, where another was evicted, in a dictionary of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

from slotproof.impl.vllm.parts import require_vllm
from slotproof.proofs.conform.pools import Contents, PoolCall, Seen


class VllmPool:
    """See `PoolTarget`. Raises ImportError if vLLM is not installed, or does not import."""

    name = "BlockPool"
    bounds = ""

    def __init__(self) -> None:
        require_vllm("vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_utils")

    def pools(self, held: Contents, references: Mapping[int, Any]) -> Iterator[Any]:
        alone = [key for key, blocks in enumerate(held.lists, 1) if len(blocks) == 1]
        for by_itself in product((True, False), repeat=len(alone)):
            singles = {key for key, is_alone in zip(alone, by_itself, strict=True) if is_alone}
            yield self._pool(held, references, singles)

    @staticmethod
    def _pool(held: Contents, references: Mapping[int, Any], singles: set[int]) -> Any:
        from vllm.v1.core.block_pool import BlockPool

        pool = BlockPool(held.num_blocks + 1, enable_caching=True, hash_block_size=1)
        for block in pool.blocks[held.num_free + 1 :]:
            pool.free_block_queue.remove(block)
        for number, count in references.items():
            pool.blocks[number].ref_cnt = count
        for key, blocks in enumerate(held.lists, 1):
            of_key = {number: pool.blocks[number] for number in blocks}
            for block in of_key.values():
                block.set_block_hash(_hash(key), num_tokens=1)
            pool.cached_block_hash_to_block._cache[_hash(key)] = (
                of_key[blocks[0]] if key in singles else of_key
            )
        return pool

    def call(self, pool: Any, call: PoolCall) -> Any:
        given = call.argument
        if call.name == "get_new_blocks":
            return tuple(block.block_id for block in pool.get_new_blocks(given))
        if call.name == "cache_full_blocks":
            request: Any = SimpleNamespace(block_hashes=[_key(key) for _, key in given])
            blocks = [pool.blocks[number] for number, _ in given]
            return pool.cache_full_blocks(request, blocks, 0, len(blocks), 1, 0)
        if call.name == "reset_prefix_cache":
            return pool.reset_prefix_cache()
        if call.name == "evict_blocks":
            return pool.evict_blocks(set(given))
        return getattr(pool, call.name)([pool.blocks[number] for number in given])

    def seen(self, pool: Any, result: Any) -> Seen:
        queue = pool.free_block_queue
        forth, back = (
            _walk(queue.fake_free_list_head, "next_free_block", queue.fake_free_list_tail),
            _walk(queue.fake_free_list_tail, "prev_free_block", queue.fake_free_list_head),
        )
        is_whole = forth == back[::-1] and len(forth) == queue.num_free_blocks
        blocks = [block for block in pool.blocks if not block.is_null]
        taken = [block for block in blocks if block.block_id not in forth]
        is_apart = all(block.prev_free_block is block.next_free_block is None for block in taken)
        keys = {block.block_id: _number(block.block_hash) for block in blocks if block.block_hash is not None}
        lists = {
            (_number(key), tuple(held) if isinstance(held, dict) else (held.block_id,))
            for key, held in pool.cached_block_hash_to_block._cache.items()
        }
        return Seen(
            result,
            forth if is_whole and is_apart else (-1,),
            {block.block_id: block.ref_cnt for block in blocks},
            keys,
            frozenset(lists),
        )


def _walk(start: Any, link: str, end: Any) -> tuple[int, ...]:
    found: list[int] = []
    block = getattr(start, link)
    while block is not end and block is not None and block.block_id not in found:
        found.append(block.block_id)
        block = getattr(block, link)
    return tuple(found) if block is end else (-1,)


def _key(key: int) -> Any:
    from vllm.v1.core.kv_cache_utils import BlockHash

    return BlockHash(key.to_bytes(4, "big"))


def _hash(key: int) -> Any:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    return make_block_hash_with_group_id(_key(key), 0)


def _number(key: Any) -> int:
    from vllm.v1.core.kv_cache_utils import get_block_hash

    return int.from_bytes(get_block_hash(key), "big")
