"""What does not change while an engine runs: its configuration, the rules in force, and the reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotproof.model.language.algebra import Bool, Int, negate
from slotproof.model.language.groups import FULL, Groups
from slotproof.model.language.reading import Reading
from slotproof.model.language.rules import Rules

DENSE = -1


@dataclass(frozen=True)
class Engine:
    """One pool and its attention groups. Counts are integers, or Z3 terms in a proof.

    What is in blocks is in those of a group: of the first, unless one is named.
    """

    num_blocks: Int
    max_model_len: Int
    groups: Groups
    scheduler_block_size: Int
    """Tokens; a multiple of every group's block size. Hits end at multiples of it."""
    hash_block_size: Int
    """Tokens of which every group's block has a whole number. Keys are made of that many at a time."""
    enable_caching: Bool
    watermark_blocks: Int
    max_in_flight_tokens: Int
    rules: Rules
    read: Reading[Any]
    num_reprefillable: Int = 0
    """Tokens at the end of what is computed that a draft head may write once more: they wait for a hash."""
    retention_interval: Int = DENSE
    """Tokens from one hit that windows keep blocks for to the next; 0: none but where a prompt can be taken
    up again; DENSE: wherever groups can agree."""
    behaviours: frozenset[str] = frozenset()
    """How another release does otherwise (`behaviours.py`)."""

    @property
    def all_full(self) -> Bool:
        """Every group is of full attention."""
        groups = self.groups
        return self.read.every(0, groups.num, lambda g: groups.kind(g) == FULL)

    @property
    def some_group_drops(self) -> Bool:
        """The last block of a hit is left out in some group."""
        groups = self.groups
        return negate(self.read.every(0, groups.num, lambda g: negate(groups.drops(g))))

    def row(self, request: Int, group: Int) -> Int:
        """The row of a request's block table in a group."""
        return self.groups.row(request, group)

    def owner(self, row: Int) -> Int:
        """The request whose row it is."""
        return self.groups.owner(row)

    def group(self, row: Int) -> Int:
        """The group of a row."""
        return self.groups.of_row(row)

    def full_blocks(self, tokens: Int, group: Int = 0) -> Int:
        """Blocks that `tokens` tokens fill completely."""
        return self.read.floor_div(tokens, self.groups.block_size(group))

    def blocks(self, tokens: Int, group: Int = 0) -> Int:
        """Blocks that `tokens` tokens need."""
        return self.read.ceil_div(tokens, self.groups.block_size(group))

    def tokens(self, blocks: Int, group: Int = 0) -> Int:
        """Tokens that `blocks` blocks hold."""
        return self.read.times(blocks, self.groups.block_size(group))

    def align_down(self, tokens: Int) -> Int:
        """The last place up to `tokens` at which a hit may end."""
        size = self.scheduler_block_size
        return self.read.times(self.read.floor_div(tokens, size), size)

    def align_up(self, tokens: Int) -> Int:
        """The first place from `tokens` on at which a hit may end."""
        size = self.scheduler_block_size
        return self.read.times(self.read.ceil_div(tokens, size), size)
