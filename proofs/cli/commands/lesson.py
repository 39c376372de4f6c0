"""`slotproof lesson`: the lesson's trace, from the model."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from slotproof.proofs.cli import options
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.lesson.questions import check_yourself, try_it
from slotproof.proofs.lesson.trace import BLOCK_SIZE, Answer, Line, Start, differences, start, trace
from slotproof.proofs.output.errors import Exit

STAGES = {0: "whole prompt", 2: "this step"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `slotproof lesson --json` writes."""

    verdict: str
    """`agrees`, or `disagrees` with the lesson's figures."""
    differences: list[str]
    start: Start
    trace: tuple[Line, ...]
    try_it: tuple[Answer, ...]
    check_yourself: tuple[Answer, ...]


@click.command()
@options.json_file
def lesson(json_file: Path | None) -> int:
    """Walk through the lesson "Allocating Slots: One Call, Traced".

    Every number comes from running the model. Each line is one allocate_slots, with the stage that decided
    it and the comparison made there; then come the answers to the lesson's questions.

    Exits 0 if the model arrives at the lesson's own figures, 1 if not.
    """
    outputs = Outputs({"--json": json_file})
    report = run()
    show(report, outputs.console(soft_wrap=False))
    outputs.write_json(report)
    return Exit.BAD if report.differences else Exit.GOOD


def run() -> Report:
    """The lesson, run."""
    pool, found = start()
    lines = trace(pool)
    wrong = differences(found, lines)
    return Report(
        verdict="disagrees" if wrong else "agrees",
        differences=wrong,
        start=found,
        trace=lines,
        try_it=try_it(),
        check_yourself=check_yourself(),
    )


def show(report: Report, console: Console) -> None:
    """A table on a terminal, plain lines elsewhere."""
    found = report.start
    say(
        console,
        f"{found.total} blocks of {BLOCK_SIZE} tokens, one of them the null block. A request has computed the"
        f" cached tokens and ended; another runs and holds {found.held} blocks. {found.free} are free, usage"
        f" is {found.usage:.1%}. The prompt hits {found.hits} cached blocks: {found.idle_hits} idle in the"
        f" free queue, {found.hits - found.idle_hits} held by the running request.",
    )
    say(console, "")
    if console.is_terminal:
        console.print(table(report.trace))
    else:
        for line in report.trace:
            say(console, plain(line))
    for title, answers in (("Try it", report.try_it), ("Check yourself", report.check_yourself)):
        say(console, "")
        say(console, title)
        for number, answer in enumerate(answers, start=1):
            say(console, f"{number}. {answer.question}")
            say(console, f"   {answer.answer}")
    say(console, "")
    for difference in report.differences:
        say(console, f"disagrees: {difference}")
    say(console, f"the model {report.verdict} with the lesson")


def say(console: Console, text: str) -> None:
    """A line as it is; a terminal wraps it at words."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def plain(line: Line) -> str:
    """A line of the trace for a pipe."""
    outcome = f"{line.new_blocks} new, {line.taken} taken" if line.granted else "None"
    return (
        f"{line.name:14}  {line.call:35}  {outcome:15}  free {line.free:2}  table {line.table:2}"
        f"  stage {line.stage}, {STAGES[line.stage]}: {line.arithmetic}"
    )


def table(lines: tuple[Line, ...]) -> Table:
    """The trace for a terminal."""
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("step", no_wrap=True)
    grid.add_column("call", min_width=len("lookahead=16)"))
    for column in ("new", "taken", "free", "table"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("by stage", no_wrap=True)
    grid.add_column("need <= free", justify="right", no_wrap=True)
    for line in lines:
        new = str(line.new_blocks) if line.granted else "[red]None[/]"
        counts = (str(line.taken), str(line.free), str(line.table))
        decided = f"{line.stage}, {STAGES[line.stage]}"
        grid.add_row(
            line.name, line.call.removeprefix("allocate_slots"), new, *counts, decided, line.arithmetic
        )
    return grid
