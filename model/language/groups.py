"""The attention groups of an engine, and the rows of their block tables.

A request has one block table for each group, its *rows*. Rows are numbered as requests are, so that whoever
handles one block table needs to know of no other: with one group a request's row is its own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slotproof.model.language.algebra import Function, Int

FULL, SLIDING_WINDOW = range(2)
"""Kinds of attention: every token looks at all before it; or at itself and the window - 1 before it."""


@dataclass(frozen=True)
class Groups:
    """Any number of groups, numbered from 0 on: each a kind of attention with blocks of one size."""

    num: Int
    kind: Function
    """group -> kind of attention."""
    block_size: Function
    """group -> tokens in a block."""
    window: Function
    """group -> tokens that its window spans; nothing is meant by it without one."""
    row: Function
    """(request, group) -> row of the block tables."""
    owner: Function
    """row -> the request whose it is."""
    of_row: Function
    """row -> its group."""

    @property
    def is_one(self) -> bool:
        """There is one group, and that is known."""
        return isinstance(self.num, int) and self.num == 1


def one_group(block_size: Int, sliding_window: Int | None) -> Groups:
    """One group: full attention, or a window."""
    kind = FULL if sliding_window is None else SLIDING_WINDOW
    return Groups(
        num=1,
        kind=lambda g: kind,
        block_size=lambda g: block_size,
        window=lambda g: sliding_window,
        row=lambda r, g: r,
        owner=lambda row: row,
        of_row=lambda row: 0,
    )


def some_groups(groups: Sequence[tuple[int, int | None]]) -> Groups:
    """Groups by their block size and window (None for full attention)."""
    if len(groups) == 1:
        return one_group(*groups[0])
    num = len(groups)
    return Groups(
        num=num,
        kind=lambda g: FULL if groups[g][1] is None else SLIDING_WINDOW,
        block_size=lambda g: groups[g][0],
        window=lambda g: groups[g][1],
        row=lambda r, g: r * num + g,
        owner=lambda row: row // num,
        of_row=lambda row: row % num,
    )
