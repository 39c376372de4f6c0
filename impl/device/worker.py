"""The worker: carries out a step on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from slotproof.impl.allocator.block_pool import NULL_BLOCK
from slotproof.impl.allocator.block_table import BlockTable
from slotproof.impl.device.kv_cache import KVCache, slot_mapping
from slotproof.impl.scheduler.scheduler_output import Load, SchedulerOutput


class Batch(NamedTuple):
    """The tokens of a step, request by request. Counts are known to the host; the rest is on the device."""

    block_table: torch.Tensor
    """int32 [requests, blocks]."""
    rows: torch.Tensor
    """int64 [tokens], the row of each token's request."""
    positions: torch.Tensor
    """int64 [tokens]."""
    num_columns: int
    """Columns of the block table up to the last position."""


Attend = Callable[[int, Batch], None]
"""What reads after a layer has been written: called with the layer and the batch."""


class Span(NamedTuple):
    """Positions `start` to `end` of a request."""

    request: int
    start: int
    end: int


class LoadedKV(NamedTuple):
    """What a connector has brought: [layers, K and V, tokens, heads, head size], on the device."""

    load: Load
    key_values: torch.Tensor


class Worker:
    """Keeps its own block tables, as the steps tell it of new blocks: a request's row stays until the
    request ends or is preempted. What falls out of a window is not taken out of it.

    A step's order is the contract: zero, copy, load, write, read, draft. Nothing in it waits for the device.

    Args:
        kv_cache: The memory.
        max_model_len: Tokens that a request may have.
    """

    def __init__(self, kv_cache: KVCache, max_model_len: int) -> None:
        self.kv_cache = kv_cache
        self.device = kv_cache.tensor.device
        self.block_table = BlockTable(self.device, 16, -(-max_model_len // kv_cache.block_size))
        self._tables: dict[int, tuple[int, list[int]]] = {}  # request -> row, blocks

    def execute(
        self,
        output: SchedulerOutput,
        starts: Sequence[int],
        key_values: torch.Tensor,
        loaded: Sequence[LoadedKV] = (),
        attend: Attend | None = None,
    ) -> None:
        """Carry out a step.

        Args:
            output: The step.
            starts: The first position of each scheduled request: earlier than the scheduler thought, when
                drafts of a step that was in flight then have been rejected.
            key_values: The tokens' K and V: [layers, K and V, tokens, heads, head size], on the device; what
                they hold for the drafter's layers is not written.
            loaded: The step's synchronous loads.
            attend: Reads after each layer's write.
        """
        self.update_states(output)
        batch = self.prepare_batch(
            [
                Span(scheduled.request, start, start + scheduled.num_scheduled_tokens)
                for scheduled, start in zip(output.scheduled, starts, strict=True)
            ]
        )
        self.zero(output)
        self.copy(output)
        for load, brought in loaded:
            self.load(load, brought)
        slots = self.slot_mapping(batch)
        for layer in self.kv_cache.target_layers:
            self.kv_cache.write(layer, slots, key_values[layer])
            if attend is not None:
                attend(layer, batch)

    def draft(self, spans: Sequence[Span], key_values: torch.Tensor) -> None:
        """The drafter runs: it writes its own K and V of some tokens, after the step that sampled the last
        known ones of them.

        Args:
            spans: The tokens.
            key_values: [layers, K and V, tokens, heads, head size]; only the drafter's layers are written.
        """
        slots = self.slot_mapping(self.prepare_batch(spans))
        for layer in self.kv_cache.draft_layers:
            self.kv_cache.write(layer, slots, key_values[layer])

    def update_states(self, output: SchedulerOutput) -> None:
        """Bring the block tables up to date, on the host."""
        for request in (*output.finished, *output.preempted):
            if request in self._tables:
                self.block_table.remove_row(self._tables.pop(request)[0])
        for scheduled in output.scheduled:
            if scheduled.tokens is not None:
                blocks = list(scheduled.new_blocks)
                self._tables[scheduled.request] = self.block_table.add_row(blocks), blocks
            elif scheduled.new_blocks:
                row, blocks = self._tables[scheduled.request]
                end = len(blocks)
                blocks.extend(scheduled.new_blocks)
                self.block_table.mark(row, end, len(blocks))

    def prepare_batch(self, spans: Sequence[Span]) -> Batch:
        """Send block tables, rows and positions to the device."""
        rows: list[int] = []
        positions: list[int] = []
        for request, start, end in spans:
            rows += [self._tables[request][0]] * (end - start)
            positions += range(start, end)
        columns = max(positions, default=0) // self.kv_cache.block_size + 1
        table = self.block_table.commit()
        rows_sent, positions_sent = self._send([rows, positions])
        return Batch(table, rows_sent, positions_sent, columns)

    def zero(self, output: SchedulerOutput) -> None:
        """Clear the blocks that were taken from the pool."""
        if output.new_block_ids_to_zero:
            (blocks,) = self._send([output.new_block_ids_to_zero])
            self.kv_cache.fill(blocks)

    def copy(self, output: SchedulerOutput) -> None:
        """Copy the blocks of partial hits."""
        if output.kv_cache_block_copies:
            self.kv_cache.copy(*self._send(list(zip(*output.kv_cache_block_copies, strict=True))))

    def load(self, load: Load, key_values: torch.Tensor) -> None:
        """Write what a connector has brought; for an asynchronous load, after the step that announced it."""
        block_size = self.kv_cache.block_size
        positions = loaded_positions(load, block_size)
        slots = [load.blocks[p // block_size] * block_size + p % block_size for p in positions]
        (on_device,) = self._send([slots])
        for layer in range(self.kv_cache.num_layers):
            self.kv_cache.write(layer, on_device, key_values[layer])

    def slot_mapping(self, batch: Batch) -> torch.Tensor:
        """Where the batch's tokens are written."""
        return slot_mapping(batch.block_table, batch.rows, batch.positions, self.kv_cache.block_size)

    def _send(self, lists: Sequence[Sequence[int]]) -> torch.Tensor:
        """Lists of one length, as one int64 tensor on the device; pinned memory lets the copy be queued."""
        packed = torch.tensor(lists, dtype=torch.int64)
        if self.device.type == "cuda":
            packed = packed.pin_memory()
        return packed.to(self.device, non_blocking=True)


def loaded_positions(load: Load, block_size: int) -> list[int]:
    """The positions that a load brings: not those behind null blocks, where attention never looks again."""
    return [p for p in range(load.start, load.end) if load.blocks[p // block_size] != NULL_BLOCK]
