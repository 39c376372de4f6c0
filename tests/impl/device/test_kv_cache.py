"""The KV cache: slots, and the four things that are done to them, for every dtype."""

from __future__ import annotations

import pytest
import torch

from slotproof.impl.device.fingerprint import POISON, POISON_BITS, ZERO, Fingerprints
from slotproof.impl.device.kv_cache import KVCache, slot_mapping

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def cache(dtype: torch.dtype) -> KVCache:
    return KVCache(num_layers=2, num_blocks=4, block_size=2, num_kv_heads=2, head_size=4, dtype=dtype)


def blocks(*ids: int) -> torch.Tensor:
    return torch.tensor(ids)


def test_a_slot_is_the_block_of_the_table_and_the_offset_in_it() -> None:
    table = torch.tensor([[3, 1], [2, 0]], dtype=torch.int32)
    rows, positions = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 3, 2, 1])
    assert slot_mapping(table, rows, positions, 2).tolist() == [6, 3, 2, 5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_written_is_read(dtype: torch.dtype) -> None:
    kv, prints = cache(dtype), Fingerprints(2, 2, 4, dtype)
    contents = [prints.content(bytes([n])) for n in range(3)]
    values = prints.values(torch.tensor(contents))
    slots = torch.tensor([7, 2, 3])
    for layer in range(2):
        kv.write(layer, slots, values[layer])
    for index, content in enumerate(contents):
        for layer in range(2):
            read = kv.read(layer, slots[index : index + 1])[:, 0]
            assert prints.meaning(layer, read.view(kv.bits.dtype)) == content
            assert prints.meaning(1 - layer, read.view(kv.bits.dtype)) is None
    assert prints.meaning(1, kv.bits[1, :, 0, 0]) == ZERO


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_and_poison_fill_whole_blocks(dtype: torch.dtype) -> None:
    kv, prints = cache(dtype), Fingerprints(2, 2, 4, dtype)

    def held(block: int) -> set[int | None]:
        slots = [(layer, kv.bits[layer, :, block, offset]) for layer in range(2) for offset in range(2)]
        return {prints.meaning(layer, bits) for layer, bits in slots}

    kv.fill(blocks(1, 3), POISON_BITS)
    kv.fill(blocks(3))
    assert [held(block) for block in range(4)] == [{ZERO}, {POISON}, {ZERO}, {ZERO}]


def test_poison_is_no_number() -> None:
    for dtype in DTYPES[:4]:
        kv = cache(dtype)
        kv.fill(blocks(1), POISON_BITS)
        assert bool(kv.tensor[:, :, 1].float().isnan().all())


def test_copies_read_all_before_one_is_written() -> None:
    kv = cache(torch.float32)
    kv.tensor[:, :, 1], kv.tensor[:, :, 2] = 1.0, 2.0
    kv.copy(blocks(1, 2), blocks(2, 1))
    assert (float(kv.tensor[0, 0, 1, 0, 0, 0]), float(kv.tensor[1, 1, 2, 1, 1, 3])) == (2.0, 1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fingerprints_tell_tokens_salts_and_positions_apart(dtype: torch.dtype) -> None:
    prints = Fingerprints(2, 2, 4, dtype)
    plain, salted, adapted = (prints.root(*keys) for keys in ((0, 0), (1, 0), (0, 1)))
    chains = [
        prints.extend(plain, 1),
        prints.extend(plain, 2),
        prints.extend(salted, 1),
        prints.extend(adapted, 1),
    ]
    chains.append(prints.extend(chains[0], 1))
    values = prints.values(torch.tensor([prints.content(digest) for digest in chains]))
    assert len({values[:, :, i].float().numpy().tobytes() for i in range(len(chains))}) == len(chains)
    assert prints.content(chains[0]) == prints.content(prints.extend(prints.root(0, 0), 1))
