"""An implementation in a process of its own: it may raise, hang, answer nonsense or die, and we live.

The calls of a sequence depend on the model alone, so they are sent together, and the replies come
back one by one: at full speed no process waits for the other, and how many replies have come tells
which call went wrong.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec

from slotproof.impl.capabilities import Unsupported, checked
from slotproof.impl.protocol import Allocator, Call, Config, Result, Snapshot
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.text import call_line
from slotproof.proofs.output.words import error_line, one_line

Factory: TypeAlias = Callable[[Config], Allocator]
Load: TypeAlias = Callable[[], Factory]
"""Imports an implementation and returns its factory; called in the implementation's own process."""

PATIENCE = 60.0
"""Seconds that a call or a factory may take."""
IMPORT_PATIENCE = 600.0
"""Seconds that importing an implementation may take, or as long as a call if that may take longer: on a cold
disk vLLM's modules and PyTorch's take minutes."""
HANGS = 1.0
"""Seconds after which an answer that was waited for when somebody lost patience is told of."""
MAX_REPLY = 1 << 28


class Kind(Enum):
    """How an implementation failed to answer."""

    RAISED = "raised"
    HUNG = "hung"
    DIED = "died"
    NONSENSE = "nonsense"


class Fault(NamedTuple):
    """No answer, and why: `text` is one line, such as `raised KeyError: 'r7' (pool.py:12)`."""

    kind: Kind
    text: str
    traceback: str = ""
    """The lines of the exception's traceback, if it raised: those of the implementation."""


class CannotStart(UserError):
    """The implementation cannot be imported, or its factory raised."""


class Job(msgspec.Struct, frozen=True):
    config: Config | None
    calls: tuple[Call, ...]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What one call answered, and the state after it. The first reply to a job is the initial state."""

    result: Result
    state: Snapshot


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a factory says of what it makes, in attributes of these names; all may be missing."""

    installed: str = ""
    """What is gated, with its release: `vLLM 0.32.0`."""
    lacks: frozenset[str] = frozenset()
    """What it cannot do or show (`impl/capabilities.py`)."""
    release: str = ""
    """The release of vLLM whose behaviours it has, such as `0.23.0`; the model's own if not given."""
    has_more: bool = False
    """With several groups, it can have chunks, draft heads and sparse retention, which it has to say too."""
    has_groups: bool = False
    """It can have several attention groups, which it has to say: others were made before `Config.groups`."""


