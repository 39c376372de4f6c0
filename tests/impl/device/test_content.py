"""What the content oracle asks of a manager, on snapshots worked out by hand."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs

from slotproof.impl.device.content import ContentError, ContentOracle
from slotproof.impl.device.fingerprint import Fingerprints
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.protocol import AddRequest, Allocate, Complete, Config, Result, Snapshot

EMPTY = Snapshot(
    free_queue=(1, 2, 3),
    ref_cnt=(0, 0, 0, 0),
    hashes=(None, None, None, None),
    tables={},
    usage=0.0,
    to_zero=(),
)


def held(*table: int, **more: object) -> Snapshot:
    """Request 0 holds a table."""
    return structs.replace(
        EMPTY,
        free_queue=tuple(block for block in (1, 2, 3) if block not in table),
        ref_cnt=(0, *(int(block in table) for block in (1, 2, 3))),
        tables={0: table},
        **more,
    )


def oracle(window: int | None = None, num_tokens: int = 5) -> ContentOracle:
    """Request 0 waits with `num_tokens` tokens; blocks have two slots, and nothing is poisoned."""
    config = Config(num_blocks=4, block_size=2, max_model_len=6, sliding_window=window)
    kv = KVCache(num_layers=1, num_blocks=4, block_size=2, num_kv_heads=1, head_size=16)
    made = ContentOracle(config, kv, Fingerprints(1, 1, 16, torch.float32), EMPTY)
    made.observe(AddRequest(0, tuple(range(num_tokens))), Result(), EMPTY)
    return made


def execute(made: ContentOracle, num_tokens: int, snapshot: Snapshot) -> None:
    """The first tokens are computed into the blocks of a snapshot."""
    made.observe(Allocate(0, num_tokens), Result(), snapshot)
    text = made.texts[0]
    values = made.fingerprints.values(torch.tensor(text.slots[0].contents[:num_tokens]))
    for position in range(num_tokens):
        block = snapshot.tables[0][position // 2]
        if block:
            made._kv_cache.tensor[:, :, block, position % 2] = values[:, :, position]
    text.slots[0].written = text.slots[0].contents[:num_tokens]
    text.num_computed_tokens = num_tokens


@pytest.mark.parametrize(("window", "table"), [(None, (1, 2, 3)), (2, (0, 2, 3)), (2, (0, 0, 3))])
def test_blocks_that_attention_may_look_into_are_there(window: int | None, table: tuple[int, ...]) -> None:
    made = oracle(window)
    execute(made, 5, held(*table))
    made.check()


@pytest.mark.parametrize(("window", "table"), [(None, (0, 2, 3)), (3, (0, 0, 3)), (None, (1, 2))])
def test_a_block_that_is_gone_too_early_is_found(window: int | None, table: tuple[int, ...]) -> None:
    made = oracle(window)
    execute(made, 4, held(*table))
    made.texts[0].num_computed_tokens = 5
    with pytest.raises(ContentError, match=r"entry . of request 0: expected a block, got none"):
        made.check()


def test_a_published_block_holds_its_tokens() -> None:
    made = oracle()
    execute(made, 4, held(1, 2, hashes=(None, b"a", b"b", None)))
    made.check()
    made._kv_cache.tensor[0, 1, 1, 1] += 1
    with pytest.raises(ContentError, match=r"slot 1 of block 1, .* got what nobody wrote .*published with"):
        made.check()


def test_a_key_stands_for_the_same_tokens_for_ever() -> None:
    with pytest.raises(ContentError, match="the hash of block 2: expected that of equal tokens"):
        execute(oracle(), 4, held(1, 2, hashes=(None, b"a", b"a", None)))


def test_the_scheduler_knows_the_tokens_that_were_sampled() -> None:
    made = oracle(num_tokens=2)
    execute(made, 2, held(1))
    made.texts[0].append([7])
    made.observe(Complete(0, 2, sampled=(8,)), Result(), held(1))
    with pytest.raises(ContentError, match="request 0: expected the tokens sampled"):
        made.check()


def test_two_requests_that_want_a_slot_for_themselves() -> None:
    made = oracle()
    execute(made, 2, held(1))
    both = structs.replace(held(1), tables={0: (1,), 1: (1,)}, ref_cnt=(0, 2, 0, 0))
    made.observe(AddRequest(1, (3, 4)), Result(), held(1))
    made.observe(Allocate(1, 2), Result(), both)
    made.texts[1].slots[0].written = made.texts[1].slots[0].contents
    with pytest.raises(ContentError, match="something else for request 1"):
        made.check()
