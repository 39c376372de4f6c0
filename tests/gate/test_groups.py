"""Several attention groups: the model and real vLLM, call by call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from slotproof.impl.allocator.adapter import torch_allocator
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.protocol import Config, Group
from slotproof.impl.vllm.adapter import vllm_allocator
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, configurations, decode, model_config
from slotproof.proofs.campaign.find import tiny_configurations
from slotproof.proofs.campaign.kinds import HYBRID
from slotproof.proofs.gate.compare import (
    KeyMatch,
    Strictness,
    expected_result,
    expected_snapshot,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.gate import campaign
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated


def is_modelled(config: Config) -> bool:
    """vLLM also keys the last partial block of a prompt, in full attention whose blocks are larger than the
    hash unit. That is not in the model."""
    unit = config.hash_block_size
    return all(g.block_size == unit for g in config.all_groups if g.sliding_window is None)


def engines(seed: int) -> Iterator[Config]:
    random = Random(seed)
    pairs = ((1, 2), (1, 3), (2, 4), (2, 2))
    for tiny in tiny_configurations(random, HYBRID):
        size, other = random.choice(pairs)
        roomy = Config(
            num_blocks=random.choice((16, 24)),
            block_size=size,
            max_model_len=random.choice((9, 14)) * size,
            groups=tuple(
                Group(block_size=other, sliding_window=random.choice((2, 3, 5, 8)))
                for _ in range(random.choice((1, 1, 2, 3)))
            ),
            watermark_blocks=random.choice((0, 1)),
            max_in_flight_tokens=random.choice((5, 1 << 30)),
        )
        yield from (config for config in (tiny, roomy) if is_modelled(config))


@pytest.mark.vllm
@pytest.mark.parametrize("seed", [1, 2])
def test_vllm_agrees_on_several_groups(seed: int) -> None:
    random, calls, hits, sizes = Random(seed), 0, 0, set[int]()
    for config in engines(seed):
        running, allocator, keys = Running(**model_config(config)), vllm_allocator(config), KeyMatch()
        sizes.add(len(config.all_groups))
        for _ in range(60):
            call = decode(running, random.getrandbits(8 * NUMBER_BYTES))
            before, (name, fields) = running.state, call_fields(call)
            outcome, got = running.step(name, **fields), allocator.step(call)
            expected = expected_result(before, call, outcome)
            hits += outcome.granted and outcome.hits.tokens > 0
            calls += 1
            shown = expected_snapshot(running)
            differences = [
                *result_differences(Strictness.EXACT, expected, got),
                *snapshot_differences(Strictness.EXACT, shown, allocator.snapshot(), keys),
            ]
            assert differences == [], f"{config}: {call}"
        if calls >= 3_000 and sizes >= {2, 3, 4}:
            break
    assert hits >= 20


@pytest.mark.parametrize("name", ["torch", "slotproof.impl.allocator.adapter:batched"])
def test_ours_agrees_on_several_groups(name: str) -> None:
    with closing(Isolated(loader(name))) as implementation:
        full = Config(num_blocks=16, block_size=2, max_model_len=20, groups=(Group(block_size=4),) * 2)
        engines = [full, *[config for config in configurations(3, has_groups=True) if config.groups]]
        report = campaign(implementation, calls=1600, seed=3, configs=engines)
    assert report.failure is None
    assert {f"engine: {n} attention groups" for n in (2, 3, 4)} <= report.coverage.keys()


def test_a_group_that_cannot_be_is_named() -> None:
    config = Config(num_blocks=4, block_size=1, max_model_len=4, groups=(Group(block_size=0),))
    with pytest.raises(AllocatorError, match=r"^group 1: block_size is 0: it must be at least 1$"):
        torch_allocator(config)
