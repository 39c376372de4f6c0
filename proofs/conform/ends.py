"""How a run ends early, and where the code under test was then."""

from __future__ import annotations

import sys
from pathlib import Path as File

HERE = File(__file__).parent


class Unsupported(BaseException):
    """The code did what we cannot follow. No `Exception`, so that the code under test does not catch it."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where or code_line()


class Branches(BaseException):
    """A function that should not branches on a term."""


class EndOfPath(BaseException):
    """The run has shown what it was for."""


class Exhausted(BaseException):
    """A budget is used up (`what`), at `where`."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = code_line()


def code_line() -> str:
    """`file:line` of the code under test that runs now: the innermost frame that is not of this folder."""
    frame = sys._getframe(1)
    while frame.f_back is not None and File(frame.f_code.co_filename).parent == HERE:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
