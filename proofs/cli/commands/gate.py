"""`slotproof gate`: the model against an implementation."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import click
import hypothesis.configuration
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slotproof.proofs.cli import options
from slotproof.proofs.cli.command_line import command_line
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import heartbeat
from slotproof.proofs.gate import gate as gates
from slotproof.proofs.gate.ahead import Processes
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.exhaustive import exhaust
from slotproof.proofs.gate.gate import Report, Verdict
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated, Load
from slotproof.proofs.gate.on_ray import OnRay
from slotproof.proofs.gate.page import write_gate_page
from slotproof.proofs.gate.report import Commands, lines, write_gate_json, write_junit
from slotproof.proofs.gate.schedulers import SCHEDULERS
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.traces.trace import write_trace

DEFAULT_CALLS = 20_000
DEFAULT_STEPS = 5_000
EXITS = {
    Verdict.AGREES: Exit.GOOD,
    Verdict.CONSISTENT: Exit.GOOD,
    Verdict.DISAGREES: Exit.BAD,
    Verdict.KNOWN: Exit.BAD,
    Verdict.UNCOVERED: Exit.UNKNOWN,
    Verdict.NOTHING: Exit.UNKNOWN,
    Verdict.INTERRUPTED: Exit.INTERRUPTED,
}


@click.command()
@click.option(
    "--impl",
    metavar="torch|vllm|torch-scheduler|vllm-scheduler|MODULE:FACTORY",
    help="What to gate: ours on PyTorch, an installed vLLM, the whole scheduler of either with KV that is "
    "really written, or your own: FACTORY(config) returns an Allocator (see slotproof.impl.protocol), and "
    "MODULE may be a file of the current folder.",
)
@options.impl_scheduler
@click.option(
    "--calls", type=click.IntRange(1), help=f"Stop after so many calls.  [default: {DEFAULT_CALLS}]"
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    help=f"For a scheduler: stop after so many steps.  [default: {DEFAULT_STEPS}]",
)
@click.option(
    "--known", is_flag=True, help="For vllm-scheduler: what KNOWN.md tells of it is counted, but no failure."
)
@click.option("--seconds", type=options.Seconds(), help="Stop after so many seconds.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Same seed, same calls.")
@click.option(
    "--exhaustive",
    type=click.IntRange(1),
    metavar="DEPTH",
    help="Instead of random calls: every sequence of up to DEPTH calls on tiny engines.",
)
@click.option(
    "--compare",
    type=click.Choice([strictness.value for strictness in Strictness]),
    default=Strictness.EXACT.value,
    show_default=True,
    help="exact: every block by its number. counts: how many blocks, whichever. invariants: nothing of the "
    "model, each call by itself against the statements.",
)
@options.ignore
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Where the trace goes if there is a difference; `slotproof replay` runs it.  "
    "[default: slotproof-trace-IMPL-SEED.json]",
)
@click.option(
    "--coverage",
    is_flag=True,
    help="Say how often each row was reached; a terminal is told if all calls agree.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    help="Write one page: the verdict, the story of a difference to click through, coverage, what was drawn.",
)
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit report for CI.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Play so many turns of the campaign at once; the same seed finds the same, whatever it is.",
)
@click.option(
    "--ray",
    is_flag=False,
    flag_value="local",
    metavar="[ADDRESS]",
    help="Have the workers of a Ray cluster play the turns (auto finds one that runs); without an address, "
    "of one that is started here.",
)
@options.json_file
@options.device
@options.patience
def gate(
    impl: str | None,
    impl_scheduler: str | None,
    calls: int | None,
    steps: int | None,
    known: bool,
    seconds: float | None,
    seed: int,
    exhaustive: int | None,
    compare: str,
    ignore: tuple[str, ...],
    trace: Path | None,
    coverage: bool,
    html: Path | None,
    junit: Path | None,
    jobs: int,
    ray: str | None,
    json_file: Path | None,
    device: str,
    patience: float,
) -> int:
    """Gate an implementation: drive it and the model with the same calls, and compare after every one.

    The first difference fails it (exit 1), and the shortest sequence found that shows one is written as a
    trace. Without a difference it still fails (exit 3) if something worth having seen, such as a refusal
    by the watermark alone, was never reached: give it more calls.
    """
    if bool(impl) == bool(impl_scheduler):
        raise UserError("say what to gate: --impl, or --impl-scheduler for a scheduler of your own")
    is_scheduler, option = impl_scheduler is not None or impl in SCHEDULERS, "--impl"
    if impl_scheduler:
        impl, option = impl_scheduler, "--impl-scheduler"
    assert impl is not None
    if exhaustive and (calls or seconds):
        raise UserError("--exhaustive runs every sequence: leave out --calls and --seconds")
    trace = trace or _default_trace(impl, f"exhaustive-{exhaustive}" if exhaustive else str(seed))
    outputs = Outputs({"--trace": trace, "--html": html, "--junit": junit, "--json": json_file})
    strictness = Strictness(compare)
    if known and impl != "vllm-scheduler":
        raise UserError("--known: KNOWN.md tells of vllm-scheduler alone")
    if is_scheduler:
        if exhaustive or calls or seconds or ignore or strictness is not Strictness.EXACT:
            raise UserError(f"{option} {impl}: a scheduler is gated step by step: give --steps alone")
        if jobs > 1 or ray:
            spread = "--ray" if ray else "--jobs"
            raise UserError(f"{spread}: {option} {impl} makes its steps one after the other: leave it out")
        steps = steps or DEFAULT_STEPS
        report = _gate_scheduler(impl, steps, seed, device, known)
    else:
        if steps:
            raise UserError(
                f"--steps: only {', '.join(SCHEDULERS)} and --impl-scheduler take steps: give --calls"
            )
        if not (exhaustive or calls or seconds):
            calls = DEFAULT_CALLS
        load = loader(impl, device)
        with (
            closing(Isolated(load, patience)) as implementation,
            _quiet_hypothesis(),
            _progress(calls, seconds, f"gate: {impl} is imported") as progress,
        ):
            if exhaustive:
                if jobs > 1 or ray:
                    spread = "--ray" if ray else "--jobs"
                    raise UserError(f"{spread}: --exhaustive plays one sequence after another: leave it out")
                report = exhaust(
                    implementation,
                    exhaustive,
                    strictness=strictness,
                    ignore=frozenset(ignore),
                    progress=progress,
                )
            else:
                report = gates.campaign(
                    implementation,
                    calls=calls,
                    seconds=seconds,
                    seed=seed,
                    strictness=strictness,
                    ignore=frozenset(ignore),
                    progress=progress,
                    others=_others(ray, jobs, load, patience),
                )
    console, drawn = outputs.console(), None if exhaustive else seed
    compared = report.calls and report.failure is None and not report.interrupted
    coverage = coverage or bool(console.is_terminal and compared)
    how = {"--compare": compare, "--ignore": ignore, "--device": device, "--patience": patience}
    again, more = (
        command_line(
            "gate",
            {
                option: impl,
                "--exhaustive": exhaustive,
                "--calls": calls and times * calls,
                "--steps": steps and times * steps,
                "--known": known,
                "--seconds": seconds and times * seconds,
                "--seed": drawn,
                **how,
            },
        )
        for times in (1, 2)
    )
    replay = command_line("replay", {option: impl, **how}, trace)
    commands = Commands(again, more, replay)
    for line in lines(report, impl, drawn, commands, coverage=coverage):
        console.print(line, markup=False)
    if report.failure is not None:
        failing = report.failure.trace(report.asked)
        outputs.write("--trace", lambda path: write_trace(failing, path))
    said = list(lines(report, impl, drawn, commands, coverage=False))
    outputs.write("--html", lambda path: write_gate_page(path, report, impl, said, again))
    outputs.write("--junit", lambda path: write_junit(path, report, impl))
    outputs.write("--json", lambda path: write_gate_json(path, report, impl, drawn, trace))
    return Exit.INTERRUPTED if report.interrupted else EXITS[report.verdict]


def _others(ray: str | None, jobs: int, load: Load, patience: float) -> gates.MakePlayers | None:
    """Who plays turns ahead."""
    if ray is not None:
        return partial(OnRay, ray, jobs if jobs > 1 else None, load, patience)
    return partial(Processes, jobs, load, patience) if jobs > 1 else None


def _default_trace(impl: str, drawn: str) -> Path:
    """A name of its own for each implementation and seed: two gates in a folder never share one."""
    return Path(f"slotproof-trace-{re.sub(r'[^A-Za-z0-9_.]+', '-', impl)}-{drawn}.json")


def _gate_scheduler(impl: str, steps: int, seed: int, device: str, known: bool) -> Report:
    import torch

    from slotproof.proofs.gate.schedulers.gate import campaign
    from slotproof.proofs.gate.schedulers.own import load, own_campaign
    from slotproof.proofs.gate.schedulers.vllm import vllm_campaign

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU here")
    with _progress(None, None, "gate: it starts") as progress:
        if impl == "vllm-scheduler":
            return vllm_campaign(steps=steps, seed=seed, device=device, accept_known=known, progress=progress)
        if impl not in SCHEDULERS:
            return own_campaign(load(impl), steps=steps, seed=seed, device=device, progress=progress)
        return campaign(steps=steps, seed=seed, device=device, progress=progress)


@contextmanager
def _quiet_hypothesis() -> Iterator[None]:
    """Hypothesis keeps its notes in a folder that goes away, not in the user's."""
    with tempfile.TemporaryDirectory() as folder:
        hypothesis.configuration.set_hypothesis_home_dir(folder)
        yield


@contextmanager
def _progress(calls: int | None, seconds: float | None, start: str) -> Iterator[gates.Progress]:
    """A bar on a terminal, lines elsewhere, the first of them `start`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        done = start

        def note(report: Report) -> None:
            nonlocal done
            done = f"gate: {report.extent}"

        with heartbeat(lambda: done):
            yield note
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn from here alone: a thread that draws would hold locks while a process is forked.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        total = calls or (round(seconds) if seconds else None)
        task = bar.add_task("calls" if calls or not seconds else "seconds", total=total)
        begin = drawn = time.monotonic()

        def draw(report: Report) -> None:
            nonlocal drawn
            now = time.monotonic()
            if now - drawn > 0.1:
                drawn = now
                bar.update(task, completed=report.calls if calls or not seconds else round(now - begin))
                bar.refresh()

        yield draw
