"""What a live manager shows, place by place, so that nobody has to look at all of it after each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from slotproof.impl.protocol import Snapshot
from slotproof.impl.vllm.parts import snapshot


class View:
    """A `KVCacheManager`, looked at and never changed."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._pool = manager.block_pool
        self._groups = manager.coordinator.single_type_managers

    @property
    def num_free(self) -> int:
        return int(self._pool.free_block_queue.num_free_blocks)

    @property
    def usage(self) -> float:
        return float(self._manager.usage)

    @property
    def requests(self) -> set[str]:
        """The requests that have a block table."""
        return {name for group in self._groups for name, table in group.req_to_blocks.items() if table}

    def ref_cnt(self, block: int) -> int:
        return int(self._pool.blocks[block].ref_cnt)

    def key(self, block: int) -> Any:
        """The key that the block can be found by, None if there is none."""
        key = self._pool.blocks[block].block_hash
        return key if key is not None and self._pool.cached_block_hash_to_block.contain(key, block) else None

    def is_free(self, block: int) -> bool:
        return self._pool.blocks[block].next_free_block is not None

    def front(self, n: int) -> list[int]:
        """The first n free blocks, fewer if there are fewer."""
        queue = self._pool.free_block_queue
        found: list[int] = []
        block = queue.fake_free_list_head.next_free_block
        while len(found) < n and block is not None and block is not queue.fake_free_list_tail:
            found.append(block.block_id)
            block = block.next_free_block
        return found

    def back(self, n: int) -> list[int]:
        """The last n free blocks, the last first."""
        queue = self._pool.free_block_queue
        found: list[int] = []
        block = queue.fake_free_list_tail.prev_free_block
        while len(found) < n and block is not None and block is not queue.fake_free_list_head:
            found.append(block.block_id)
            block = block.prev_free_block
        return found

    def length(self, request: str, group: int) -> int:
        """Entries of a block table."""
        return len(self._groups[group].req_to_blocks.get(request, ()))

    def entry(self, request: str, group: int, i: int) -> int:
        """An entry of a block table."""
        return int(self._groups[group].req_to_blocks[request][i].block_id)

    def to_zero(self, group: int) -> Sequence[int]:
        """A group's blocks to zero."""
        blocks: list[int] = self._groups[group].new_block_ids
        return blocks

    def whole(self, number: Any) -> Snapshot:
        """All of it."""
        shown = snapshot(self._manager, number)
        return structs.replace(shown, hashes=tuple(self.key(b) for b in range(len(shown.hashes))))
