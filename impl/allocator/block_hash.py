"""Prefix hashes: one SHA-256 digest names a full block, its tokens and everything before them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import sha256


def root_hash(extra_keys: Iterable[tuple[str, ...]]) -> bytes:
    """The digest that the first block of a chain builds on.

    It stands for what makes equal tokens yield different KV (a LoRA) or forbids sharing them (a cache
    salt). As hashes are chained, keys in the root are keys of every block. The kind goes into the digest
    beside its values, all with their lengths, so that no two lists of keys read alike: a kind always has as
    many values.

    Args:
        extra_keys: Kinds and their values, such as `("lora", "name", "path")`; their order matters.

    Returns:
        32 bytes.
    """
    digest = sha256(b"kv-cache block")
    for key in extra_keys:
        for part in key:
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.digest()


def extend_block_hashes(hashes: list[bytes], root: bytes, tokens: array[int], block_size: int) -> None:
    """Append the digests of the blocks that `tokens` fill and `hashes` does not name yet.

    Args:
        hashes: Digests of the first blocks, in order; extended in place.
        root: What `root_hash` made of the request's extra keys.
        tokens: All tokens, final ones only, as 64-bit integers (typecode "q").
        block_size: Tokens in a block.
    """
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
        parent = sha256(parent + tokens[start : start + block_size].tobytes()).digest()
        hashes.append(parent)


def extend_block_keys(
    keys: list[bytes], hashes: Sequence[bytes], hashes_in_a_block: int, group_id: int
) -> None:
    """Append the keys of one group's blocks that `hashes` reach and `keys` does not name yet.

    A block's key is the hash of all tokens up to its end, and its group: blocks of two groups hold the KV
    of different layers, though the tokens be the same.

    Args:
        keys: Keys of the group's first blocks, in order; extended in place.
        hashes: What `extend_block_hashes` made of the request's tokens.
        hashes_in_a_block: Blocks of the group are so many times as long as what a hash adds.
        group_id: The group.
    """
    ends = hashes[len(keys) * hashes_in_a_block + hashes_in_a_block - 1 :: hashes_in_a_block]
    tag = group_id.to_bytes(4, "little")
    keys += [end + tag for end in ends]
