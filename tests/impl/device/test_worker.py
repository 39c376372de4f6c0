"""The worker's block tables."""

from __future__ import annotations

from slotproof.impl.device.kv_cache import KVCache
from slotproof.impl.device.worker import Span, Worker
from slotproof.impl.scheduler.scheduler_output import ScheduledRequest, SchedulerOutput


def output(step: int, *scheduled: ScheduledRequest, finished: tuple[int, ...] = ()) -> SchedulerOutput:
    return SchedulerOutput(step, finished, (), (), (), (), scheduled)


def make() -> Worker:
    kv = KVCache(num_layers=1, num_blocks=9, block_size=2, num_kv_heads=1, head_size=1)
    return Worker(kv, max_model_len=12)


def test_tables_grow_by_what_a_step_names() -> None:
    worker = make()
    worker.update_states(output(1, ScheduledRequest(0, 0, 0, 3, 0, (4, 2), (1, 2, 3))))
    step = output(2, ScheduledRequest(0, 0, 3, 2, 0, (7,)))
    worker.update_states(step)
    batch = worker.prepare_batch([Span(0, 3, 5)])
    assert batch.block_table[0, :3].tolist() == [4, 2, 7]
    assert (batch.rows.tolist(), batch.positions.tolist(), batch.num_columns) == ([0, 0], [3, 4], 3)
    assert worker.slot_mapping(batch).tolist() == [5, 14]


def test_rows_of_requests_that_ended_are_used_again() -> None:
    worker = make()
    rows = worker.block_table.tensor.shape[0]
    for request in range(3 * rows):
        ended = (request - 1,) if request else ()
        step = output(request, ScheduledRequest(request, 0, 0, 1, 0, (1,), (5,)), finished=ended)
        worker.update_states(step)
        worker.prepare_batch([Span(request, 0, 1)])
    assert worker.block_table.tensor.shape[0] == rows
