"""`slotproof replay`: a trace, told again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import msgspec
from rich.console import Console

from slotproof.proofs.cli import options
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.replay import Replay, retell, run_again
from slotproof.proofs.output.errors import Exit
from slotproof.proofs.output.files import check_writable, write_json
from slotproof.proofs.output.text import call_line, config_line, result_line
from slotproof.proofs.traces.trace import Trace, read_trace


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--impl",
    metavar="torch|vllm|MODULE:FACTORY",
    help="Drive an implementation too. Without it, the model alone tells the story.",
)
@click.option(
    "--compare",
    type=click.Choice([strictness.value for strictness in Strictness]),
    default=Strictness.EXACT.value,
    show_default=True,
    help="How strictly to compare the implementation, as in `slotproof gate`.",
)
@options.json_file
@options.device
@options.patience
def replay(
    trace: Path, impl: str | None, compare: str, json_file: Path | None, device: str, patience: float
) -> int:
    """Replay TRACE, a story that `slotproof` wrote: print it call by call, and check it.

    The model must tell it as it is written, and the implementation, if one is given, must agree with the
    model (exit 1 if not).
    """
    if json_file is not None:
        check_writable(json_file)
    story = read_trace(trace)
    found = retell(story, trace)
    if impl is not None and not found.differences:
        with closing(Isolated(loader(impl, device), patience)) as implementation:
            found = run_again(implementation, story, Strictness(compare))
    who = "the model" if impl is None or found.by_model else impl
    console = Console(stderr=json_file == Path("-"), soft_wrap=True, highlight=False)
    for line in _lines(story, found, who):
        console.print(line, markup=False)
    if json_file is not None:
        write_json(
            json_file,
            {
                "verdict": "disagrees" if found.differences else "agrees",
                "calls": found.calls,
                "differences": [
                    {**msgspec.structs.asdict(difference), "line": difference.line}
                    for difference in found.differences
                ],
            },
        )
    return Exit.BAD if found.differences else Exit.GOOD


def _lines(story: Trace, found: Replay, who: str) -> list[str]:
    told = [f"engine: {config_line(story.config)}"]
    for number, step in enumerate(story.steps, 1):
        answer = result_line(step.call, step.result)
        told.append(f"{number:4}. {call_line(step.call)} -> {answer} (free {len(step.state.free_queue)})")
        if number == found.calls and found.differences:
            break
    if not found.differences:
        return [*told, f"{who} agrees with the trace: {found.calls} calls"]
    where = f"at call {found.calls}" if found.calls else "before the first call"
    return [*told, f"{who} disagrees with the trace {where}", *[f"  {d.line}" for d in found.differences]]
