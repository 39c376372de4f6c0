"""Block tables on the device: what is committed is what the host holds."""

from __future__ import annotations

import pytest
import torch

from slotproof.impl.allocator.block_table import BlockTable


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def table(request: pytest.FixtureRequest) -> BlockTable:
    return BlockTable(request.param, max_requests=2, max_blocks_per_request=4)


def test_a_row_is_the_list(table: BlockTable) -> None:
    blocks = [5, 6]
    row = table.add_row(blocks)
    tensor = table.commit()
    assert tensor.dtype == torch.int32
    assert tensor[row, :2].tolist() == [5, 6]
    blocks.append(7)
    table.mark(row, 2, 3)
    assert tensor[row, 2].item() == 0  # nothing moves before the commit
    assert table.commit()[row, :3].tolist() == [5, 6, 7]


def test_an_entry_marked_twice_has_its_last_value(table: BlockTable) -> None:
    blocks = [5, 6, 7]
    row = table.add_row(blocks)
    blocks[0:2] = [0, 0]
    table.mark(row, 0, 2)
    assert table.commit()[row, :3].tolist() == [0, 0, 7]


def test_a_row_passed_on_within_a_step_is_the_new_owners(table: BlockTable) -> None:
    row = table.add_row([5, 6, 7])
    table.remove_row(row)
    assert table.add_row([8]) == row
    assert table.commit()[row, 0].item() == 8


def test_a_row_removed_within_its_step_is_not_sent(table: BlockTable) -> None:
    row = table.add_row([5, 6])
    table.remove_row(row)
    assert table.commit().eq(0).all()


def test_rows_and_columns_grow_and_keep_what_they_hold(table: BlockTable) -> None:
    lists = [[10 * request + block for block in range(3)] for request in range(5)]
    rows = [table.add_row(blocks) for blocks in lists]
    assert table.commit().shape == (8, 4)
    lists[1].extend(range(100, 110))
    table.mark(rows[1], 3, 13)
    tensor = table.commit()
    assert tensor.shape == (8, 16)
    assert [tensor[row, : len(blocks)].tolist() for row, blocks in zip(rows, lists, strict=True)] == lists


def test_one_copy_a_step(table: BlockTable, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    row = table.add_row(blocks)
    sent: list[int] = []
    put = torch.Tensor.index_put_

    def spy(tensor: torch.Tensor, where: object, values: torch.Tensor) -> torch.Tensor:
        sent.append(values.numel())
        return put(tensor, where, values)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "index_put_", spy)
    for block in (5, 6, 7):
        blocks.append(block)
        table.mark(row, len(blocks) - 1, len(blocks))
    table.commit()
    table.commit()
    assert sent == [3]
