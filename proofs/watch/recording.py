"""What an engine wrote down (`impl/vllm/live/recorder.py`), followed by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from slotproof.impl.protocol import Snapshot
from slotproof.impl.vllm.live.recorder import VERSION, End, Head, Line, Made, Whole
from slotproof.model.running import Running
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    difference,
    snapshot_differences,
)
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.watch.follower import Follower
from slotproof.proofs.watch.look import expected
from slotproof.proofs.watch.summary import Summary

_decode = msgspec.json.Decoder(Line).decode


class Recorded:
    """What was written down of a manager's state with each call."""

    def __init__(self, running: Running, names: dict[int, str], zeroing: bool) -> None:
        self.made: Made | None = None
        self.shown: Whole | None = None
        self._running = running
        self._names = names
        self._zeroing = zeroing
        self._keys = KeyMatch()

    def after_call(self) -> list[Difference]:
        """The free blocks, and the keys of the blocks that were published."""
        if self.made is None:
            return []
        s, found = self._running.state, []
        if self.made.num_free != s.num_free:
            found.append(difference("the free blocks", s.num_free, self.made.num_free))
        for block, key in self.made.keys:
            found += self._keys.of_block(block, s.block_hash(block) or None, key.encode() or None)
        return found

    def is_as_before(self) -> bool:
        return True  # what was written between two calls is seen by what the next one leaves

    def whole(self) -> list[Difference]:
        """All of it, where all was written down."""
        got = self.snapshot()
        if got is None:
            return []
        hidden = frozenset() if self._zeroing else frozenset({"to_zero"})
        return snapshot_differences(
            Strictness.EXACT, expected(self._running, self._names), got, self._keys, hidden
        )

    def snapshot(self) -> Snapshot | None:
        shown, several = self.shown, self._running.engine.groups.num
        numbers = {name: r for r, name in self._names.items()}
        if shown is None or not shown.tables.keys() <= numbers.keys():
            return None
        return Snapshot(
            free_queue=shown.free_queue,
            ref_cnt=shown.ref_cnt,
            hashes=tuple(key.encode() or None for key in shown.keys),
            tables={
                numbers[name] * several + g: table
                for name, tables in shown.tables.items()
                for g, table in enumerate(tables)
                if table
            },
            usage=shown.usage,
            to_zero=shown.to_zero,
        )

    def keys_in_use(self) -> frozenset[int]:
        s = self._running.state
        keys = frozenset(s.block_hash(b) for b in range(1, s.engine.num_blocks))
        self._keys.keep(keys)
        return keys


class Recording:
    """One file, followed as far as it is written.

    Args:
        path: The file.
        summary: Where it is counted.

    Raises:
        UserError: it is no recording, or of another version.
    """

    def __init__(self, path: Path, summary: Summary) -> None:
        self.path = path
        self.follower: Follower | None = None
        self.ended = ""
        """Why nothing more was written, if that was written down."""
        self._summary = summary
        self._file: BinaryIO = path.open("rb")
        self._left = b""
        self._begun = False
        self._look: Recorded | None = None

    @property
    def torn(self) -> int:
        """Bytes of a last line that was not written to its end."""
        return len(self._left)

    def advance(self, told: Callable[[], None] = lambda: None) -> int:
        """Follow what was written since; how many lines that was."""
        lines = 0
        for text in self._new_lines():
            lines += 1
            try:
                line = _decode(text)
            except msgspec.MsgspecError as error:
                raise UserError(f"{self.path}: line {lines}: not of a recording: {error}") from None
            self._take(line)
            told()
        return lines

    def _new_lines(self) -> Iterator[bytes]:
        while chunk := self._file.read(1 << 20):
            *lines, self._left = (self._left + chunk).split(b"\n")
            yield from lines

    def _take(self, line: Head | Made | Whole | End) -> None:
        if isinstance(line, Head):
            self._begin(line)
        elif not self._begun:
            raise UserError(f"{self.path}: it does not begin as a recording does")
        elif isinstance(line, End):
            self.ended = line.why
        elif self.follower is not None and self._look is not None:
            if isinstance(line, Made):
                self._look.made = line
                self.follower(line.event)
            else:
                self._look.shown = line
                self.follower.at_rest()
                self._look.shown = None

    def _begin(self, head: Head) -> None:
        if head.version != VERSION:
            raise UserError(f"{self.path}: version {head.version}: this slotproof reads version {VERSION}")
        self._begun = True
        if head.config is None:
            self._summary.managers += 1
            self._summary.never.update(head.cannot)
            return

        def look(running: Running, names: dict[int, str], zeroing: bool) -> Recorded:
            self._look = Recorded(running, names, zeroing)
            return self._look

        self.follower = Follower(head.config, look, self._summary, self.path.stem, head.unseen)


def recordings(folder: Path) -> list[Path]:
    """The recordings in a folder, by name. Raises UserError if there is no such folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: an engine started with SLOTPROOF_WATCH={folder} makes it")
    return sorted(folder.glob("*.jsonl"))
