"""The attention groups of an engine, and the rows of their block tables.

A request has one block table for each group, its *rows*. Rows are numbered as requests are, so that whoever
handles one block table needs to know of no other: with one group a request's row is its own number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slotproof.model.language.algebra import Bool, Function, Int

FULL, SLIDING_WINDOW, CHUNKED_LOCAL = range(3)
"""Kinds of attention: every token looks at all before it; or at itself and the window - 1 before it; or at
those before it in its chunk, which starts at a multiple of the chunk's size."""


class Group(NamedTuple):
    """One group, by its numbers."""

    block_size: Int
    kind: int = FULL
    window: Int = 1
    drops: Bool = False
    retained: Int = 0


@dataclass(frozen=True)
class Groups:
    """Any number of groups, numbered from 0 on: each a kind of attention with blocks of one size."""

    num: Int
    kind: Function
    """group -> kind of attention."""
    block_size: Function
    """group -> tokens in a block."""
    window: Function
    """group -> tokens that its window, or its chunk, spans; nothing is meant by it in full attention."""
    drops: Function
    """group -> a hit leaves out its last block, which is computed again for a draft head (EAGLE, MTP)."""
    retained: Function
    """group -> tokens before its window that are kept all the same (`extra_retained_tokens`)."""
    leads: Function
    """group -> it is among those that a lookup asks first."""
    row: Function
    """(request, group) -> row of the block tables."""
    owner: Function
    """row -> the request whose it is."""
    of_row: Function
    """row -> its group."""
    kinds: tuple[int, ...] = (FULL, SLIDING_WINDOW, CHUNKED_LOCAL)
    """The kinds that a group may have."""

    @property
    def is_one(self) -> bool:
        """There is one group, and that is known."""
        return isinstance(self.num, int) and self.num == 1


def one_group(group: Group) -> Groups:
    """One group."""
    return Groups(
        num=1,
        kind=lambda g: group.kind,
        block_size=lambda g: group.block_size,
        window=lambda g: group.window,
        drops=lambda g: group.drops,
        retained=lambda g: group.retained,
        leads=lambda g: True,
        row=lambda r, g: r,
        owner=lambda row: row,
        of_row=lambda row: 0,
    )


def some_groups(groups: Sequence[Group]) -> Groups:
    """Several groups. Those that are alike are looked up together, full attention first: if one drops its
    last block, so do they all."""
    if len(groups) == 1:
        return one_group(groups[0])
    num = len(groups)
    alike = [group._replace(drops=False) for group in groups]
    first = next((group for group in alike if group.kind == FULL), alike[0])
    dropping = {group._replace(drops=False) for group in set(groups) - set(alike)}
    return Groups(
        num=num,
        kind=lambda g: groups[g].kind,
        block_size=lambda g: groups[g].block_size,
        window=lambda g: groups[g].window,
        drops=lambda g: alike[g] in dropping,
        retained=lambda g: groups[g].retained,
        leads=lambda g: alike[g] == first,
        row=lambda r, g: r * num + g,
        owner=lambda row: row // num,
        of_row=lambda row: row % num,
    )
