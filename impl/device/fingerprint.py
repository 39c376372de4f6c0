"""Fingerprints: keys and values that tell which tokens, of which request, at which position they are of."""

from __future__ import annotations

from hashlib import sha256, shake_128

import torch

from slotproof.impl.device.kv_cache import bits_of

ZERO = 0
"""The content of a slot that has been zeroed."""
POISON = 1
"""The content of a slot of a freed block, in tests: no KV ever looks like it, and as a float it is NaN."""
POISON_BITS = -1
FIRST = 2
_VALUES = 16


class Fingerprints:
    """Contents of a slot are numbers: `ZERO`, `POISON`, and one for each prefix of tokens with its salt and
    LoRA, from which its K and V follow. They are whole numbers from 1 to 16, exact in every dtype.

    Args:
        num_layers: Layers of the KV cache.
        num_kv_heads: Heads of it.
        head_size: Elements of a head.
        dtype: Of the elements.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        self._shape = (num_layers, 2, num_kv_heads, head_size)
        self._dtype = dtype
        self._numbers: dict[bytes, int] = {}
        self._bits = torch.zeros((1024, *self._shape), dtype=dtype).view(bits_of(dtype))
        self._bits[POISON] = POISON_BITS

    def root(self, salt: int, lora: int) -> bytes:
        """The digest that a request's tokens build on."""
        return sha256(f"salt {salt}, lora {lora}".encode()).digest()

    def extend(self, digest: bytes, token: int) -> bytes:
        """The digest of a prefix and one more token."""
        return sha256(digest + token.to_bytes(8, "little", signed=True)).digest()

    def content(self, digest: bytes, group: int = 0) -> int:
        """The number of the prefix with this digest in a group: the layers of each have KV of their own."""
        if group:
            digest = sha256(digest + group.to_bytes(4, "little")).digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = FIRST + len(self._numbers)
            if number == len(self._bits):
                self._bits = torch.cat([self._bits, torch.zeros_like(self._bits)])
            raw = bytearray(shake_128(digest).digest(self._bits[0].numel()))
            values = torch.frombuffer(raw, dtype=torch.uint8) % _VALUES + 1
            self._bits[number] = values.view(self._shape).to(self._dtype).view(self._bits.dtype)
        return number

    def values(self, contents: torch.Tensor) -> torch.Tensor:
        """K and V of some contents, on the host: [layers, K and V, contents, heads, head size]."""
        return self._bits[contents].permute(1, 2, 0, 3, 4).contiguous().view(self._dtype)

    def meaning(self, layer: int, bits: torch.Tensor) -> int | None:
        """The content that a slot's K and V in a layer are of, None for none.

        Args:
            layer: Which.
            bits: Its K and V: [K and V, heads, head size], as integers.
        """
        known = self._bits[: FIRST + len(self._numbers), layer]
        same = (known == bits.cpu()).flatten(1).all(1).nonzero()
        return int(same[0]) if len(same) else None
