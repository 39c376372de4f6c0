"""docs/proved.md and docs/contract.md say what the code says: names, sentences, needs, and rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import RULES
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import ACTIONS
from slotproof.model.system.allocate_slots import Ask
from slotproof.proofs.faults.catalogue import FAULTS
from slotproof.proofs.prove.prover import matrix

DOCS = Path(__file__).parents[2] / "docs"
NEEDS, FALLS = "- Needs of the caller: ", "- Falls without: "


def sections() -> dict[str, str]:
    """What docs/proved.md says of each statement, its lines joined."""
    text = (DOCS / "proved.md").read_text().split("## The statements")[1].split("\n## ")[0]
    parts = re.split(r"^### (.+)$", text, flags=re.M)[1:]
    return {name: unfolded(said) for name, said in zip(parts[::2], parts[1::2], strict=True)}


def unfolded(text: str) -> str:
    """Paragraphs and items on one line each."""
    return re.sub(r"(?<=\S)\n +|(?<=\S)\n(?=[^\s-])", " ", text.strip())


def item(said: str, lead: str) -> str:
    return next((line.removeprefix(lead) for line in said.splitlines() if line.startswith(lead)), "")


def rules_named(said: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", item(said, FALLS)))


def test_every_statement_is_told_once_in_the_order_of_the_code() -> None:
    assert list(sections()) == list(STATEMENTS)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_told_in_its_own_words(name: str) -> None:
    statement, said = STATEMENTS[name], sections()[name]
    sentence = said.splitlines()[0]
    assert sentence.casefold() == f"{statement.text}.".casefold()
    assert item(said, NEEDS) == (f"{statement.needs}." if statement.needs else "")
    allowed = {a.name for a in ALLOWANCES.values() if a.statement == name}
    assert set(re.findall(r"--allow (\w+)", said)) == allowed


def test_the_rules_that_a_statement_needs_are_rules_and_those_of_the_catalogue_are_there() -> None:
    named = {name: rules_named(said) for name, said in sections().items()}
    assert set().union(*named.values()) == set(RULES)
    for fault in FAULTS:
        assert set(fault.rules) <= named[fault.statement], fault.name


@pytest.mark.slow
def test_the_rules_that_a_statement_needs_are_those_of_the_matrix() -> None:
    fallen = dict(matrix())
    for name, said in sections().items():
        assert rules_named(said) == {rule for rule, stories in fallen.items() if name in stories}, name


def test_public_bugs_are_linked_from_their_rules() -> None:
    text = (DOCS / "proved.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\[vllm#.*) \|$", text, flags=re.M)
    link = r"\[vllm#(\d+)\]\(https://github.com/vllm-project/vllm/issues/\1\)"
    told = {rule: tuple(map(int, re.findall(link, links))) for rule, links in rows}
    assert told == {fault.name: fault.issues for fault in FAULTS if fault.issues}


def table(heading: str) -> list[tuple[str, str]]:
    """The first two columns of the table under a heading: action and precondition."""
    text = (DOCS / "contract.md").read_text()
    rows, action = [], ""
    for line in text[text.index(heading) :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        action = cells[0] or action
        rows.append((action, cells[1]))
        assert cells[2].strip("*") in ("yes", "with others", "no"), line
        assert cells[3], line
    return rows


ASKED: dict[str, dict[str, Any]] = {
    "add_request": {"request": 0, "num_tokens": 1},
    "allocate": {"request": 0, "ask": Ask(new=1)},
    "complete": {"request": 0, "processed": 1, "rejected": 0, "sampled": 0},
    "cache_blocks": {"request": 0, "num_tokens": 1},
    "remove_skipped": {"request": 0},
    "preempt": {"request": 0},
    "finish": {"request": 0},
}
"""Some arguments for each action that has preconditions."""


@pytest.mark.parametrize(
    ("heading", "of"),
    [("| action | precondition |", "contract"), ("| action | beyond the contract |", "care")],
)
def test_every_precondition_of_the_contract_is_told(heading: str, of: str) -> None:
    state = Running(num_blocks=4, block_size=1, max_model_len=4).state
    names = [
        (name, precondition)
        for name, action in ACTIONS.items()
        for precondition in getattr(action, of)(state, **ASKED.get(name, {}))
    ]
    assert table(heading) == names
