"""A live manager's calls, written down as they are made: what `slotproof watch` follows later, or meanwhile.

One file for each manager, appended to and never changed: a line of JSON for the manager, then one for each
call, and now and then one for all that the manager shows. What was flushed survives the process, however it
ends; that is done twice a second. A file has a bound, and says so when it has come to it.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from slotproof.impl.protocol import Config, Snapshot
from slotproof.impl.vllm.live.calls import Calls
from slotproof.impl.vllm.live.describe import describe
from slotproof.impl.vllm.live.events import AllocateSlots, CacheBlocks, Event, Free, PopForFree
from slotproof.impl.vllm.live.view import View

VERSION = 2
FLUSH_SECONDS = 0.5
FLUSH_BYTES = 1 << 18
BOUND_MEGABYTES = 1024
"""Megabytes of a file, unless SLOTPROOF_WATCH_MB says otherwise."""
WHOLE_SECONDS = 10.0
"""The least time from one look at all that a manager shows to the next,"""
WHOLE_SHARE = 400
"""and this many times what the last one took: a quarter of a percent."""
_numbers = itertools.count(1)


class Head(msgspec.Struct, tag="head", array_like=True):
    """The first line: the manager."""

    version: int
    process: str
    vllm: str
    config: Config | None
    cannot: tuple[str, ...]
    unseen: tuple[str, ...]


class Made(msgspec.Struct, tag="made", array_like=True):
    """A call, and what can be told at once of the state after it."""

    event: Event
    num_free: int
    keys: tuple[tuple[int, str], ...] = ()
    """Blocks of its request's tables that count as hashed since its last call, and the key that each can be
    found by, "" for none."""


class Whole(msgspec.Struct, tag="whole", array_like=True):
    """All that the manager shows, as `Snapshot` has it; keys as texts, tables by request and group."""

    free_queue: tuple[int, ...]
    ref_cnt: tuple[int, ...]
    keys: tuple[str, ...]
    tables: dict[str, tuple[tuple[int, ...], ...]]
    usage: float
    to_zero: tuple[int, ...]


class End(msgspec.Struct, tag="end", array_like=True):
    """Nothing more is written, and why."""

    why: str


Line = Head | Made | Whole | End


class Recorder:
    """Writes one manager down.

    Args:
        manager: A `KVCacheManager` that has not been used yet.
        folder: Where its file goes; it is there already.
    """

    def __init__(self, manager: Any, folder: Path) -> None:
        from slotproof.impl.vllm.release import VERSION as VLLM

        found = describe(manager)
        process = f"{socket.gethostname()}-{os.getpid()}"
        self.path = folder / f"{process}-{next(_numbers)}.jsonl"
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (as long as the process)
        self._bound = int(float(os.environ.get("SLOTPROOF_WATCH_MB", BOUND_MEGABYTES)) * (1 << 20))
        self._encode = msgspec.json.Encoder().encode
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._waiting = self._written = 0
        self._ended = False
        self._groups = manager.coordinator.single_type_managers
        self._queue = manager.block_pool.free_block_queue
        self._view = View(manager)
        self._cached: dict[str, list[int]] = {}
        self._next_whole = 0.0
        self._caching = bool(manager.enable_caching)
        self._write(Head(VERSION, process, VLLM or "", found.config, found.cannot, found.unseen))
        self.flush()
        if found.config is not None:
            self._whole()
            self._calls = Calls(manager, self._made)
            threading.Thread(target=self._flush_now_and_then, daemon=True).start()

    def flush(self) -> None:
        """What was told so far is the kernel's to keep."""
        with self._lock:
            lines, self._lines, self._waiting = self._lines, [], 0
            if lines:
                self._written += self._file.write(b"".join(lines))

    def _made(self, event: Event) -> None:
        if self._ended:
            return
        keys = self._new_keys(event) if self._caching else ()
        self._write(Made(event, self._queue.num_free_blocks, keys))
        now = time.monotonic()
        if now >= self._next_whole and not getattr(event, "raised", ""):
            self._whole()
        if self._waiting > FLUSH_BYTES:
            self.flush()

    def _new_keys(self, event: Event) -> tuple[tuple[int, str], ...]:
        if isinstance(event, Free | PopForFree):
            self._cached.pop(event.ledger.request, None)
            return ()
        if not isinstance(event, AllocateSlots | CacheBlocks):
            return ()
        name = event.ledger.request
        known = self._cached.setdefault(name, [0] * len(self._groups))
        found = []
        for g, group in enumerate(self._groups):
            cached = group.num_cached_block.get(name, 0)
            if cached > known[g]:
                blocks = group.req_to_blocks[name][known[g] : cached]
                known[g] = cached
                found += [(b.block_id, _text(self._view.key(b.block_id))) for b in blocks if b.block_id]
        return tuple(found)

    def _whole(self) -> None:
        began = time.monotonic()
        numbers: dict[str, int] = {}
        shown: Snapshot = self._view.whole(lambda name: numbers.setdefault(name, len(numbers)))
        several = len(self._groups)
        tables = {
            name: tuple(shown.tables.get(r * several + g, ()) for g in range(several))
            for name, r in numbers.items()
        }
        keys = tuple(_text(key) for key in shown.hashes)
        self._write(Whole(shown.free_queue, shown.ref_cnt, keys, tables, shown.usage, shown.to_zero))
        now = time.monotonic()
        self._next_whole = now + max(WHOLE_SECONDS, WHOLE_SHARE * (now - began))

    def _write(self, line: Line) -> None:
        text = self._encode(line) + b"\n"
        with self._lock:
            if self._written + self._waiting + len(text) > self._bound:
                self._ended = True
                text = self._encode(End(f"the file has come to its bound of {self._bound} bytes")) + b"\n"
            self._lines.append(text)
            self._waiting += len(text)

    def _flush_now_and_then(self) -> None:
        while not self._ended:
            time.sleep(FLUSH_SECONDS)
            self.flush()


def _text(key: Any) -> str:
    """A key, shortened to what tells it from others: its first eight bytes, and the group behind it."""
    return "" if key is None else f"{key[:8].hex()}{key[-4:].hex()}"
