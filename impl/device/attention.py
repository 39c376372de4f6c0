"""Attention that reads its keys and values through the block table."""

from __future__ import annotations

import torch

from slotproof.impl.device.kv_cache import KVCache, slot_mapping


def paged_attention(
    query: torch.Tensor,
    kv_cache: KVCache,
    layer: int,
    block_table: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    num_columns: int,
    sliding_window: int | None = None,
) -> torch.Tensor:
    """Each token attends to the tokens up to itself, or to the last `sliding_window` of them.

    Like a kernel that loads whole blocks, it multiplies by all values of a block that attention looks
    into: what was left in a block, if it is not finite, spoils the result. It is for reading, not for speed.

    Args:
        query: [tokens, query heads, head size]; query heads are a multiple of the heads of K and V.
        kv_cache: Where the K and V of these tokens, too, have been written.
        layer: Which layer of it.
        block_table: [requests, blocks] on the device.
        rows: int64 [tokens], the row of each token's request.
        positions: int64 [tokens], each token's position in its request.
        num_columns: Columns of the block table to look at, at least those up to the last position.
        sliding_window: Tokens that a window spans; None is full attention.

    Returns:
        Like `query`.
    """
    block_size = kv_cache.block_size
    context = torch.arange(num_columns * block_size, device=query.device)
    low = torch.zeros_like(positions) if sliding_window is None else (positions - sliding_window + 1).clamp(0)
    seen = (context <= positions[:, None]) & (context >= low[:, None])
    blocks = context // block_size
    loaded = (blocks <= positions[:, None] // block_size) & (blocks >= low[:, None] // block_size)
    slots = slot_mapping(block_table, rows[:, None], context.expand(len(rows), -1), block_size)
    slots = torch.where(loaded, slots, context % block_size)  # the null block, of zeros, where none is loaded
    key, value = kv_cache.read(layer, slots).to(query.dtype)  # [tokens, context, heads, head size]
    groups = query.shape[1] // key.shape[2]
    key, value = key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)
    scores = torch.einsum("thd,tchd->thc", query, key) * query.shape[2] ** -0.5
    scores = scores.masked_fill(~seen[:, None, :], -torch.inf)
    return torch.einsum("thc,tchd->thd", scores.softmax(-1), value)
