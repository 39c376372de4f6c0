"""`slotproof prove`: the statements, for every size."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import RULES, Rules
from slotproof.proofs.campaign.kinds import KINDS
from slotproof.proofs.campaign.monitor import INVARIANT
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.cli import options, second_opinions
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import working
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.files import write_json
from slotproof.proofs.output.text import call_line, config_line
from slotproof.proofs.output.words import counted
from slotproof.proofs.prove import kept as keeping
from slotproof.proofs.prove import receipt as receipts
from slotproof.proofs.prove.cross_check import SOLVERS
from slotproof.proofs.prove.prover import PROVED, REFUTED, UNKNOWN, Report, matrix
from slotproof.proofs.prove.prover import prove as prove_statements
from slotproof.proofs.prove.workers import at_once

COLOURS = {PROVED: "green", REFUTED: "red"}


@click.command()
@click.argument("statements", nargs=-1, metavar="[STATEMENT]...")
@click.option("--list", "listed", is_flag=True, help="List the statements and the rules, and prove nothing.")
@click.option(
    "--matrix", "with_matrix", is_flag=True, help="Then switch every rule off in turn: which statements fall?"
)
@click.option(
    "--without", multiple=True, metavar="RULE", help="Switch a rule off. May be given more than once."
)
@click.option("--kind", type=click.Choice(KINDS), help="One kind of attention. Without it, every kind.")
@click.option("--fresh", is_flag=True, help="Prove everything anew: nothing kept from an earlier run counts.")
@click.option(
    "--cross-check",
    type=click.Choice(SOLVERS),
    help="Then ask a second solver for each obligation (pip install 'slotproof[cvc5]').",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="Then prove each obligation N times more, with random seeds and shuffled assumptions.",
)
@click.option(
    "--receipt",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what was proved, with digests, for `slotproof check-receipt`; - is standard output.",
)
@click.option(
    "--smt2",
    "smt2_folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each obligation as a problem in SMT-LIB 2: any solver has to answer unsat.",
)
@options.jobs
@options.json_file
def prove(
    statements: tuple[str, ...],
    listed: bool,
    with_matrix: bool,
    without: tuple[str, ...],
    kind: str | None,
    fresh: bool,
    cross_check: str | None,
    seeds: int | None,
    receipt: Path | None,
    smt2_folder: Path | None,
    jobs: int | None,
    json_file: Path | None,
) -> int:
    """Prove the STATEMENTs, all of them unless some are named, for every pool size, block size, number of
    requests, token count, watermark, lookahead and reserve. What a named one leans on is proved with it.

    With a rule off, say which statements fall, by which calls.

    What was proved is kept in the user's cache folder, by digests of the problem, the source and the
    versions of slotproof, Python and Z3: what has not changed is not proved again (--fresh).

    Exits 0 if every statement is proved, 1 if one is refuted, 3 if one is not proved, or not by the second
    solver, or not with every seed.
    """
    click.get_current_context().with_resource(at_once(jobs))
    check_names("statement", statements, STATEMENTS)
    check_names("rule", without, RULES)
    outputs = Outputs({"--json": json_file, "--receipt": receipt})
    if cross_check:
        second_opinions.check_installed()
    if smt2_folder is not None:
        second_opinions.check_folder(smt2_folder)
    console = outputs.console()
    if listed:
        if json_file is None:
            _list(console)
        outputs.write_json(_listing())
        return Exit.GOOD

    start, told = time.perf_counter(), dict[str, Story]()

    def fell(statement: str, story: Story) -> None:
        told[statement] = story
        _tell(console, statement, story, without)

    with working(console, "proving") as advance:
        rules = Rules().without(*without)
        kinds = (kind,) if kind else KINDS
        kept = keeping.Kept() if fresh else keeping.load()
        report = prove_statements(statements, kinds, rules, advance, kept, fell)
        kept.save()
    _show(console, report, without, time.perf_counter() - start, told)
    outputs.write("--receipt", lambda path: write_json(path, receipts.of_report(report, kinds, without)))
    agreed = True
    if not report.interrupted:
        if smt2_folder is not None:
            second_opinions.write_problems(console, smt2_folder, kinds, rules)
        if cross_check:
            agreed = second_opinions.cross_check(console, kinds, rules) and agreed
        if seeds:
            agreed = second_opinions.try_seeds(console, kinds, rules, seeds) and agreed
    fallen: dict[str, dict[str, Story]] = {}
    interrupted = report.interrupted
    if with_matrix and not interrupted:
        interrupted = _show_matrix(console, fallen)
    if interrupted:
        console.print("interrupted: this is what was known by then")
    outputs.write_json(_json(report, without, fallen if with_matrix else None, interrupted))
    if interrupted:
        return Exit.INTERRUPTED
    if report.verdict == REFUTED:
        return Exit.BAD
    unbroken = [rule for rule, stories in fallen.items() if not stories]
    return Exit.GOOD if report.verdict == PROVED and not unbroken and agreed else Exit.UNKNOWN


def check_names(what: str, names: tuple[str, ...], known: dict[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{name}: there is no such {what}: `slotproof prove --list` lists them")


def _listing() -> dict[str, Any]:
    return {
        "statements": [msgspec.to_builtins(statement) for statement in STATEMENTS.values()],
        "rules": [{"name": name, **rule} for name, rule in RULES.items()],
    }


def _list(console: Console) -> None:
    console.print("statements", style="bold")
    for statement in STATEMENTS.values():
        console.print(f"  {statement.name}: {statement.text}", markup=False)
        if statement.needs:
            console.print(f"      needs of the caller: {statement.needs}", markup=False)
        for allowance in ALLOWANCES.values():
            if allowance.statement == statement.name:
                told = f"      false if ({allowance.name}): {allowance.text}"
                console.print(told, markup=False)
    console.print("rules, for --without", style="bold")
    for name, rule in RULES.items():
        console.print(f"  {name} ({rule['stage']}): {rule['text']}", markup=False)


def _show(
    console: Console, report: Report, without: tuple[str, ...], seconds: float, told: dict[str, Story]
) -> None:
    """What came of it; of the stories, those that were not told when they were found, or are shorter."""
    # Several are proved at once, and terms are built for many: each row is its share of what was waited.
    share = seconds / (sum(f.seconds for f in report.obligations) or 1)
    names = _shown(report)
    lemmas = [] if report.wanted else sorted({f.statement for f in report.obligations} - set(STATEMENTS))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("statement", "verdict", "obligations", "seconds"):
        table.add_column(column, justify="right" if column in ("obligations", "seconds") else "left")
    for name in [*names, *lemmas]:
        of = [f for f in report.obligations if f.statement == name]
        verdict = report.of_statement(name)
        colour = COLOURS.get(verdict, "yellow")
        spent = share * sum(f.seconds for f in of)
        table.add_row(name, f"[{colour}]{verdict}[/]", str(len(of)), f"{spent:.2f}")
    leaned_on = [f for f in report.obligations if f.statement not in (*names, *lemmas)]
    if leaned_on:
        proved = sum(f.verdict == PROVED for f in leaned_on)
        verdict = PROVED if proved == len(leaned_on) and not report.interrupted else UNKNOWN
        spent = share * sum(f.seconds for f in leaned_on)
        colour = COLOURS.get(verdict, "yellow")
        table.add_row("what they lean on", f"[{colour}]{verdict}[/]", str(len(leaned_on)), f"{spent:.2f}")
    console.print(table)
    for name in names:
        if STATEMENTS[name].needs:
            console.print(f"{name} needs of the caller: {STATEMENTS[name].needs}", markup=False)
    for name, kind in sorted({(f.name, f.kind) for f in report.obligations if not f.answered}):
        console.print(f"{UNKNOWN}: {name} ({kind}): nothing is known of any statement", markup=False)
    for finding in report.obligations:
        if finding.answered and finding.verdict not in (PROVED, REFUTED):
            where = f"{finding.statement} ({finding.kind}, {finding.stage})"
            console.print(f"{finding.verdict}: {where}: {finding.name}", markup=False)
    for violation in report.violations:
        where = f"{violation.claim}, {violation.detail}"
        console.print(f"refuted: {violation.statement}: a campaign saw it broken: {where}", markup=False)
    for name, story in report.stories.items():
        if told.get(name) != story:
            _tell(console, name, story, without)
    if without:
        note = "by induction over all invariants together: a statement holds for sure where all are proved"
        console.print(f"note: {note}", markup=False)
    off = f" without {', '.join(without)}" if without else ""
    proved = sum(f.verdict == PROVED for f in report.obligations)
    answered = sum(f.answered for f in report.obligations)
    total = f"{proved} of {counted(answered, 'obligation')} proved{off}"
    if lost := len({(f.name, f.kind) for f in report.obligations if not f.answered}):
        total += f", and {counted(lost, 'group')} of them not answered"
    if report.interrupted:
        left = counted(report.open, "group")
        total = f"interrupted with {counted(proved, 'obligation')} proved{off} and {left} of them left"
    kept = sum(f.kept for f in report.obligations)
    if kept:
        total += f", {kept} of them kept from an earlier run"
    if leaned_on:
        total += f" ({len(leaned_on)} of them what the named statements lean on)"
    console.print(f"{report.verdict}: {total}, in {seconds:.1f} s", markup=False)


def _shown(report: Report) -> list[str]:
    """The statements to speak of: those that were asked for, with an obligation of this kind of attention."""
    found = {f.statement for f in report.obligations}
    return [s for s in STATEMENTS if s in found and (not report.wanted or s in report.wanted)]


def _tell(console: Console, statement: str, story: Story, without: tuple[str, ...]) -> None:
    """A statement's fall, with the stage of the check that failed; an invariant has that of the rule."""
    v = story.violation
    stage = ", ".join(RULES[rule]["stage"] for rule in without) if v.stage == INVARIANT else v.stage
    detail = f" ({v.detail})" if v.detail else ""
    console.print(f"refuted: {statement}, {stage}: {v.claim}{detail}", markup=False)
    console.print(f"  engine: {config_line(story.config)}", markup=False)
    for number, call in enumerate(story.calls, 1):
        console.print(f"  {number:2}. {call_line(call)}", markup=False)


