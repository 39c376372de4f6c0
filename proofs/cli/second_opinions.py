"""What `prove` does beyond proving: a second solver, many seeds, and the problems for anybody's solver."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from slotproof.model.language.rules import Rules
from slotproof.proofs.cli.working import working
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.files import write_file
from slotproof.proofs.output.words import counted
from slotproof.proofs.prove import stability
from slotproof.proofs.prove.cross_check import CVC5, CrossCheck, Opinion, is_installed
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.smt_lib import text
from slotproof.proofs.prove.workers import run

SHOWN = 10
"""Obligations in the table of the least stable."""


def check_installed() -> None:
    """Raises UserError if there is no second solver to ask."""
    if not is_installed():
        raise UserError(f"--cross-check: {CVC5} is not installed: pip install 'slotproof[{CVC5}]'")


def cross_check(console: Console, kinds: tuple[str, ...], rules: Rules) -> bool:
    """Ask cvc5 for every obligation; whether it agrees with all."""
    start, opinions = time.perf_counter(), list[Opinion]()
    tasks = [CrossCheck(group, rules) for group in groups(kinds)]
    with working(console, f"asking {CVC5}") as advance:
        for done, (task, answer) in enumerate(run(tasks), 1):
            opinions += task.lost() if answer is None else answer
            advance(task.label, done, len(tasks))
    against = sorted((o for o in opinions if not o.agrees), key=lambda o: (o.kind, o.name))
    for o in against:
        console.print(f"{CVC5} does not prove: {o.name} ({o.kind}): {o.answer}", markup=False)
    agree, seconds = len(opinions) - len(against), time.perf_counter() - start
    total = f"{agree} of {counted(len(opinions), 'obligation')} proved"
    console.print(f"{CVC5}: {total}, in {seconds:.1f} s", markup=False)
    return not against


def try_seeds(console: Console, kinds: tuple[str, ...], rules: Rules, seeds: int) -> bool:
    """Prove every obligation with many seeds, and show the slowest; whether all were proved."""
    start, found = time.perf_counter(), list[stability.Runs]()
    tasks = stability.tasks(groups(kinds), rules, seeds)
    with working(console, "trying seeds") as advance:
        for done, (task, answer) in enumerate(run(tasks), 1):
            found += task.lost() if answer is None else answer
            advance(task.label, done, len(tasks))
    every = stability.together(found)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("slowest and least stable", "not proved", "fastest", "median", "slowest"):
        table.add_column(column, justify="left" if column.startswith("slowest and") else "right")
    for runs in every[:SHOWN]:
        spent = runs.resources or (0,)
        amounts = (f"{amount / 1e6:.2f} M" for amount in (min(spent), median(spent), max(spent)))
        table.add_row(f"{runs.name} ({runs.kind})", str(runs.unproved), *amounts)
    console.print(table)
    unproved = sum(runs.unproved for runs in every)
    total = sum(len(runs.resources) for runs in every)
    seconds = time.perf_counter() - start
    said = f"{total - unproved} of {counted(total, 'run')} proved, in {seconds:.1f} s"
    console.print(f"{counted(seeds, 'seed')}: {said} (in millions of Z3's unit of resources)", markup=False)
    return not unproved


def check_folder(folder: Path) -> None:
    """Raises UserError if the problems cannot be written there."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty: name a folder that is, or none yet")
    if not folder.exists() and not folder.parent.is_dir():
        raise UserError(f"{folder}: there is no folder {folder.parent}: make it first")


@dataclass(frozen=True)
class _Write:
    group: Group
    rules: Rules
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.group.name} ({self.group.kind})"

    def __call__(self) -> int:
        obligations = self.group.build(self.rules)
        for o in obligations:
            name = re.sub(r"[^a-z0-9_-]+", "-", f"{o.kind}-{o.name}".lower())
            write_file(self.folder / f"{name}.smt2", text(o).encode())
        return len(obligations)


def write_problems(console: Console, folder: Path, kinds: tuple[str, ...], rules: Rules) -> None:
    """Write every obligation to a file of its own.

    Raises:
        UserError: One cannot be written.
    """
    folder.mkdir(exist_ok=True)
    tasks = [_Write(group, rules, folder) for group in groups(kinds)]
    with working(console, "writing problems") as advance:
        for done, (task, _) in enumerate(run(tasks), 1):
            advance(task.label, done, len(tasks))
    written = sum(1 for _ in folder.glob("*.smt2"))
    console.print(
        f"wrote {counted(written, 'problem')} to {folder}: each is proved if it is unsat", markup=False
    )
