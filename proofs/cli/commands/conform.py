"""`slotproof conform`: the code that runs, followed on every integer at once and compared with the model."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.cli import options
from slotproof.proofs.conform.conform import CONFORMS, DIFFERS, Finding, conform_case
from slotproof.proofs.conform.paths import Budget
from slotproof.proofs.conform.pool_conform import METHODS, PoolFinding, conform_method
from slotproof.proofs.conform.situation import Case
from slotproof.proofs.conform.targets.named import named_pool, named_target
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.files import STANDARD_OUTPUT, check_writable, write_json
from slotproof.proofs.output.text import call_line, config_line
from slotproof.proofs.traces.trace import write_trace

COLOURS = {CONFORMS: "green", DIFFERS: "red"}


@click.command()
@click.option(
    "--impl",
    required=True,
    metavar="torch|vllm|MODULE:NAME",
    help="What to follow: ours on PyTorch, an installed vLLM, or a target of your own "
    "(see slotproof.proofs.conform.targets.target).",
)
@click.option(
    "--kind", type=click.Choice((FULL, SLIDING_WINDOW)), help="One kind of attention. Without it, every kind."
)
@click.option("--case", "wanted", metavar="TEXT", help="Only the cases with this text in their names.")
@click.option(
    "--pool",
    "num_blocks",
    type=click.IntRange(1, 5),
    metavar="N",
    help="The methods of the block pool instead, on any contents of pools of up to N blocks.",
)
@click.option(
    "--paths", type=click.IntRange(1), default=Budget.paths, show_default=True, help="At most, for a case."
)
@click.option(
    "--seconds",
    type=options.Seconds(),
    default=Budget.seconds,
    show_default=True,
    help="Of computing time, at most, for a case.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    default=Path("slotproof-trace.json"),
    show_default=True,
    help="Where the story of the first difference goes; `slotproof replay` runs it.",
)
@options.json_file
def conform(
    impl: str,
    kind: str | None,
    wanted: str | None,
    num_blocks: int | None,
    paths: int,
    seconds: float,
    trace: Path,
    json_file: Path | None,
) -> int:
    """Follow an implementation's allocate_slots through every path, for every integer and every state with
    the proved invariants, and compare what it does, in order, with the model.

    Exits 0 if every case conforms, 1 if one differs, 3 if one could not be followed or decided.
    """
    for path in (trace, json_file):
        if path is not None:
            check_writable(path)
    console = Console(stderr=json_file == STANDARD_OUTPUT, highlight=False, soft_wrap=True)
    if num_blocks is not None:
        _refuse_options_of_cases()
        return _pool(console, impl, num_blocks, seconds, json_file)
    target = named_target(impl)
    cases = [c for c in target.cases if kind in (None, c.kind) and (wanted or "") in str(c)]
    if not cases:
        raise UserError(f"--case {wanted}: no case has this in its name: {'; '.join(map(str, target.cases))}")
    follow = partial(_follow, impl, budget=Budget(paths=paths, seconds=seconds))
    findings: list[Finding] = []
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(cases), os.cpu_count() or 1), maxtasksperchild=1) as pool:
        for finding in pool.imap(follow, cases, chunksize=1):
            findings.append(finding)
            _show(console, finding)
    console.print(f"assumed: {'; '.join(assumed(findings))}", markup=False)
    failures = [finding.failure for finding in findings if finding.failure is not None]
    if failures:
        write_trace(failures[0].trace(), trace)
        console.print(f"the story is in {trace}: slotproof replay {trace} --impl {impl}", markup=False)
    if json_file is not None:
        write_json(json_file, {"impl": impl, "function": target.name, "cases": [_json(f) for f in findings]})
    return _exit({finding.verdict for finding in findings})


def _refuse_options_of_cases() -> None:
    """A pool has no cases: what is said of them would be passed over in silence."""
    context = click.get_current_context()
    for option, parameter in (
        ("--kind", "kind"),
        ("--case", "wanted"),
        ("--paths", "paths"),
        ("--trace", "trace"),
    ):
        if context.get_parameter_source(parameter) is not click.core.ParameterSource.DEFAULT:
            raise UserError(f"{option} is about allocate_slots: leave it out, or leave --pool out")


def _pool(console: Console, impl: str, num_blocks: int, seconds: float, json_file: Path | None) -> int:
    target = named_pool(impl)
    follow = partial(_follow_method, impl, num_blocks=num_blocks, seconds=seconds)
    findings: list[PoolFinding] = []
    context = multiprocessing.get_context("fork")
    with context.Pool(os.cpu_count() or 1, maxtasksperchild=1) as pool:
        for finding in pool.imap(follow, METHODS, chunksize=1):
            findings.append(finding)
            colour = COLOURS.get(finding.verdict, "yellow")
            console.print(
                f"[{colour}]{finding.verdict}[/]  {finding.method}: {finding.pools} pools, "
                f"{finding.paths} paths, {finding.seconds:.1f} s"
            )
            if finding.what:
                console.print(f"    {finding.what}", markup=False)
    verdicts = {finding.verdict for finding in findings}
    if verdicts == {CONFORMS}:
        bounds = f", {target.bounds}" if target.bounds else ""
        console.print(f"proved for pools up to {num_blocks} blocks beside the null block{bounds}")
    if json_file is not None:
        methods = [asdict(finding) for finding in findings]
        write_json(
            json_file,
            {"impl": impl, "pool": target.name, "num_blocks": num_blocks, "bounds": target.bounds}
            | {"methods": methods},
        )
    return _exit(verdicts)


def _follow_method(impl: str, method: str, num_blocks: int, seconds: float) -> PoolFinding:
    return conform_method(named_pool(impl), method, num_blocks, seconds)


def _exit(verdicts: set[str]) -> Exit:
    if DIFFERS in verdicts:
        return Exit.BAD
    return Exit.GOOD if verdicts == {CONFORMS} else Exit.UNKNOWN


def _follow(impl: str, case: Case, budget: Budget) -> Finding:
    return conform_case(named_target(impl), case, budget=budget)


def assumed(findings: Sequence[Finding]) -> list[str]:
    """What is assumed in all of the cases, told once, and shortly."""
    names = dict.fromkeys(name for finding in findings for name in finding.assumed)
    told = []
    for part in ("contract", "invariant"):
        of_part = [name for name in names if name.startswith(f"{part}: ")]
        if of_part:
            told.append(
                f"{len(of_part)} parts of the caller's contract"
                if part == "contract"
                else f"{len(of_part)} invariants"
            )
    alone = [name for name in names if ": " not in name and name not in ("prefix caching", "holds blocks")]
    return [*told, *alone]


def _show(console: Console, finding: Finding) -> None:
    colour = COLOURS.get(finding.verdict, "yellow")
    console.print(
        f"[{colour}]{finding.verdict}[/]  {finding.case}: {finding.paths} paths, {finding.seconds:.1f} s"
    )
    if finding.what:
        console.print(f"    {finding.what}", markup=False)
    if finding.failure is not None:
        console.print(f"    engine: {config_line(finding.failure.config)}", markup=False)
        for n, e in enumerate(finding.failure.story, 1):
            console.print(f"    {n:2}. {call_line(e.call)}", markup=False)


def _json(finding: Finding) -> dict[str, object]:
    return {
        "case": str(finding.case),
        "verdict": finding.verdict,
        "paths": finding.paths,
        "seconds": round(finding.seconds, 2),
        "what": finding.what,
        "assumed": list(finding.assumed),
    }