def _show_matrix(console: Console, fallen: dict[str, dict[str, Story]]) -> bool:
    """Rule by rule what falls, kept in `fallen`; whether it was interrupted."""
    console.print()
    try:
        with working(console, "switching rules off") as advance, closing(matrix(advance)) as rules:
            for rule, stories in rules:
                fallen[rule] = stories
                falls = ", ".join(f"{s} ({len(story.calls)})" for s, story in stories.items())
                told = f"{rule} ({RULES[rule]['stage']}): {falls or 'NOTHING FALLS'}"
                console.print(told, markup=False)
    except KeyboardInterrupt:
        return True
    unbroken = sum(not stories for stories in fallen.values())
    done = f"{counted(unbroken, 'rule')} could be dropped unnoticed" if unbroken else "every rule is needed"
    console.print(f"{done}; in brackets, the calls of the story by which the statement falls", markup=False)
    return False


def _json(
    report: Report, without: tuple[str, ...], fallen: dict[str, dict[str, Story]] | None, interrupted: bool
) -> dict[str, Any]:
    in_order = sorted(
        report.obligations, key=lambda f: (f.kind, f.statement, f.name)
    )  # they came as they ended
    told: dict[str, Any] = {
        "verdict": report.verdict,
        "partial": interrupted,
        "without": list(without),
        "statements": [
            {"name": name, "verdict": report.of_statement(name), "needs": STATEMENTS[name].needs}
            for name in _shown(report)
        ],
        "obligations": [msgspec.to_builtins(finding) for finding in in_order],
        "stories": {name: msgspec.to_builtins(story) for name, story in report.stories.items()},
    }
    if fallen is not None:
        told["rules"] = {rule: list(stories) for rule, stories in fallen.items()}
    return told
