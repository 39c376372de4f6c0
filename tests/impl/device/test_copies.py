"""Copy-on-write: a request goes on in the middle of another's block, in a copy of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from slotproof.impl.device.content import ContentError, ContentOracle
from slotproof.impl.device.fingerprint import Fingerprints
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.device.model_runner import ModelRunner
from slotproof.impl.device.worker import Worker
from slotproof.impl.protocol import AddRequest, Allocate, Config, Result, Snapshot
from slotproof.impl.scheduler.scheduler_output import ScheduledRequest, SchedulerOutput
from slotproof.proofs.gate.schedulers.choices import Given

TOKENS = (0, 1, 2, 0)


def snapshot(*held: tuple[int, ...]) -> Snapshot:
    """Request n holds the nth table; blocks 1 and 2 of a pool of 3, none hashed."""
    taken = [block for table in held for block in table]
    return Snapshot(
        free_queue=tuple(block for block in (1, 2) if block not in taken),
        ref_cnt=tuple(taken.count(block) for block in range(3)),
        hashes=(None, None, None),
        tables=dict(enumerate(held)),
        usage=0.0,
        to_zero=(),
    )


def run(make_worker: type[Worker]) -> None:
    """Request 0 fills block 1; request 1 has its first two tokens in common, and goes on in block 2."""
    config = Config(num_blocks=3, block_size=4, max_model_len=8)
    kv = KVCache(num_layers=2, num_blocks=3, block_size=4, num_kv_heads=2, head_size=4)
    oracle = ContentOracle(config, kv, Fingerprints(2, 2, 4, torch.float32), snapshot())
    runner = ModelRunner([make_worker(kv, 8)], oracle, Given())

    def step(request: int, tokens: tuple[int, ...], computed: int, *copies: tuple[int, int]) -> None:
        block = request + 1
        held = [(1,), (2,)][: request + 1]
        oracle.observe(AddRequest(request, tokens), Result(), snapshot(*held[:-1]))
        oracle.observe(Allocate(request, 4 - computed), Result(new_blocks=(block,)), snapshot(*held))
        scheduled = ScheduledRequest(request, 0, computed, 4 - computed, 0, (block,), tokens)
        runner.execute(SchedulerOutput(block, (), (), (block,), copies, (), (scheduled,)))
        oracle.check()

    step(0, TOKENS, 0)
    step(1, (0, 1, 1, 1), 2, (1, 2))


class CopiesNothing(Worker):
    def copy(self, output: SchedulerOutput) -> None:
        pass


class CopiesLast(Worker):
    """Over what it has written."""

    def execute(self, output: SchedulerOutput, *args: Any) -> None:
        copy, self.copy = self.copy, lambda output: None  # type: ignore[method-assign]
        super().execute(output, *args)
        self.copy = copy  # type: ignore[method-assign]
        self.copy(output)


class CopiesBeforeZeroing(Worker):
    def zero(self, output: SchedulerOutput) -> None:
        self.copy(output)
        super().zero(output)
        self.copy = lambda output: None  # type: ignore[method-assign]


class CopiesTheOtherWay(Worker):
    def copy(self, output: SchedulerOutput) -> None:
        for source, destination in output.kv_cache_block_copies:
            self.kv_cache.copy(torch.tensor([destination]), torch.tensor([source]))


class WritesWithoutACopy(Worker):
    """Into the block that is shared."""

    def slot_mapping(self, batch: Any) -> torch.Tensor:
        return super().slot_mapping(batch) % 4 + 4


def test_a_copy_holds_the_common_prefix() -> None:
    run(Worker)


@pytest.mark.parametrize(
    "worker",
    [CopiesNothing, CopiesLast, CopiesBeforeZeroing, CopiesTheOtherWay, WritesWithoutACopy],
    ids=lambda worker: worker.__name__,
)
def test_a_broken_copy_is_found(worker: type[Worker]) -> None:
    with pytest.raises(ContentError, match=r"slot . of block [12], entry 0 of request [01]"):
        run(worker)
