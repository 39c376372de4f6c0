"""The attention groups of a configuration, as vLLM's specifications."""

from __future__ import annotations

from typing import Any

from slotproof.impl.protocol import Config, Group


def group_specs(config: Config) -> list[Any]:
    """A `KVCacheGroupSpec` for each group."""
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    return [
        KVCacheGroupSpec([f"layer{g}"], _spec(group), **({"is_eagle_group": True} if group.is_eagle else {}))
        for g, group in enumerate(config.all_groups)
    ]


def _spec(group: Group) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec

    shape = {"block_size": group.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if group.attention_chunk_size is not None:
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=group.attention_chunk_size)
    if group.sliding_window is None:
        return FullAttentionSpec(**shape)
    retained = {"extra_retained_tokens": n} if (n := group.extra_retained_tokens) else {}
    return SlidingWindowSpec(**shape, sliding_window=group.sliding_window, **retained)
