"""Attention through the block table equals attention over the tokens themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from slotproof.impl.device.attention import paged_attention
from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.device.worker import Attend, Batch, LoadedKV, Worker
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.proofs.gate.schedulers.episode import Episode
from slotproof.proofs.gate.schedulers.gate import torch_scheduler
from slotproof.proofs.gate.schedulers.workload import setups

QUERY_HEADS, HEAD_SIZE = 4, 4


class AttendingWorker(Worker):
    """Attends after each layer's write, and keeps queries and results."""

    window: int | None = None
    skips_zeroing = False

    def execute(
        self,
        output: SchedulerOutput,
        starts: Sequence[int],
        key_values: torch.Tensor,
        loaded: Sequence[LoadedKV] = (),
        attend: Attend | None = None,
    ) -> None:
        self.results: list[tuple[torch.Tensor, torch.Tensor, list[int]]] = []

        def attend_and_keep(layer: int, batch: Batch) -> None:
            query = torch.randn(len(batch.rows), QUERY_HEADS, HEAD_SIZE)
            found = paged_attention(
                query, self.kv_cache, layer, batch.block_table, batch.rows, batch.positions,
                batch.num_columns, self.window,
            )  # fmt: skip
            self.results.append((query, found, batch.positions.tolist()))

        super().execute(output, starts, key_values, loaded, attend_and_keep)

    def zero(self, output: SchedulerOutput) -> None:
        if not self.skips_zeroing:
            super().zero(output)


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None) -> torch.Tensor:
    """Attention of the last tokens of a request, of all whose tokens K and V are given."""
    groups = QUERY_HEADS // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    distance = torch.arange(len(key))[-len(query) :, None] - torch.arange(len(key))
    seen = (distance >= 0) & (distance < (window or len(key)))
    results = []
    for head in range(QUERY_HEADS):
        scores = query[:, head] @ key[:, head].T / HEAD_SIZE**0.5
        results.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value[:, head])
    return torch.stack(results, 1)


class AttendingEpisode(Episode):
    """Compares every token's attention with the dense one, after every step."""

    compared = 0

    def __init__(self, setup: Setup, seed: int) -> None:
        self.workers: list[AttendingWorker] = []

        def make(kv_cache: KVCache, max_model_len: int) -> Worker:
            worker = AttendingWorker(kv_cache, max_model_len)
            worker.window = setup.config.all_groups[len(self.workers)].sliding_window
            self.workers.append(worker)
            return worker

        super().__init__(setup, torch_scheduler, make, seed)
        torch.manual_seed(seed)
        execute = self.runner.execute

        def execute_and_compare(output: SchedulerOutput, attend: Attend | None = None) -> ModelRunnerOutput:
            answer = execute(output)
            for group, worker in enumerate(self.workers):
                for layer, result in enumerate(worker.results):
                    self.compare(output, group, layer, *result)
            return answer

        self.runner.execute = execute_and_compare  # type: ignore[method-assign]

    def compare(
        self,
        output: SchedulerOutput,
        group: int,
        layer: int,
        query: torch.Tensor,
        found: torch.Tensor,
        positions: list[int],
    ) -> None:
        """Every token of a step, in one layer of one group, with that group's window."""
        end = 0
        for scheduled in output.scheduled:
            start, end = end, end + scheduled.num_scheduled_tokens
            slots = self.oracle.texts[scheduled.request].slots[group]
            context = torch.tensor(slots.written[: positions[end - 1] + 1])
            key, value = self.oracle.fingerprints.values(context)[layer]
            expected = dense(query[start:end], key, value, self.workers[group].window)
            torch.testing.assert_close(found[start:end], expected, rtol=1e-5, atol=1e-5)
            self.compared += end - start


@pytest.mark.parametrize("index", range(3))
def test_each_group_attends_with_its_window(index: int) -> None:
    """Every group's KV is written and read back through its own block table."""
    several = [setup for setup in setups(7) if setup.config.groups]
    episode = AttendingEpisode(several[index % len(several)], seed=index)
    assert episode.run(40) is None
    assert episode.compared > 50


@pytest.mark.parametrize("index", range(0, 32, 5))
def test_paged_equals_dense(index: int) -> None:
    """Setups by turns have windows and none, both policies, drafts, steps in flight, and loads."""
    episode = AttendingEpisode(setups(7)[index], seed=index)
    assert episode.run(60) is None
    assert episode.compared > 50


def test_the_schedules_had_hits_and_preemptions() -> None:
    seen: set[str] = set()
    for index in (1, 4):
        episode = AttendingEpisode(setups(7)[index], seed=index)
        assert episode.run(90) is None
        seen |= {row for row, count in episode.coverage.rows.items() if count}
    wanted = {"stage 3: an idle hit", "stage 3: a held hit", "preempted: priority", "engine: sliding window"}
    assert wanted <= seen


def test_what_is_left_in_a_block_spoils_attention() -> None:
    """So zeroing is needed even where the oracle does not look."""
    episode = AttendingEpisode(setups(7)[0], seed=1)
    for worker in episode.workers:
        worker.skips_zeroing = True
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        episode.run(20)
