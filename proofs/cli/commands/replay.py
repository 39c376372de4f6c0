"""`slotproof replay`: a trace, told again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click
import msgspec

from slotproof.proofs.cli import options
from slotproof.proofs.cli.command_line import command_line
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.gate import Verdict
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.replay import Replay, retell, run_again
from slotproof.proofs.gate.schedulers import SCHEDULERS
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.text import call_line, config_line, result_line
from slotproof.proofs.output.words import counted
from slotproof.proofs.stories.page import write_page
from slotproof.proofs.stories.telling import tell_reached
from slotproof.proofs.traces.script import Script
from slotproof.proofs.traces.trace import Step, read_trace


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--impl",
    metavar="torch|vllm|torch-scheduler|vllm-scheduler|MODULE:FACTORY",
    help="Drive an implementation too. Without it, the model alone tells the story. The trace of a "
    "scheduler's gate drives the scheduler, or its manager alone.",
)
@options.impl_scheduler
@click.option(
    "--compare",
    type=click.Choice([strictness.value for strictness in Strictness]),
    default=Strictness.EXACT.value,
    show_default=True,
    help="How strictly to compare the implementation, as in `slotproof gate`.",
)
@options.ignore
@click.option(
    "--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write the story as a page."
)
@options.json_file
@options.device
@options.patience
def replay(
    trace: Path,
    impl: str | None,
    impl_scheduler: str | None,
    compare: str,
    ignore: tuple[str, ...],
    page: Path | None,
    json_file: Path | None,
    device: str,
    patience: float,
) -> int:
    """Replay TRACE, a story that `slotproof` wrote: print it call by call, and check it.

    The model must tell it as it is written, and the implementation, if one is given, must agree with the
    model (exit 1 if not, 3 if the trace has no call to compare).
    """
    outputs = Outputs({"--html": page, "--json": json_file}, read={"TRACE": trace})
    console = outputs.console()
    story = read_trace(trace)
    if impl and impl_scheduler:
        raise UserError("--impl and --impl-scheduler: give one of them")
    if impl_scheduler or impl in SCHEDULERS:
        return _replay_scheduler(story.script, trace, str(impl_scheduler or impl), device, outputs)
    found, told = retell(story, trace), 0
    console.print(f"engine: {config_line(story.config)}", markup=False)

    def tell(calls: int) -> None:
        """The story up to that call, of it what is not told yet."""
        nonlocal told
        for number, step in enumerate(story.steps[told:calls], told + 1):
            console.print(_line(number, step), markup=False)
        told = max(told, calls)

    if impl is not None and not found.differences:
        with closing(Isolated(loader(impl, device), patience)) as implementation:
            found = run_again(implementation, story, Strictness(compare), tell, frozenset(ignore))
    tell(found.calls)
    verdict, code = _verdict(found)
    for line in _conclusion(found, verdict, "the model" if impl is None or found.by_model else impl):
        console.print(line, markup=False)
    if story.script is not None:
        named = story.script.scheduler
        option = "--impl" if named in SCHEDULERS else "--impl-scheduler"
        scheduler = command_line("replay", {option: named}, trace)
        console.print(f"  these are calls that a scheduler made; it is driven by: {scheduler}", markup=False)
    if page is not None and not story.followed:  # of what the model does not tell there is no page
        calls, typed = tuple(step.call for step in story.steps), options.typed(click.get_current_context())
        as_told = tell_reached(story.config, calls, story.description)
        outputs.write("--html", lambda path: write_page(path, as_told, typed))
    _write(outputs, found, verdict)
    return code


def _replay_scheduler(
    script: Script | None, trace: Path, scheduler: str, device: str, outputs: Outputs
) -> Exit:
    """The scheduler does it again."""
    if script is None:
        raise UserError(f"{trace}: no scheduler made it: drive a manager, --impl torch or --impl vllm")
    from slotproof.proofs.gate.schedulers.replay import play_again
    from slotproof.proofs.gate.schedulers.telling import lines

    console, again = outputs.console(), play_again(script, scheduler, device)
    console.print(f"engine: {config_line(script.setup.config)}", markup=False)
    console.print(f"scheduler: {config_line(script.setup.scheduler)}", markup=False)
    for line in lines(again.episode, again.failure):
        console.print(line, markup=False)
    calls, failure = len(again.episode.told), again.failure
    found = Replay(calls, failure.differences if failure else [])
    verdict, code = _verdict(found)
    if failure is None:
        conclusion = _conclusion(found, verdict, scheduler)
    else:
        conclusion = [f"{scheduler} disagrees {failure.where}", *[f"  {d.line}" for d in found.differences]]
        conclusion += [f"  {failure.history}"] * bool(failure.history)
    for line in conclusion:
        console.print(line, markup=False)
    _write(outputs, found, verdict)
    return code


def _write(outputs: Outputs, found: Replay, verdict: Verdict) -> None:
    outputs.write_json(
        {
            "verdict": verdict.value,
            "partial": found.interrupted,
            "calls": found.calls,
            "differences": [
                {**msgspec.structs.asdict(difference), "line": difference.line}
                for difference in found.differences
            ],
        }
    )


def _verdict(found: Replay) -> tuple[Verdict, Exit]:
    if found.differences:
        return Verdict.DISAGREES, Exit.BAD
    if found.interrupted:
        return Verdict.INTERRUPTED, Exit.INTERRUPTED
    return (Verdict.AGREES, Exit.GOOD) if found.calls else (Verdict.NOTHING, Exit.UNKNOWN)


def _line(number: int, step: Step) -> str:
    answer = result_line(step.call, step.result)
    return f"{number:4}. {call_line(step.call)} -> {answer} (free {len(step.state.free_queue)})"


def _conclusion(found: Replay, verdict: Verdict, who: str) -> list[str]:
    calls = counted(found.calls, "call")
    if verdict is Verdict.AGREES:
        return [f"{who} agrees with the trace: {calls}"]
    if verdict is Verdict.NOTHING:
        return [f"{who}: nothing was compared: the trace has no calls"]
    if verdict is Verdict.INTERRUPTED:
        return [f"{who}: interrupted after {calls}, without a difference so far"]
    where = f"at call {found.calls}" if found.calls else "before the first call"
    return [f"{who} disagrees with the trace {where}", *[f"  {d.line}" for d in found.differences]]
