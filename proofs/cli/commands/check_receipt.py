"""`slotproof check-receipt`: is this the model that was proved?"""

from __future__ import annotations

from pathlib import Path

import click

from slotproof.model.language.rules import Rules
from slotproof.proofs.cli import options
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import working
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.words import counted
from slotproof.proofs.prove.kept import versions
from slotproof.proofs.prove.obligations.groups import groups
from slotproof.proofs.prove.prover import PROVED
from slotproof.proofs.prove.receipt import DigestTask, differences, read
from slotproof.proofs.prove.workers import run

SHOWN = 20
"""Differences that are told."""


@click.command("check-receipt")
@click.argument("file", type=click.Path(path_type=Path))
@options.json_file
def check_receipt(file: Path, json_file: Path | None) -> int:
    """Whether the model in front of us is the one that the receipt FILE was written for (`slotproof prove
    --receipt FILE`): every obligation is built and its digest compared; nothing is solved.

    Exits 0 if it is and all was proved, 1 if an obligation differs, 3 if it is but not all was proved.
    """
    outputs = Outputs({"--json": json_file}, {"FILE": file})
    console = outputs.console()
    receipt = read(file)
    try:
        rules = Rules().without(*receipt.without)
    except KeyError as error:
        raise UserError(f"{file}: {error.args[0]} is no rule of this model: prove again") from error
    now: dict[tuple[str, str], tuple[str, str, bool]] = {}
    tasks = [DigestTask(group, rules) for group in groups(tuple(receipt.kinds))]
    with working(console, "building") as advance:
        for done, (task, found) in enumerate(run(tasks), 1):
            now |= found or {}
            advance(task.label, done, len(tasks))
    told = differences(receipt, now)
    for line in told[:SHOWN]:
        console.print(line, markup=False)
    if len(told) > SHOWN:
        console.print(f"and {len(told) - SHOWN} more", markup=False)
    for what, then in receipt.versions.items():
        if (today := versions().get(what)) != then:
            console.print(f"note: {what} was {then}, and is {today}", markup=False)
    proved = sum(entry.verdict == PROVED for entry in receipt.obligations)
    amount = f"{proved} of {counted(len(receipt.obligations), 'obligation')} proved on {receipt.written}"
    same = "another model" if told else "this model"
    console.print(f"{same}: {amount}, {counted(len(told), 'difference')}", markup=False)
    outputs.write_json({"same": not told, "differences": told, "verdict": receipt.verdict})
    if told:
        return Exit.BAD
    return Exit.GOOD if receipt.verdict == PROVED else Exit.UNKNOWN
