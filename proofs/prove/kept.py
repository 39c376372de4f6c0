"""Verdicts kept from one run to the next, so that a second `prove` proves what a change touches.

Kept is only what was proved, by the digest of the problem; and, for as long as the source is as it was, by
group, which then need not even be built.
The file is named after the versions of slotproof, Python, Z3 and its limits: another version has another.
"""

from __future__ import annotations

import hashlib
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import z3

import slotproof.impl.protocol as protocol
import slotproof.model.language.state as state
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.files import write_file
from slotproof.proofs.prove import obligation

MOST = 20_000
"""Entries of each kind that are kept: those that were used last."""


class Kept(msgspec.Struct):
    """What was proved. Keys are digests in hexadecimal."""

    problems: dict[str, int] = {}
    """problem -> the resources that Z3 took."""
    groups: dict[str, list[dict[str, Any]]] = {}
    """(source, group, rules) -> its obligations with their answers, all of them proved."""
    consistent: dict[str, bool] = {}
    """The problems of a group together -> no contradiction was found in what they assume."""
    reached: dict[str, list[str]] = {}
    """(source, kind of attention) -> what a campaign under all rules reached, having seen nothing broken."""

    def save(self) -> None:
        """Write what is kept to the user's cache folder, beside what other runs have kept there. Where it
        cannot be written, nothing is kept."""
        there = load()
        for name in self.__struct_fields__:
            entries = getattr(there, name) | getattr(self, name)
            setattr(there, name, dict(list(entries.items())[-MOST:]))
        try:
            place().parent.mkdir(parents=True, exist_ok=True)
            write_file(place(), msgspec.json.encode(there))
        except (OSError, UserError):
            return


def load() -> Kept:
    """What is kept; nothing if there is no such file, or it is not one of ours."""
    try:
        return msgspec.json.decode(place().read_bytes(), type=Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Kept()


def place() -> Path:
    """The file, in the user's cache folder (`XDG_CACHE_HOME`)."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "slotproof" / f"proved-{named(versions())[:16]}.json"


def versions() -> dict[str, str]:
    """Everything that a verdict depends on beside the problem."""
    limits = (obligation.TRIES, obligation.CONSISTENCY, obligation.SECONDS)
    return {
        "slotproof": version("slotproof"),
        "python": sys.version.split()[0],
        "z3": str(z3.get_full_version()),
        "limits": named(limits)[:16],
    }


def source() -> str:
    """The digest of all source that a proof comes from: the model, the proofs and the campaigns."""
    proofs = Path(__file__).parents[1]
    roots = (Path(state.__file__).parents[1], proofs / "prove", proofs / "campaign")
    files = [*sorted(path for root in roots for path in root.rglob("*.py")), Path(protocol.__file__)]
    whole = hashlib.sha256()
    for path in files:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def named(*parts: Any) -> str:
    """The digest of what the parts look like."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
