"""`slotproof bench`: how fast the allocator is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from slotproof.proofs.bench.bench import BLOCK_SIZE, FULL, QUICK, Mismatch, Report, Row, measure
from slotproof.proofs.bench.contenders import Counting, Vllm
from slotproof.proofs.cli import options
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import HEARTBEAT
from slotproof.proofs.output.errors import Exit, UserError


@click.command()
@click.option("--against", type=click.Choice(["vllm"]), help="Also time an installed vLLM, side by side.")
@click.option("--quick", is_flag=True, help="A small pool and few repetitions: does it run, not how fast.")
@options.json_file
def bench(against: str | None, quick: bool, json_file: Path | None) -> int:
    """Time decode steps, admissions and releases: ours call by call and in batches, and vLLM's.

    Beside them stands the leanest loop that keeps counts and block tables, in plain Python. All take turns
    in one run, and medians are told. Contenders that do not give out the same blocks are not
    compared (exit 1). Nothing fails for being slow.
    """
    outputs = Outputs({"--json": json_file})
    console = outputs.console()
    try:
        with _progress() as progress:
            report = measure(QUICK if quick else FULL, vllm=against == "vllm", progress=progress)
    except ImportError as error:
        raise UserError(f"--against vllm: {error}") from None
    except Mismatch as mismatch:
        console.print(f"contenders disagree, {mismatch}", markup=False)
        outputs.write_json({"verdict": "disagrees", "difference": str(mismatch)})
        return Exit.BAD
    for line in lines(report):
        console.print(line, markup=False)
    outputs.write_json(record(report))
    return Exit.INTERRUPTED if report.partial else Exit.GOOD


def lines(report: Report) -> Iterator[str]:
    """The report for people."""
    machine, size = report.machine, report.size
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    yield f"{machine.cpu}, {machine.cores} cores, load {machine.load}; {versions}"
    yield f"pool of {size.num_blocks:,} blocks of {BLOCK_SIZE} tokens, prefix caching on; medians"
    for row in report.rows:
        yield ""
        yield f"{row.name} ({row.repetitions} times)"
        for contender, microseconds in row.microseconds.items():
            ratios = _ratio(row, contender, Vllm.name, "as fast as vLLM") + _ratio(
                row, Counting.name, contender, "the counting loop's time"
            )
            yield f"  {contender:14}{microseconds:>12,.1f} us{ratios}"
    yield ""
    if report.partial:
        yield "interrupted: this is what was measured by then"
        return
    yield "bytes on the host, as tracemalloc counts them"
    for memory in report.memory:
        kept = ", ".join(f"{contender} {count:.0f}" for contender, count in memory.bytes.items())
        yield f"  {memory.name}: {kept}"


def _ratio(row: Row, contender: str, other: str, words: str) -> str:
    times = row.times_faster(contender, other)
    return "" if times is None or contender == other else f"   {times:>6.1f} x {words}"


def record(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    value: dict[str, Any] = msgspec.to_builtins(report)
    for row, told in zip(report.rows, value["rows"], strict=True):
        told["times_as_fast_as_vllm"] = {c: row.times_faster(c, Vllm.name) for c in row.microseconds}
        told["times_the_counting_loop"] = {c: row.times_faster(Counting.name, c) for c in row.microseconds}
    return {"verdict": "interrupted" if report.partial else "measured", **value}


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being timed, on a terminal; elsewhere a line now and then."""
    console = Console(stderr=True)
    if not console.is_terminal:
        told = time.monotonic()

        def note(name: str) -> None:  # no `heartbeat`: its thread would take its time from theirs
            nonlocal told
            if time.monotonic() - told > HEARTBEAT:
                told = time.monotonic()
                console.print(f"slotproof: bench: {name}", markup=False, highlight=False)

        yield note
        return
    # Drawn between measurements only: a thread that draws would take its time from theirs.
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("")

        def draw(name: str) -> None:
            bar.update(task, description=name)
            bar.refresh()

        yield draw
