"""That a long command is at work: a bar on a terminal, now and then a line on standard error elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

HEARTBEAT = 10.0
"""Seconds from one line to the next."""


@contextmanager
def heartbeat(state: Callable[[], str]) -> Iterator[None]:
    """While the body is at work, what it is at, as a line on standard error every `HEARTBEAT` seconds.

    The thread holds no lock that a forked process could inherit.
    """
    done, start = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            line = f"slotproof: {state()}, after {time.monotonic() - start:.0f} s\n"
            try:
                os.write(2, line.encode())
            except OSError:  # nobody listens
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str, int, int], None]]:
    """Takes what was done last, and how many of how many: for a bar, or for the lines of `heartbeat`."""
    if console.is_terminal:
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda label, done, total: bar.update(task, completed=done, total=total, description=label)
        return
    now = what

    def advance(label: str, done: int, total: int) -> None:
        nonlocal now
        now = f"{what}, {done} of {total} done, the last {label}"

    with heartbeat(lambda: now):
        yield advance
