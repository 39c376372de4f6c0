"""What is watched while code is followed: its time, and what leads out of it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from slotproof.proofs.conform.ends import HERE, Exhausted, Unsupported

OUTSIDE = ("open", "os.", "shutil.", "socket.", "subprocess.", "ctypes.dlopen", "urllib.")
"""Beginnings of the names of Python's audit events that lead out of a program."""
AGAIN = 0.5
"""Seconds after which an alarm is given again, in case that the code caught it."""
RECURSIVE = 8
"""So many calls of one function inside one another are recursion."""
_is_followed = False
_is_hooked = False


@contextmanager
def alarm(deadline: float, budget: float) -> Iterator[None]:
    """Raises Exhausted wherever the code is when computing time gets to the deadline. A thread that is not
    the main one is given no alarm.

    Args:
        deadline: Of `time.process_time`, in seconds.
        budget: The seconds that are told.
    """

    def ring(*_: Any) -> None:
        raise Exhausted(f"{budget:g} seconds")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, max(deadline - time.process_time(), 1e-3), AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def is_recursive() -> bool:
    """A function of the code under test is called by itself, over and over."""
    times: dict[CodeType, int] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(str(HERE)):
            times[frame.f_code] = times.get(frame.f_code, 0) + 1
        frame = frame.f_back
    return max(times.values(), default=0) >= RECURSIVE


@contextmanager
def kept_inside() -> Iterator[None]:
    """Files, processes and the network raise Unsupported while the context lasts. Imports do not."""
    global _is_followed, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    before, _is_followed = _is_followed, True
    try:
        yield
    finally:
        _is_followed = before


def _hook(event: str, _: tuple[Any, ...]) -> None:
    if not (_is_followed and event.startswith(OUTSIDE)):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return
        frame = frame.f_back
    raise Unsupported(f"it leads out of the program: {event}")
