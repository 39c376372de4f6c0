"""The coordinator: makes the attention groups act as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import cycle
from typing import TypeAlias

import torch

from slotproof.impl.allocator.block_pool import BlockPool
from slotproof.impl.allocator.managers.full_attention import FullAttentionManager
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
        self, block_keys: Sequence[Sequence[bytes]], max_length: int
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

    def check_can_cache(self, request: Request, num_computed_tokens: int) -> None:
        """Raise AllocatorError if `cache_blocks` would, in any group."""
        for manager in self.single_type_managers:
            manager.check_can_cache(request, num_computed_tokens)

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
        self, block_keys: Sequence[Sequence[bytes]], max_length: int
    ) -> tuple[KVCacheBlocks, int]:
        """See `KVCacheCoordinator`."""
        hit = self._manager.find_longest_cache_hit(block_keys[0], max_length)
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


class HybridKVCacheCoordinator(KVCacheCoordinator):
    """Several attention groups, of any kinds and block sizes.

    Args:
        block_pool: The pool, which all groups share.
        single_type_managers: One manager for each attention group.
        scheduler_block_size: Tokens, whole blocks of every group. Hits end at multiples of it, and no block
            past the last multiple is published.
    """

    def __init__(
        self,
        block_pool: BlockPool,
        single_type_managers: tuple[SingleTypeKVCacheManager, ...],
        scheduler_block_size: int,
    ) -> None:
        super().__init__(block_pool, single_type_managers)
        self.scheduler_block_size = scheduler_block_size
        # A hit of full attention may be cut anywhere and still is one, so it is looked up once.
        is_prefix = [isinstance(manager, FullAttentionManager) for manager in single_type_managers]
        self._prefix_groups = [g for g, prefix in enumerate(is_prefix) if prefix]
        self._other_groups = [g for g, prefix in enumerate(is_prefix) if not prefix]

    def find_longest_cache_hit(
        self, block_keys: Sequence[Sequence[bytes]], max_length: int
    ) -> tuple[KVCacheBlocks, int]:
        """See `KVCacheCoordinator`. Each group in turn is asked for its longest hit within the one before,
        until all in a row have found the same length: so no common length is passed over."""
        managers = self.single_type_managers
        hits: list[list[int]] = [[] for _ in managers]
        length = self._whole_units(max_length)
        for g in self._prefix_groups:
            hits[g] = managers[g].find_longest_cache_hit(block_keys[g], length)
            length = len(hits[g]) * managers[g].block_size
        num_agreed = 0
        for g in cycle(self._other_groups):
            hits[g] = managers[g].find_longest_cache_hit(block_keys[g], length)
            found = len(hits[g]) * managers[g].block_size
            num_agreed = num_agreed + 1 if found == length else 1
            length = found
            if num_agreed == len(self._other_groups):
                break
        return tuple([hit[: length // m.block_size] for hit, m in zip(hits, managers, strict=True)]), length

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """See `KVCacheCoordinator`."""
        super().cache_blocks(request, self._whole_units(num_computed_tokens))

    def check_can_cache(self, request: Request, num_computed_tokens: int) -> None:
        """See `KVCacheCoordinator`."""
        super().check_can_cache(request, self._whole_units(num_computed_tokens))

    def _whole_units(self, num_tokens: int) -> int:
        return num_tokens // self.scheduler_block_size * self.scheduler_block_size
