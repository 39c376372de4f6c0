"""The files that a command writes: writable and different before it begins, each named once written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.files import STANDARD_OUTPUT, check_writable, leave_unread, write_json


class _Console(Console):
    """Goes silent when nobody reads on: files and exit code are as if somebody did."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        leave_unread(self.file.fileno())


class Outputs:
    """Files by the option that names them; None for an option that was not given.

    Args:
        files: The files, by option.
        read: Files that the command reads, by argument: none is overwritten.

    Raises:
        UserError: A file cannot be written, or is named twice.
    """

    def __init__(self, files: Mapping[str, Path | None], read: Mapping[str, Path] | None = None) -> None:
        self._files = {option: path for option, path in files.items() if path is not None}
        named = {**(read or {}), **self._files}
        for option, path in self._files.items():
            check_writable(path)
            for other, another in named.items():
                if other == option:
                    break
                if _same(path, another):
                    raise UserError(f"{other} and {option}: {path} can be only one of them: name two files")

    def console(self, *, soft_wrap: bool = True) -> Console:
        """Where people are told: standard output, unless one of the files is that."""
        stderr = STANDARD_OUTPUT in self._files.values()
        return _Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)

    def write(self, option: str, write: Callable[[Path], None]) -> None:
        """Write an option's file, if it was given, and say so.

        Raises:
            UserError: It cannot be written.
        """
        path = self._files.get(option)
        if path is None:
            return
        write(path)
        if path != STANDARD_OUTPUT:
            self.console().print(f"wrote {path}", markup=False)

    def write_json(self, value: Any) -> None:
        """Write the file of `--json`, as `write`."""
        self.write("--json", lambda path: write_json(path, value))


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists() and STANDARD_OUTPUT not in (one, other):
        return one.is_file() and os.path.samefile(one, other)  # a device or a pipe takes several reports
    return one.resolve() == other.resolve()
