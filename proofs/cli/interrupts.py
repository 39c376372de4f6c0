"""Interrupts: SIGTERM is one too, and none is lost, whoever is at work when it comes.

An interrupt is a KeyboardInterrupt in the main thread. A command that knows part of its answer catches it,
tells that part, marks it as partial and ends with `Exit.INTERRUPTED`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import cache

from slotproof.proofs.output.errors import is_interrupt

_held = threading.local()
"""`before` is what the thread that forks has blocked otherwise."""


def watch() -> None:
    """From now on SIGTERM interrupts as SIGINT does, in this process and in none that it forks."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: None)  # Python writes to the pipe, the thread does the rest
    _follow_forks()
    threading.Thread(target=_pass_on, args=(read,), daemon=True).start()
    sys.unraisablehook = _once_more


def _pass_on(read: int) -> None:
    """A SIGTERM as a SIGINT of the main thread: Z3, at work in it, stops at a SIGINT alone."""
    while received := os.read(read, 1):
        if received[0] == signal.SIGTERM:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@cache  # a second registration would take the first one's hold for what was blocked before
def _follow_forks() -> None:
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)


def _hold() -> None:
    """A process that was just forked has our pipe still: a SIGTERM that it gets waits until it has not."""
    _held.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.before)


def _forget() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()


def _once_more(ignored: sys.UnraisableHookArgs) -> None:
    """An interrupt during a finalizer, of which Z3's terms have many, is ignored: it comes once more."""
    if ignored.exc_value is not None and is_interrupt(ignored.exc_value):
        again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)