class _Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The implementation is imported."""

    about: About


class _Error(msgspec.Struct, frozen=True, tag="error"):
    """The end of a job that failed. `start`: before there was an allocator."""

    kind: Kind
    text: str
    start: bool = False
    traceback: str = ""


_REPLIES = msgspec.msgpack.Decoder(Reply)
_CONTROL = msgspec.msgpack.Decoder(_Ready | _Error)
_JOBS = msgspec.msgpack.Decoder(Job)


class Isolated:
    """A factory's allocators, each made and driven in one other process.

    The process starts when it is first needed, and again after it has died.

    Args:
        load: imports the implementation, in that process.
        patience: the seconds that a call or the factory may take.
        import_patience: those that the import may take, if they are more.
    """

    def __init__(
        self, load: Load, patience: float = PATIENCE, import_patience: float = IMPORT_PATIENCE
    ) -> None:
        self._load = load
        self._patience = patience
        self._import_patience = max(patience, import_patience)
        self._awaited: tuple[Call | str, float] | None = None
        """What the process is at, and since when."""
        self._process: _Process | None = None
        self.about = About()
        """What the factory says of what it makes, once it is imported."""
        self._unread = 0
        """Replies of the last run that nobody wanted. They are read before the next one, not at once: whoever
        is interrupted does not wait for a call that hangs."""

    def run(self, config: Config | None, calls: list[Call]) -> Generator[Reply | Fault, None, None]:
        """Drive a fresh allocator: its initial state, then a reply for each call; a Fault is the last.
        Without a configuration, go on with the last allocator, whose state is known.

        Close the generator when no more replies are wanted, before the next run.

        Raises:
            CannotStart: there is no allocator to drive.
        """
        self._drain()
        self.start()
        process = self._process
        assert process is not None
        process.send(msgspec.msgpack.encode(Job(config, tuple(calls))))
        self._unread = len(calls) + (config is not None)
        while self._unread:
            at_work = None if self._unread > len(calls) else calls[len(calls) - self._unread]
            message = self._receive(process, "call" if at_work else "factory", at_work)
            if isinstance(message, _Error):
                if message.start:
                    raise CannotStart(message.text)
                message = Fault(message.kind, message.text, message.traceback)
            assert not isinstance(message, _Ready)
            yield message
            if isinstance(message, Fault):
                return

    def start(self) -> None:
        """Start the process and import the implementation, unless that is done.

        Raises:
            CannotStart: it cannot be imported.
        """
        if self._process is not None:
            return
        self._process = _Process(self._load)
        ready = self._receive(self._process, "import")
        if not isinstance(ready, _Ready):
            self.close()
            assert not isinstance(ready, Reply)
            hung = isinstance(ready, Fault) and ready.kind is Kind.HUNG
            raise CannotStart(ready.text + (": --patience gives it longer" if hung else ""))
        self.about = ready.about

    @property
    def hangs(self) -> str:
        """What has been waited for, and for how long, if that is long enough to be told; else nothing."""
        if self._awaited is None:
            return ""
        what, since = self._awaited
        seconds = time.monotonic() - since
        told = f"the {what}" if isinstance(what, str) else call_line(what)
        return f"{told} (for {seconds:.0f} s)" if seconds >= HANGS else ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end(patience=0.0)
            self._process = None
        self._unread = 0

    def _receive(
        self, process: _Process, what: str, call: Call | None = None
    ) -> Reply | Fault | _Ready | _Error:
        """The next message, and one less unread; a process that no longer can give one is ended."""
        patience = self._import_patience if what == "import" else self._patience
        self._awaited = (call or what, time.monotonic())
        try:
            data = process.receive(patience)
            self._awaited = None
        except TimeoutError:
            self.close()
            return Fault(Kind.HUNG, f"the {what} hung for {patience:g} s")
        except EOFError:
            self._process, self._unread = None, 0
            during = " during the import" if what == "import" else ""
            return Fault(Kind.DIED, f"the process died{during} ({process.end(patience=1.0)})")
        except ValueError as error:
            self.close()
            return Fault(Kind.NONSENSE, f"nonsense: {error}")
        self._unread = max(0, self._unread - 1)
        try:
            if data[:1] == b"r":
                return _REPLIES.decode(data[1:])
            message = _CONTROL.decode(data[1:])
        except (msgspec.MsgspecError, ValueError) as error:
            return Fault(Kind.NONSENSE, f"nonsense: {error_line(error)}")
        if isinstance(message, _Error):  # the last of its job
            self._unread = 0
        return message

    def _drain(self) -> None:
        """Replies that nobody wanted are read, so that the process is free for the next job."""
        while self._unread and self._process is not None:
            self._receive(self._process, "call")


class _Process:
    """A forked child that takes jobs from one pipe and writes replies to another, each after its length."""

    def __init__(self, load: Load) -> None:
        jobs_out, self._jobs = os.pipe()
        self._replies, replies_in = os.pipe()
        self._buffer = bytearray()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._jobs)
            os.close(self._replies)
            _serve(load, jobs_out, replies_in)
        os.close(jobs_out)
        os.close(replies_in)
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)
        self._status: int | None = None

    def send(self, data: bytes) -> None:
        with suppress(BrokenPipeError):  # it is dead, as the next `receive` finds
            _write(self._jobs, data)

    def receive(self, seconds: float) -> bytes:
        """One message.

        Raises:
            TimeoutError: none came in time.
            EOFError: none will ever come.
            ValueError: it is too long.
        """
        deadline = time.monotonic() + seconds
        buffer = self._buffer
        while True:
            if len(buffer) >= 4:
                end = 4 + int.from_bytes(buffer[:4], "big")
                if end > MAX_REPLY:
                    raise ValueError(f"a reply of {end} bytes")
                if len(buffer) >= end:
                    message = bytes(buffer[4:end])
                    del buffer[:end]
                    return message
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if self._poll.poll(min(left, 0.5) * 1000):
                data = os.read(self._replies, 1 << 20)
                if not data:
                    raise EOFError
                buffer += data
            elif self._has_ended():  # its own children may hold the pipe open
                raise EOFError

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is not None

    def end(self, patience: float) -> str:
        """End the process, if it does not end by itself in `patience` seconds, and say how it ended."""
        os.close(self._jobs)
        os.close(self._replies)
        deadline = time.monotonic() + patience
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(self._status)
        return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[os.write(descriptor, view) :]


def _read(descriptor: int) -> bytes:
    """One message, or nothing at the end of the pipe."""
    header = _read_exactly(descriptor, 4)
    return _read_exactly(descriptor, int.from_bytes(header, "big"))


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _serve(load: Load, jobs: int, replies: int) -> NoReturn:
    """The other process, from beginning to end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt ends the parent, and that ends us
        os.dup2(2, 1)  # standard output is the report's
        sys.stdout = sys.stderr
        _serve_jobs(load, jobs, replies)
    finally:
        os._exit(0)


