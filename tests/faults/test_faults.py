"""The catalogue of faults, and `slotproof faults`."""

from __future__ import annotations

import io
import json

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.rules import RULES, Rules
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.cli.commands.faults import show, show_all
from slotproof.proofs.cli.main import slotproof
from slotproof.proofs.faults import vllm_faults
from slotproof.proofs.faults.catalogue import FAULTS, LEFT_OUT, NAMED, Fault, fault_of
from slotproof.proofs.output.errors import Exit, UserError

FAULT_IDS = [fault.name for fault in FAULTS]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(slotproof, ["faults", *arguments], standalone_mode=False)


def test_every_rule_that_can_be_switched_off_is_a_fault() -> None:
    assert [fault.rules for fault in FAULTS] == [(rule,) for rule in RULES]
    assert len(FAULTS) >= 20


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
def test_a_story_shows_the_fault_and_needs_it(fault: Fault, stories: dict[str, Story]) -> None:
    story = stories[fault.name]
    assert story.violation.statement == fault.statement
    assert tell(story.config, story.calls, Rules(), fault.statement) is None


@pytest.mark.parametrize("fault", FAULTS, ids=FAULT_IDS)
def test_a_fault_is_described(fault: Fault) -> None:
    assert fault.statement in STATEMENTS
    assert fault.description.endswith(".")
    assert bool(fault.alias) == bool(fault.issues)
    assert any(
        fault.alias == f"vllm-{issue}" or fault.alias.startswith(f"vllm-{issue}-") for issue in fault.issues
    ) or (not fault.alias)
    assert fault_of(fault.bent) is fault


def test_the_public_bugs_of_one_group_are_there() -> None:
    told = {issue for fault in FAULTS for issue in fault.issues}
    assert {11565, 45856, 39734, 47728, 18668, 44701} <= told
    assert not told & set(LEFT_OUT)


def test_every_fault_can_be_patched_into_vllm() -> None:
    assert list(vllm_faults.PATCHES) == list(RULES)


def test_names_and_aliases_differ() -> None:
    assert len(NAMED) == len(FAULTS) + sum(bool(fault.alias) for fault in FAULTS)
    assert fault_of(Rules()) is None


def test_a_pipe_gets_a_line_a_fault() -> None:
    result = invoke()
    assert result.return_value == Exit.GOOD
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[: len(FAULTS)]] == FAULT_IDS
    assert lines[FAULT_IDS.index("count_step_uncapped")].split() == [
        "count_step_uncapped",
        "stage",
        "2",
        "no-rollback",
        "vllm-45856",
    ]
    assert any(line.startswith("vllm#42571: ") for line in lines)
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_terminal_gets_a_table(width: int) -> None:
    console = Console(force_terminal=True, width=width, record=True, file=io.StringIO())
    show_all(console)
    lines = console.export_text().splitlines()
    assert (
        lines[0].split() == ["fault", "stage", "statement", "that", "falls", "modelled", "on"] or width < 80
    )
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("name", ["count_idle_hits", "vllm-11565-count"])
def test_one_is_shown_by_name_or_alias(name: str) -> None:
    result = invoke(name)
    assert result.stdout.splitlines() == [
        "count_idle_hits (vllm-11565-count)",
        NAMED["count_idle_hits"].description,
        "missing (stage 2): a hit that sits in the free queue counts as a block (vllm#11565)",
        f"falls: no-rollback: {STATEMENTS['no-rollback'].text}",
        "see: https://github.com/vllm-project/vllm/issues/11565",
        "its story: slotproof explore --without count_idle_hits",
    ]


def test_what_to_know_about_vllm_is_shown() -> None:
    console = Console(record=True, file=io.StringIO())
    show(console, NAMED["count_hits_in_window_only"])
    assert "on vLLM: The count is internal" in console.export_text()


def test_json() -> None:
    listed = json.loads(invoke("--json", "-").stdout)
    assert [fault["name"] for fault in listed["faults"]] == FAULT_IDS
    assert {entry["issue"] for entry in listed["left_out"]} == set(LEFT_OUT)
    one = json.loads(invoke("vllm-47728", "--json", "-").stdout)
    assert one in listed["faults"]
    assert (one["name"], one["statement"], one["issues"]) == (
        "release_processed_only",
        "window-kept",
        [47728],
    )


def test_an_unknown_name_is_an_error_in_one_line() -> None:
    result = invoke("nonsense")
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == "nonsense: there is no such fault: `slotproof faults` lists them"
