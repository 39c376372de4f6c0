"""Ways to make vLLM's classes do something else, for as long as a context lasts (vLLM 0.32.0).

vLLM is imported when a patch is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """The attribute is `make(original)` while the context lasts, with the original's signature: some look at
    it to see what a release takes."""
    original = vars(owner)[name]
    made = make(original)
    setattr(owner, name, wraps(original)(made) if callable(original) and made is not original else made)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def held(owner: Any, **values: Any) -> Iterator[None]:
    """The object's attributes have these values while the context lasts."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def allocation(make: Callable[[Any], Any]) -> Any:
    """`KVCacheManager.allocate_slots` is `make(original)`."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    return replaced(KVCacheManager, "allocate_slots", make)


def always(**arguments: Any) -> Any:
    """`allocate_slots` as if these arguments had been given."""
    return allocation(
        lambda original: lambda self, *args, **options: original(self, *args, **{**options, **arguments})
    )


def with_request(**values: Any) -> Any:
    """`allocate_slots` as if the request had these attributes."""

    def make(original: Any) -> Any:
        def allocate_slots(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            with held(request, **values):
                return original(self, request, *args, **options)

        return allocate_slots

    return allocation(make)


def with_manager(**values: Any) -> Any:
    """`allocate_slots` as if the manager had these attributes."""

    def make(original: Any) -> Any:
        def allocate_slots(self: Any, *args: Any, **options: Any) -> Any:
            with held(self, **values):
                return original(self, *args, **options)

        return allocate_slots

    return allocation(make)


def counting(count: Callable[..., int]) -> Any:
    """A group's count of blocks to allocate is `count(original, self, arguments by name)`."""
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

    names = ["request_id", "num_tokens", "new_computed_blocks", "total_computed_tokens"]
    names += ["num_local_computed_tokens", "num_tokens_main_model"]

    def make(original: Any) -> Any:
        def get_num_blocks_to_allocate(self: Any, *args: Any, **options: Any) -> int:
            return count(original, self, {**dict(zip(names, args, strict=False)), **options})

        return get_num_blocks_to_allocate

    return replaced(SingleTypeKVCacheManager, "get_num_blocks_to_allocate", make)


def pool(name: str, make: Callable[[Any], Any]) -> Any:
    from vllm.v1.core.block_pool import BlockPool

    return replaced(BlockPool, name, make)


def freeing(free: Callable[[Any, Any, list[Any]], None]) -> Any:
    def make(original: Any) -> Any:
        def free_blocks(self: Any, ordered_blocks: Any) -> None:
            free(original, self, list(ordered_blocks))

        return free_blocks

    return pool("free_blocks", make)


def extra_keys(change: Callable[[tuple[Any, ...]], list[Any]]) -> Any:
    from vllm.v1.core import kv_cache_utils

    def make(original: Any) -> Any:
        def generate_block_hash_extra_keys(*args: Any) -> tuple[tuple[Any, ...] | None, int]:
            keys, index = original(*args)
            return tuple(change(keys or ())) or None, index

        return generate_block_hash_extra_keys

    return replaced(kv_cache_utils, "generate_block_hash_extra_keys", make)


@contextmanager
def hashing(reach: Callable[[Any, Any, int, int], int]) -> Iterator[None]:
    """Blocks are hashed up to `reach(coordinator, request, scheduled, num_tokens)` tokens.

    `scheduled` are all tokens of the request after the step, drafts included. Where vLLM has no key, the
    block gets one that no other block has.
    """
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator

    scheduled = [0]

    def allocating(original: Any) -> Any:
        def allocate_slots(
            self: Any, request: Any, new: int, hit_tokens: int = 0, *args: Any, **options: Any
        ) -> Any:
            hit_tokens = options.pop("num_new_computed_tokens", hit_tokens)
            external = options.get("num_external_computed_tokens", 0)
            scheduled[0] = request.num_computed_tokens + hit_tokens + external + new
            return original(self, request, new, hit_tokens, *args, **options)

        return allocate_slots

    def caching(original: Any) -> Any:
        def cache_blocks(self: Any, request: Any, num_tokens: int) -> None:
            tokens = reach(self, request, scheduled[0], num_tokens)
            known, full = request.block_hashes, tokens // self.scheduler_block_size
            made_up = [f"{request.request_id}-{i}".encode() for i in range(len(known), full)]
            with held(request, block_hashes=[*known, *made_up]):
                original(self, request, tokens)

        return cache_blocks

    with allocation(allocating), replaced(KVCacheCoordinator, "cache_blocks", caching):
        yield
