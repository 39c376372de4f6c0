"""A receipt: what was proved of which model, to be compared with another without solving anything."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slotproof.model.language.rules import Rules
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.prove.kept import versions
from slotproof.proofs.prove.obligations.groups import Group
from slotproof.proofs.prove.prover import Report
from slotproof.proofs.prove.smt_lib import Digests

FORMAT = "slotproof receipt 1"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An obligation as it was proved."""

    kind: str
    name: str
    statement: str
    problem: str
    """The digest of what was put to the solver (`smt_lib.py`)."""
    verdict: str
    resources: int
    """What Z3 took, in its own unit."""


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was proved, by which versions, under which options."""

    format: str
    written: str
    versions: dict[str, str]
    statements: list[str]
    """Those that were named; none for all."""
    kinds: list[str]
    without: list[str]
    """Rules that were off."""
    verdict: str
    obligations: list[Entry]


def of_report(report: Report, kinds: tuple[str, ...], without: tuple[str, ...]) -> Receipt:
    """The receipt of a report."""
    entries = [
        Entry(f.kind, f.name, f.statement, f.problem, f.verdict, f.resources) for f in report.obligations
    ]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    named = sorted(report.wanted)
    return Receipt(FORMAT, now, versions(), named, list(kinds), list(without), report.verdict, entries)


def read(path: Path) -> Receipt:
    """Raises UserError if the file is no receipt."""
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: is no receipt: {error} (`slotproof prove --receipt FILE` writes one)"
        ) from error
    if receipt.format != FORMAT:
        raise UserError(f"{path}: is of another format, {receipt.format}: prove again with --receipt")
    return receipt


@dataclass(frozen=True)
class DigestTask:
    """The problems of a group, by name."""

    group: Group
    rules: Rules

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind})"

    def __call__(self) -> dict[tuple[str, str], tuple[str, str, bool]]:
        """(kind, name) -> (digest, statement, is a leaf)"""
        digests = Digests()
        obligations = self.group.build(self.rules)
        return {(o.kind, o.name): (digests.of(o), o.statement, o.is_leaf) for o in obligations}


def differences(receipt: Receipt, now: dict[tuple[str, str], tuple[str, str, bool]]) -> list[str]:
    """What the model in front of us has to prove otherwise than the one that was proved, a line each."""
    named = set(receipt.statements)
    here = {
        place: problem
        for place, (problem, statement, leaf) in now.items()
        if not named or statement in named or not leaf
    }
    then = {(entry.kind, entry.name): entry.problem for entry in receipt.obligations}
    told = [f"not in the receipt: {name} ({kind})" for kind, name in sorted(here.keys() - then.keys())]
    told += [f"not in this model: {name} ({kind})" for kind, name in sorted(then.keys() - here.keys())]
    changed = sorted(place for place in here.keys() & then.keys() if here[place] != then[place])
    return told + [f"another problem: {name} ({kind})" for kind, name in changed]
