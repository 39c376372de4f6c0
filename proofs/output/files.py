"""Files that commands write: whole or not at all, and known to be writable before the work begins."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from slotproof.proofs.output.errors import UserError

STANDARD_OUTPUT = Path("-")


def check_writable(path: Path) -> None:
    """Raises UserError if the file cannot be written. The path `-` is standard output."""
    if path == STANDARD_OUTPUT:
        if getattr(sys.stdout, "name", "") == os.devnull:
            raise UserError("-: standard output is closed: name a file")
        return
    if path.is_dir():
        raise UserError(f"{path}: is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path}: the folder {path.parent} cannot be written to: name another")


def write_file(path: Path, data: bytes) -> None:
    """Write a file in one go.

    Raises:
        UserError: it cannot be written; what was there before is there still.
    """
    try:
        if path == STANDARD_OUTPUT:
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                leave_unread(sys.stdout.fileno())
            return
        if path.exists() and not path.is_file():  # a device or a pipe is written to, never replaced
            with path.open("wb") as file:
                file.write(data)
            return
        path = path.resolve()  # a link stays, what it leads to is replaced
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.chmod(draft, 0o644)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def leave_unread(stream: int) -> None:
    """Whoever read this stream has seen enough: what else is written to it goes nowhere, without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def write_json(path: Path, value: Any) -> None:
    """Write builtins or a msgspec struct as indented JSON. Raises UserError as `write_file`."""
    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
