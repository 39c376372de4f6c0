"""The coordinator: makes the attention groups act as one. One group for now: several will come in here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch

from slotproof.impl.allocator.block_pool import BlockPool
from slotproof.impl.allocator.managers.single_type import SingleTypeKVCacheManager
from slotproof.impl.allocator.request import Request

KVCacheBlocks: TypeAlias = tuple[Sequence[int], ...]
"""Block ids, a sequence for each attention group."""


class KVCacheCoordinator(ABC):
    """Asks every group and puts the answers together. How the hits of groups combine is left to subclasses.

    Args:
        block_pool: The pool, which all groups share.
        single_type_managers: One manager for each attention group.
    """

    def __init__(
        self, block_pool: BlockPool, single_type_managers: tuple[SingleTypeKVCacheManager, ...]
    ) -> None:
        self.block_pool = block_pool
        self.single_type_managers = single_type_managers

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_length: int
    ) -> tuple[KVCacheBlocks, int]:
        """A hit that serves all groups, of at most `max_length` tokens: its blocks, and its tokens."""

    def has_blocks(self, request_id: str) -> bool:
        """Whether slots have been granted to the request: by all groups, as none grants alone."""
        return request_id in self.single_type_managers[0].req_to_blocks

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """Copies of the request's tables, empty if it holds no blocks."""
        held = [manager.req_to_blocks.get(request_id) for manager in self.single_type_managers]
        return tuple(list(table.blocks) if table else [] for table in held)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: KVCacheBlocks,
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """How far the free count falls if all groups give the request slots for `num_tokens` tokens."""
        count = 0
        for group_id, manager in enumerate(self.single_type_managers):
            count += manager.get_num_blocks_to_allocate(
                request_id,
                num_tokens,
                new_computed_blocks[group_id],
                total_computed_tokens,
                apply_admission_cap,
            )
        return count

    def allocate_new_computed_blocks(
        self,
        request_id: str,
        new_computed_blocks: KVCacheBlocks,
        num_local_computed_tokens: int,
        num_external_computed_tokens: int,
        skip_zeroing_group_ids: Sequence[int],
    ) -> None:
        """Adopt the hit of a request that holds no blocks, and take blocks for its external tokens.

        All groups touch their hits before any takes a block, lest one evicts the hit of another.
        """
        total = num_local_computed_tokens + num_external_computed_tokens
        for manager, hit in zip(self.single_type_managers, new_computed_blocks, strict=True):
            manager.add_local_computed_blocks(request_id, hit, total)
        if num_external_computed_tokens > 0:
            for group_id, manager in enumerate(self.single_type_managers):
                zero = group_id not in skip_zeroing_group_ids
                manager.allocate_external_computed_blocks(request_id, total, zero)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> KVCacheBlocks:
        """Take the blocks that are missing for `num_tokens` tokens, and return them."""
        return tuple(
            [manager.allocate_new_blocks(request_id, num_tokens) for manager in self.single_type_managers]
        )

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish the blocks that the computed tokens fill."""
        for manager in self.single_type_managers:
            manager.cache_blocks(request, num_computed_tokens)

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """Release the blocks that attention never looks at again."""
        for manager in self.single_type_managers:
            manager.remove_skipped_blocks(request_id, processed_computed_tokens)

    def free(self, request_id: str) -> None:
        """Release all blocks of a request."""
        for manager in self.single_type_managers:
            manager.free(request_id)

    def take_new_block_ids(self) -> list[int]:
        """Drain the blocks to zero of all groups, group by group."""
        return [block for manager in self.single_type_managers for block in manager.take_new_block_ids()]

    def commit(self) -> tuple[torch.Tensor, ...]:
        """Bring the device's block tables up to date: one tensor for each group, see `BlockTable.commit`."""
        return tuple([manager.block_table.commit() for manager in self.single_type_managers])


class UnitaryKVCacheCoordinator(KVCacheCoordinator):
    """One attention group: its answers are the answers. Every decode comes by: it is asked directly."""

    def __init__(self, block_pool: BlockPool, manager: SingleTypeKVCacheManager) -> None:
        super().__init__(block_pool, (manager,))
        self._manager = manager

    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_length: int
    ) -> tuple[KVCacheBlocks, int]:
        """See `KVCacheCoordinator`."""
        hit = self._manager.find_longest_cache_hit(block_hashes, max_length)
        return (hit,), len(hit) * self._manager.block_size

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: KVCacheBlocks,
        total_computed_tokens: int,
        apply_admission_cap: bool = False,
    ) -> int:
        """See `KVCacheCoordinator`."""
        return self._manager.get_num_blocks_to_allocate(
            request_id, num_tokens, new_computed_blocks[0], total_computed_tokens, apply_admission_cap
        )

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        """See `KVCacheCoordinator`."""
        self._manager.remove_skipped_blocks(request_id, processed_computed_tokens)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """See `KVCacheCoordinator`."""
        self._manager.cache_blocks(request, num_computed_tokens)
