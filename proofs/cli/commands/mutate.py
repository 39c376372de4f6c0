"""`slotproof mutate`: which small faults in the model would be seen, and by what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from slotproof.proofs.cli.working import working
from slotproof.proofs.mutate.mutate import Judged, judge_all, judges
from slotproof.proofs.output.errors import Exit
from slotproof.proofs.output.files import check_writable
from slotproof.proofs.output.words import counted


@click.command()
@click.option("--faults", default=30, show_default=True, type=click.IntRange(min=1), help="How many to try.")
@click.option("--seed", default=1, show_default=True, help="Which of all faults these are.")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("mutate.jsonl"),
    show_default=True,
    help="Where each fault and what saw it is written; a run goes on where the last one stopped.",
)
@click.option(
    "--every-judge", is_flag=True, help="Ask all judges about each fault, not only up to the first."
)
def mutate(faults: int, seed: int, file: Path, every_judge: bool) -> int:
    """Put small faults into the model, one at a time, and say what sees them: the statements in a
    campaign, the gate on our implementation and on vLLM if it is installed, the proofs. A fault that
    nothing sees is shown.

    Exits 0 if every fault is seen or known to make no difference, 1 if one survives.
    """
    check_writable(file)
    console = Console(highlight=False, soft_wrap=True)
    judged: list[Judged] = []
    with working(console, "putting in faults") as advance:
        for done, one in enumerate(judge_all(faults, seed, file, every_judge), 1):
            judged.append(one)
            advance(one.name, done, faults)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("seen by", "faults"):
        table.add_column(column, justify="right" if column == "faults" else "left")
    by = Counter(name for one in judged if not one.is_broken for name, said in one.seen.items() if said)
    for name in judges():
        table.add_row(name, str(by[name]))
    table.add_row("whoever runs it: it does not run", str(sum(one.is_broken for one in judged)))
    survivors = [one for one in judged if one.survives]
    none = [one for one in judged if one.is_unseen and one.why_none]
    table.add_row("nothing, and it makes no difference", str(len(none)))
    table.add_row("nothing", str(len(survivors)))
    console.print(table)
    for one in none:
        console.print(f"makes no difference: {one.name}: {one.why_none}", markup=False)
    for one in survivors:
        console.print(f"survives: {one.name}\n{one.diff}", markup=False)
    seen = len(judged) - len(survivors) - len(none)
    console.print(f"{seen} of {counted(len(judged), 'fault')} seen", markup=False)
    return Exit.BAD if survivors else Exit.GOOD
