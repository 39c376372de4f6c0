"""The KV cache: the keys and values of all blocks, in one tensor on the device."""

from __future__ import annotations

from copy import copy

import torch

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(dtype: torch.dtype) -> torch.dtype:
    """The integers that are as wide as a dtype."""
    return _BITS[dtype.itemsize]


def slot_mapping(
    block_table: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, block_size: int
) -> torch.Tensor:
    """The slot of each token: where its K and V lie among all blocks.

    Args:
        block_table: [requests, blocks], any integers, on the device.
        rows: int64 [tokens], the row of each token's request.
        positions: int64 [tokens], each token's position in its request.
        block_size: Tokens in a block.

    Returns:
        int64 [tokens]: block * block_size + offset, worked out on the device.
    """
    blocks = block_table[rows, positions // block_size].long()
    return blocks * block_size + positions % block_size


class KVCache:
    """Zeroing, copying, writing and reading move bits, so that every dtype works, float8 too.

    Indices are int64 tensors on the cache's device. Nothing waits for the device.

    Args:
        num_layers: Layers of attention, the drafter's included.
        num_blocks: Blocks, the null block included.
        block_size: Tokens (slots) in a block; of the largest ones, if groups have blocks of several sizes.
        num_kv_heads: Heads of K and V.
        head_size: Elements of a head.
        dtype: Of the elements.
        device: "cpu" or "cuda".
        num_draft_layers: The last so many layers are those of a draft model, which has its KV in the blocks
            of the target model.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        num_draft_layers: int = 0,
    ) -> None:
        self.num_layers = num_layers
        self.target_layers = range(num_layers - num_draft_layers)
        self.draft_layers = range(num_layers - num_draft_layers, num_layers)
        self.block_size = block_size
        self.tensor = torch.zeros(
            (num_layers, 2, num_blocks, block_size, num_kv_heads, head_size), dtype=dtype, device=device
        )
        """[layers, K and V, blocks, block size, heads, head size]."""
        self.bits = self.tensor.view(bits_of(dtype))
        """The same memory as integers."""
        self._slots = self.bits.view(num_layers, 2, num_blocks * block_size, num_kv_heads, head_size)
        self._page = block_size

    def of_group(self, block_size: int) -> KVCache:
        """The same memory as a group sees it whose blocks have fewer slots: the first ones of each block."""
        seen = copy(self)
        seen.block_size = block_size
        return seen

    def fill(self, blocks: torch.Tensor, bits: int = 0) -> None:
        """Every element of some blocks ([n]) gets the same bits: zeros, or poison in tests."""
        self.bits.index_fill_(2, blocks, bits)

    def copy(self, sources: torch.Tensor, destinations: torch.Tensor) -> None:
        """Copy whole blocks ([n] each); all are read before one is written."""
        self.bits.index_copy_(2, destinations, self.bits.index_select(2, sources))

    def write(self, layer: int, slots: torch.Tensor, key_values: torch.Tensor) -> None:
        """Write one layer's K and V of some tokens.

        Args:
            layer: Which.
            slots: [tokens].
            key_values: [K and V, tokens, heads, head size], of the cache's dtype.
        """
        self._slots[layer].index_copy_(1, self._in_memory(slots), key_values.view(self.bits.dtype))

    def read(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """One layer's K and V in some slots ([tokens]): [K and V, tokens, heads, head size]."""
        found = self._slots[layer].index_select(1, self._in_memory(slots.flatten())).view(self.tensor.dtype)
        return found.view(2, *slots.shape, *found.shape[2:])

    def _in_memory(self, slots: torch.Tensor) -> torch.Tensor:
        if self.block_size == self._page:
            return slots
        return slots // self.block_size * self._page + slots % self.block_size
