"""How a workload ends early, and how a scheduler that raises does so."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slotproof.impl.device.content import ContentError
from slotproof.impl.protocol import Call
from slotproof.impl.scheduler.manager import CallFailed
from slotproof.proofs.gate.compare import Difference
from slotproof.proofs.output.words import error_line, one_line

_HERE = Path(__file__).parent


class Disagreement(Exception):
    """The manager, the contents or the scheduler are not as they should be.

    Args:
        differences: In what.
        call: The manager's call that shows it, if it is none that the story has.
        request: The request at fault, where it is one.
        traceback: Where the scheduler raised, if it did.
    """

    def __init__(
        self,
        differences: list[Difference],
        call: Call | None = None,
        request: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(differences[0].line)
        self.differences = differences
        self.call = call
        self.request = request
        self.traceback = traceback


@contextmanager
def answers() -> Iterator[None]:
    """A scheduler that raises disagrees."""
    try:
        yield
    except (Disagreement, ContentError):
        raise
    except CallFailed as failed:
        cause = failed.__cause__
        assert cause is not None
        raise _raised(cause, failed.call) from cause
    except Exception as error:
        raise _raised(error) from error


def _raised(error: BaseException, call: Call | None = None) -> Disagreement:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).parent != _HERE]
    frames = frames or list(traceback.extract_tb(error.__traceback__))
    where = frames[-1]
    said = error_line(error)
    if said == type(error).__name__:
        said += f" in {where.name}, {Path(where.filename).name}:{where.lineno}"
    found = Difference("scheduler", "an answer", f"raised {said}")
    told = [one_line(line) for frame in traceback.format_list(frames) for line in frame.splitlines()]
    return Disagreement([found], call, getattr(call, "request", None), "\n".join(told))
