"""What is told to people in one line, and the exit code of each outcome."""

from __future__ import annotations

from ctypes import ArgumentError
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `slotproof`."""

    GOOD = 0
    """Proved; agrees."""
    BAD = 1
    """Refuted; disagrees."""
    USAGE = 2
    """What was given on the command line, or in a file, cannot be used."""
    UNKNOWN = 3
    """Not proved, not covered, nothing compared, or an error of slotproof's own."""
    INTERRUPTED = 130
    """Stopped by SIGINT or SIGTERM; what was known by then is told, and marked as partial."""


class UserError(Exception):
    """What the user gave cannot be used. The message is one line that names the thing and the remedy."""


def is_interrupt(error: BaseException) -> bool:
    """Whether it is an interrupt, or the error that ctypes, on the way to Z3, makes of one."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, ArgumentError) and KeyboardInterrupt.__name__ in str(error)
    )
