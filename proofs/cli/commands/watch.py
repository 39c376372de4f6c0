"""`slotproof watch`: what a running engine wrote down, followed by the model."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec
from rich.console import Console

from slotproof.proofs.cli import options
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import heartbeat
from slotproof.proofs.output.errors import Exit
from slotproof.proofs.output.files import write_json
from slotproof.proofs.output.words import counted
from slotproof.proofs.watch.recording import Recording, recordings
from slotproof.proofs.watch.summary import Summary

POLL_SECONDS = 0.5


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--live",
    is_flag=True,
    help="Go on with what the engine writes, until a violation or an interrupt; then say what was followed.",
)
@options.json_file
def watch(folder: Path, live: bool, json_file: Path | None) -> int:
    """Check what engines that were started with SLOTPROOF_WATCH=DIR wrote there, call by call.

    The first call that the model answers otherwise is told as a story, with the calls before it (exit 1).
    A call outside the caller's contract is counted, and is no violation. At the end it says what was
    followed, what not, and why (exit 3 if nothing was).
    """
    outputs = Outputs({"--json": json_file})
    console, summary = outputs.console(), Summary()
    known: dict[Path, Recording] = {}
    recordings(folder)  # a folder that is none is said at once
    try:
        with heartbeat(lambda: f"watch: {counted(summary.calls, 'call')} followed"):
            while True:
                advanced = _advance(folder, known, summary)
                if summary.violations or (not live and not advanced):
                    break
                if not advanced:
                    time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        if not live:
            raise
    for recording in known.values():
        _tell(recording, console)
    for line in summary.lines:
        console.print(line, markup=False)
    outputs.write("--json", lambda path: write_json(path, _report(known, summary)))
    if summary.violations:
        return Exit.BAD
    return Exit.GOOD if summary.calls else Exit.UNKNOWN


def _advance(folder: Path, known: dict[Path, Recording], summary: Summary) -> int:
    for path in recordings(folder):
        if path not in known:
            known[path] = Recording(path, summary)
    return sum(recording.advance() for recording in known.values())


def _tell(recording: Recording, console: Console) -> None:
    if recording.follower is not None and recording.follower.violation is not None:
        for line in recording.follower.violation.lines:
            console.print(line, markup=False)
    if recording.ended:
        console.print(f"{recording.path.name}: {recording.ended}", markup=False)
    if recording.torn:
        torn = counted(recording.torn, "byte")
        console.print(f"{recording.path.name}: its last line has no end ({torn}): left out", markup=False)


def _report(known: dict[Path, Recording], summary: Summary) -> dict[str, object]:
    violations = [
        list(r.follower.violation.lines) for r in known.values() if r.follower and r.follower.violation
    ]
    counts: dict[str, object] = msgspec.to_builtins(summary)
    return {"recordings": [path.name for path in known], **counts, "stories": violations}
