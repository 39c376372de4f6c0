"""README.md shows what the commands print."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.stories import find
from slotproof.proofs.output.text import call_line, config_line

README = Path(__file__).parents[1] / "README.md"


def test_the_story_of_a_rule_switched_off_is_the_one_that_is_told() -> None:
    lines = iter(README.read_text().splitlines())
    shown = re.compile(r" +\$ slotproof prove no-rollback --without (\w+) --kind full")
    command = next(found for line in lines if (found := shown.fullmatch(line)))
    engine = next(line for line in lines if "engine: " in line)
    calls = list(takewhile(lambda line: re.match(r" +\d+\. ", line), lines))

    story = find(Rules().without(command[1]), window=False)["no-rollback"]
    assert len(story.calls) == len(calls)
    assert engine.strip() == f"engine: {config_line(story.config)}"
    assert [line.strip() for line in calls] == [f"{n}. {call_line(c)}" for n, c in enumerate(story.calls, 1)]