def _serve_jobs(load: Load, jobs: int, replies: int) -> None:
    try:
        factory = load()
        about = _about(factory)
    except BaseException as error:
        text = one_line(str(error)) if isinstance(error, UserError) else error_line(error)
        _control(replies, _Error(Kind.RAISED, text, start=True))
        return
    _control(replies, _Ready(about))
    allocator: Allocator | None = None
    while data := _read(jobs):
        job = _JOBS.decode(data)
        if job.config is not None:
            try:
                allocator = factory(job.config)
            except BaseException as error:
                text = f"the factory raised {error_line(error)} for {job.config}"
                _control(replies, _Error(Kind.RAISED, text, start=True))
                continue
        assert allocator is not None
        error_found = _work(allocator, job, replies)
        if error_found is not None:
            _control(replies, error_found)


def _work(allocator: Allocator, job: Job, replies: int) -> _Error | None:
    """Drive an allocator, reply by reply; what went wrong, if it did."""
    encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
    result: Any = Result()
    for call in (None, *job.calls) if job.config is not None else job.calls:
        try:
            if call is not None:
                result = allocator.step(call)
            state = allocator.snapshot()
        except Unsupported as error:
            return _Error(Kind.RAISED, one_line(str(error)), start=True)
        except BaseException as error:
            return _raised(error)
        for value, type_ in ((result, Result), (state, Snapshot)):
            if not isinstance(value, type_):
                return _Error(Kind.NONSENSE, f"nonsense: {_shown(value)} is no {type_.__name__}")
        try:
            data = encode(Reply(result, state))
        except Exception as error:
            return _Error(Kind.NONSENSE, f"nonsense: {error_line(error)}")
        _write(replies, b"r" + data)
    return None


def _about(factory: Factory) -> About:
    """Raises UserError for what nobody can be."""
    try:
        lacks = checked(getattr(factory, "lacks", ()))
    except (TypeError, ValueError) as error:
        raise UserError(f"the factory's {one_line(str(error))}") from None
    told = (getattr(factory, name, "") for name in ("installed", "release"))
    # A class that is its own factory has a method `release`, which says nothing of a release.
    installed, release = (one_line(value) if isinstance(value, str) else "" for value in told)
    has = {name: getattr(factory, name, False) is True for name in ("has_groups", "has_more")}
    return About(installed=installed, lacks=lacks, release=release, **has)


def _raised(error: BaseException) -> _Error:
    """What it raised, where, and how it came there, our own lines aside."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    told = "".join(traceback.format_list(frames)).splitlines()
    lines = [line[: len(line) - len(line.lstrip())] + one_line(line) for line in told]
    return _Error(Kind.RAISED, f"raised {error_line(error)}{where}", traceback="\n".join(lines))


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays, and PyTorch's, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{_shown(value)} is neither a number nor a tuple of numbers")


def _control(replies: int, message: _Ready | _Error) -> None:
    _write(replies, b"c" + msgspec.msgpack.encode(message))


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))[:80]
    except Exception:
        return f"a {type(value).__name__}"
