"""The free queue, as a list in pieces: a block joins or leaves anywhere at a cost that hardly grows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slotproof.model.language.state import ABSENT, NULL_BLOCK

PIECE = 512
"""Blocks in a piece; one of twice as many is cut in two."""


class Pieces:
    """Distinct blocks in an order."""

    def __init__(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        self._pieces = [listed[i : i + PIECE] for i in range(0, len(listed), PIECE)]
        self._home = {block: piece for piece in self._pieces for block in piece}

    def __len__(self) -> int:
        return len(self._home)

    def __contains__(self, block: object) -> bool:
        return block in self._home

    def __iter__(self) -> Iterator[int]:
        for piece in self._pieces:
            yield from piece

    def at(self, position: int) -> int:
        """The block at a position; the null block where there is none."""
        if position < 0:
            return NULL_BLOCK
        if position >= len(self._home):
            return NULL_BLOCK
        index, offset = self._piece(position)
        return self._pieces[index][offset]

    def rank(self, block: int) -> int:
        """The position of a block, ABSENT if it is not there."""
        home = self._home.get(block)
        if home is None:
            return ABSENT
        before = 0
        for piece in self._pieces:
            if piece is home:
                break
            before += len(piece)
        return before + home.index(block)

    def take(self, low: int, n: int) -> list[int]:
        """Take out n blocks from a position on, all of which are there."""
        taken: list[int] = []
        index, start = self._piece(low)
        while len(taken) < n:
            piece = self._pieces[index]
            part = piece[start : start + n - len(taken)]
            del piece[start : start + len(part)]
            taken += part
            if piece:
                index, start = index + 1, 0
            else:
                del self._pieces[index]
        for block in taken:
            del self._home[block]
        return taken

    def put(self, low: int, blocks: list[int]) -> None:
        """Put blocks in, from a position on."""
        if not self._pieces:
            self._pieces.append([])
        index, start = self._piece(low)
        piece = self._pieces[index]
        piece[start:start] = blocks
        for block in blocks:
            self._home[block] = piece
        while len(piece) >= 2 * PIECE:
            rest = piece[PIECE:]
            del piece[PIECE:]
            index, piece = index + 1, rest
            self._pieces.insert(index, rest)
            for block in rest:
                self._home[block] = rest

    def _piece(self, position: int) -> tuple[int, int]:
        """The piece that a position is in, and where; the end is in the last. Looked for from the nearer
        end."""
        pieces = self._pieces
        if 2 * position > len(self._home):
            end = len(self._home)
            for index in range(len(pieces) - 1, -1, -1):
                end -= len(pieces[index])
                if position >= end:
                    return index, position - end
        index = 0
        while position >= len(pieces[index]) and index < len(pieces) - 1:
            position -= len(pieces[index])
            index += 1
        return index, position
