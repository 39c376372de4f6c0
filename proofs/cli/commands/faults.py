"""`slotproof faults`: the catalogue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.rules import RULES
from slotproof.proofs.cli import options
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.faults.catalogue import FAULTS, ISSUES, LEFT_OUT, NAMED, Fault
from slotproof.proofs.output.errors import Exit, UserError


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@options.json_file
def faults(name: str | None, json_file: Path | None) -> int:
    """List the faults: what goes wrong when a rule is missing, and which statement falls.

    With NAME, a fault's name or alias, show that one.
    """
    if name is not None and name not in NAMED:
        raise UserError(f"{name}: there is no such fault: `slotproof faults` lists them")
    outputs = Outputs({"--json": json_file})
    console = outputs.console(soft_wrap=False)
    if name is None:
        show_all(console)
    else:
        show(console, NAMED[name])
    outputs.write_json(listing() if name is None else record(NAMED[name]))
    return Exit.GOOD


def record(fault: Fault) -> dict[str, Any]:
    """A fault as JSON has it."""
    return {
        "name": fault.name,
        "alias": fault.alias or None,
        "rules": list(fault.rules),
        "stage": fault.stage,
        "statement": fault.statement,
        "description": fault.description,
        "issues": list(fault.issues),
        "on_vllm": fault.on_vllm or None,
    }


def listing() -> dict[str, Any]:
    """The catalogue as JSON has it."""
    left_out = [{"issue": issue, "why": why} for issue, why in LEFT_OUT.items()]
    return {"faults": [record(fault) for fault in FAULTS], "left_out": left_out}


def show_all(console: Console) -> None:
    """A table on a terminal, plain lines elsewhere."""
    if console.is_terminal:
        console.print(table())
    else:
        for fault in FAULTS:
            words = f"{fault.name:32}{fault.stage:9}{fault.statement:25}{fault.alias}"
            say(console, words.rstrip())
    say(console, "")
    say(console, "Not told yet:")
    for issue, why in LEFT_OUT.items():
        say(console, f"vllm#{issue}: {why}")
    say(console, "")
    say(console, "`slotproof faults NAME` shows one, `slotproof explore --without NAME` its shortest story.")


def table() -> Table:
    """The faults for a terminal."""
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("fault", "stage", "statement that falls", "modelled on"):
        grid.add_column(column, overflow="fold")
    for fault in FAULTS:
        grid.add_row(fault.name, fault.stage, fault.statement, fault.alias)
    return grid


def show(console: Console, fault: Fault) -> None:
    """One fault, in a few lines."""
    title = f"{fault.name} ({fault.alias})" if fault.alias else fault.name
    console.print(title, style="bold", markup=False)
    say(console, fault.description)
    for rule in fault.rules:
        say(console, f"missing ({RULES[rule]['stage']}): {RULES[rule]['text']}")
    say(console, f"falls: {fault.statement}: {STATEMENTS[fault.statement].text}")
    for issue in fault.issues:
        say(console, f"see: {ISSUES}{issue}")
    if fault.on_vllm:
        say(console, f"on vLLM: {fault.on_vllm}")
    off = " ".join(f"--without {rule}" for rule in fault.rules)
    say(console, f"its story: slotproof explore {off}")


def say(console: Console, text: str) -> None:
    """A line as it is; a terminal wraps it at words."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)
