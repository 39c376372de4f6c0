"""`slotproof explore`: the shortest true story of what goes wrong, or of how a state is reached."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from slotproof.impl.protocol import Config
from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.campaign.kinds import HYBRID, KINDS
from slotproof.proofs.cli import options
from slotproof.proofs.cli.commands.prove import check_names
from slotproof.proofs.cli.outputs import Outputs
from slotproof.proofs.cli.working import working
from slotproof.proofs.explore.bounded import CORE, LOADS, RARE, Bounds
from slotproof.proofs.explore.explore import Answer, engines, explore_faults, explore_state
from slotproof.proofs.explore.expression import NUMBERS, OF_GROUP, OF_REQUEST, names_group, parse
from slotproof.proofs.explore.questions import QUESTIONS
from slotproof.proofs.faults.catalogue import FAULTS, NAMED
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.oracle import expect, trace_of
from slotproof.proofs.gate.replay import run_again
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.words import counted
from slotproof.proofs.stories.generated_test import write_test
from slotproof.proofs.stories.page import write_page
from slotproof.proofs.stories.telling import tell, tell_reached
from slotproof.proofs.stories.terminal import print_story
from slotproof.proofs.stories.told import Told
from slotproof.proofs.traces.trace import Trace, write_trace

ACTIONS = (*CORE, *LOADS, *RARE)
SETTINGS = {
    "blocks": "num_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "window": "sliding_window",
    "watermark": "watermark_blocks",
    "in_flight": "max_in_flight_tokens",
}
"""What --set can fix, and what a configuration calls it; `blocks` includes the null block."""
LONGER = " before time ran out (--time gives it longer)"


@click.command()
@click.option(
    "--without",
    multiple=True,
    metavar="RULE",
    help="What goes wrong without this rule, or by this fault? Repeatable.",
)
@click.option(
    "--breaks", multiple=True, metavar="STATEMENT", help="Look for the fall of this statement alone."
)
@click.option(
    "--allow",
    metavar="NAME",
    help="Drop what a statement needs: how does it fall? prove --list has the names.",
)
@click.option(
    "--reach",
    metavar="EXPRESSION",
    help="Can a state be reached of which this holds? Requests are r0, r1, …; --list has the words.",
)
@click.option("--question", metavar="NAME", help="Ask one of the questions that --questions lists.")
@click.option("--questions", is_flag=True, help="List the questions.")
@click.option("--list", "names", is_flag=True, help="List the names that --reach knows.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=NUMBER", help="Fix a setting of the engine. Repeatable."
)
@click.option(
    "--blocks",
    type=click.IntRange(2, 12),
    help="Usable blocks: one less than --set blocks, which counts the null block.",
)
@click.option("--block-size", type=click.IntRange(1, 4), help="Short for --set block_size.")
@click.option(
    "--requests", type=click.IntRange(1, 4), default=2, show_default=True, help="Requests, at most."
)
@click.option("--depth", type=click.IntRange(1, 12), default=6, show_default=True, help="Calls, at most.")
@click.option("--kind", type=click.Choice(KINDS), help="One kind of attention. Without it, every kind.")
@click.option(
    "--time",
    "seconds",
    type=options.Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds to look, at most.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The solver's seed.")
@click.option(
    "--impl", metavar="torch|vllm|MODULE:FACTORY", help="Replay the calls on it, as they should go."
)
@options.patience
@click.option("--full", is_flag=True, help="Show whole states, not only what changed.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write the story as a page."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the calls as a trace for `slotproof replay`.",
)
@click.option(
    "--test",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the story as a test against real vLLM.",
)
@options.json_file
def explore(
    without: tuple[str, ...],
    breaks: tuple[str, ...],
    allow: str | None,
    reach: str | None,
    question: str | None,
    questions: bool,
    names: bool,
    settings: tuple[str, ...],
    blocks: int | None,
    block_size: int | None,
    requests: int,
    depth: int,
    kind: str | None,
    seconds: float,
    seed: int,
    impl: str | None,
    patience: float,
    full: bool,
    page: Path | None,
    trace: Path | None,
    test: Path | None,
    json_file: Path | None,
) -> int:
    """Find the shortest story: what breaks without a rule, or how a state is reached.

    Z3 looks call by call from an idle pool, over small engines; what it finds is told by the model before it
    is shown. When nothing is found, the answer says how far it looked.

    Exits 0 if a story is found, 1 if there is none up to the bounds, 3 if time ran out.
    """  # fmt: skip
    outputs = Outputs({"--html": page, "--trace": trace, "--test": test, "--json": json_file})
    console = outputs.console()
    if questions or names or reach == "--list":
        _list_questions(console) if questions else _list_names(console)
        return Exit.GOOD
    without = tuple(rule for name in without for rule in (NAMED[name].rules if name in NAMED else (name,)))
    check_names("rule", without, RULES)
    check_names("statement", breaks, STATEMENTS)
    if kind is None and any(RULES[rule]["kind"] == HYBRID for rule in without):
        kind = HYBRID
    check_names("allowance", () if allow is None else (allow,), ALLOWANCES)
    allowed = None if allow is None else ALLOWANCES[allow]
    if allowed is not None and (without or breaks not in ((), (allowed.statement,))):
        raise UserError(f"--allow {allow}: is about --breaks {allowed.statement} alone, with all rules on")
    fixed = _settings(settings)
    if question is not None:
        check_names("question", (question,), QUESTIONS)
        asked = QUESTIONS[question]
        reach, without = asked.reach or None, (asked.without,) if asked.without else without
        fixed = asked.set | fixed
    if bool(reach) == bool(without or breaks or allowed):
        raise UserError(
            "explore: ask --without or --breaks, or --allow, or --reach, or --question (see --questions)"
        )
    if test is not None and (reach or not without):
        raise UserError("--test: tells how a statement falls by a fault: use it with --without")
    if blocks is not None:
        fixed["num_blocks"] = blocks + 1
    if block_size is not None:
        fixed["block_size"] = block_size
    if kind is None and reach and names_group(reach):
        kind = HYBRID
    configs = engines(kind, **fixed)
    bounds = Bounds(requests, depth, ACTIONS, seconds, seed)
    rules = Rules().without(*without)
    with working(console, "explore: looking"):
        if reach:
            answer = explore_state(rules, parse(reach, requests, _groups(configs)), configs, bounds)
        else:
            wanted = (allowed.statement,) if allowed is not None else _statements(without, breaks)
            answer = explore_faults(rules, wanted, configs, bounds, allowed)
    replayed = Exit.GOOD
    if answer.config is not None:
        told = _told(answer, rules, reach)
        print_story(console, told, full)
        _write(outputs, answer, told, rules)
        if impl is not None:
            replayed = _replay(console, impl, patience, answer)
    _conclude(console, answer)
    outputs.write_json(_json(answer, without))
    if answer.interrupted:
        return Exit.INTERRUPTED
    if replayed is not Exit.GOOD:
        return replayed
    if answer.config is not None:
        return Exit.GOOD
    return Exit.BAD if answer.complete else Exit.UNKNOWN


def _groups(configs: Iterable[Config]) -> int:
    """The groups that every engine has."""
    return min(len(config.all_groups) for config in configs)


def _settings(settings: Iterable[str]) -> dict[str, int]:
    fixed = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in SETTINGS or not value.isdigit():
            raise UserError(f"--set {setting}: write NAME=NUMBER; the names are {', '.join(SETTINGS)}")
        fixed[SETTINGS[name]] = int(value)
    return fixed


def _statements(without: tuple[str, ...], breaks: tuple[str, ...]) -> tuple[str, ...]:
    """The statements to look at: those named, those that the catalogue says fall, or all."""
    known = tuple(fault.statement for fault in FAULTS if set(fault.rules) <= set(without))
    return breaks or known or tuple(STATEMENTS)


def _list_questions(console: Console) -> None:
    for name, question in QUESTIONS.items():
        console.print(f"{name}: {question.text}", markup=False)


def _list_names(console: Console) -> None:
    console.print("numbers", style="bold")
    for name, (meaning, _) in NUMBERS.items():
        console.print(f"  {name}: {meaning}", markup=False)
    console.print("of a request r0, r1, …, by its number in the story", style="bold")
    for name, (meaning, _) in OF_REQUEST.items():
        console.print(f"  {name}(r0): {meaning}", markup=False)
    console.print("of a request in all its attention groups, or in g0, g1, … of them", style="bold")
    for name, (meaning, _) in OF_GROUP.items():
        console.print(f"  {name}(r0), {name}(r0, g1): {meaning}", markup=False)
    console.print("with == != < <= > >= + - * ( ) and or not, and numbers such as 3 and 0.8", markup=False)


def _told(answer: Answer, rules: Rules, reach: str | None) -> Told:
    """The story as it is told, of a fall or of a state."""
    if answer.story is not None:
        return tell(answer.story, rules)
    assert answer.config is not None
    return tell_reached(answer.config, answer.calls, reach or "", rules)


def _conclude(console: Console, answer: Answer) -> None:
    if answer.config is None:
        cut = "" if answer.complete else " before it was interrupted" if answer.interrupted else LONGER
        console.print(f"nothing found{cut}: {answer.searched}", markup=False)
        if answer.forbidden:
            calls, names = counted(answer.beyond, "call"), " or ".join(answer.forbidden)
            why = f"the contract forbids it: {calls} lead there that break {names}"
            console.print(f"{why} (docs/contract.md)", markup=False)
    else:
        shortest = "none is shorter" if answer.complete else f"shorter ones were not ruled out{LONGER}"
        found = counted(len(answer.calls), "call")
        console.print(f"found: {found}; {shortest}: {answer.searched}", markup=False)


def _write(outputs: Outputs, answer: Answer, told: Told, rules: Rules) -> None:
    typed, story = options.typed(click.get_current_context()), answer.story
    outputs.write("--html", lambda path: write_page(path, told, typed))
    outputs.write("--trace", lambda path: write_trace(correct_trace(answer), path))
    if story is not None:
        outputs.write("--test", lambda path: write_test(path, story, rules))


def _replay(console: Console, impl: str, patience: float, answer: Answer) -> Exit:
    """Whether an implementation does as the model with all rules on, told and as an exit code."""
    with closing(Isolated(loader(impl, "cpu"), patience)) as implementation:
        found = run_again(implementation, correct_trace(answer), Strictness.EXACT)
    for difference in found.differences:
        console.print(f"{impl} disagrees at call {found.calls}: {difference.line}", markup=False)
    if found.differences:
        return Exit.BAD
    calls = counted(found.calls, "call")
    if found.interrupted:
        console.print(f"{impl}: interrupted after {calls}, without a difference so far", markup=False)
        return Exit.INTERRUPTED
    if not found.calls:
        console.print(f"{impl}: nothing was compared: the first call is outside the contract", markup=False)
        return Exit.UNKNOWN
    console.print(f"{impl} does as the model with all rules on: {calls}", markup=False)
    return Exit.GOOD


def correct_trace(answer: Answer) -> Trace:
    """The same calls as they should go, with all rules on, as far as they are within the contract."""
    assert answer.config is not None
    running, story = Running(**model_config(answer.config)), []
    for call in answer.calls:
        try:
            story.append(expect(running, call))
        except ContractError:
            break
    falls = f": {answer.story.violation.statement} falls in the last call" if answer.story else ""
    return trace_of(answer.config, story, f"the calls of a story, as they should go{falls}")


def _json(answer: Answer, without: tuple[str, ...]) -> dict[str, Any]:
    return {
        "partial": answer.interrupted,
        "verdict": "found" if answer.config is not None else "nothing" if answer.complete else "unknown",
        "without": list(without),
        "searched": answer.searched,
        "shortest": answer.complete,
        "config": msgspec.to_builtins(answer.config),
        "calls": [msgspec.to_builtins(call) for call in answer.calls],
        "forbidden": list(answer.forbidden),
        "story": msgspec.to_builtins(answer.story),
    }
