"""A story on terminals of several widths, and in a pipe."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.faults.catalogue import FAULTS, NAMED
from slotproof.proofs.stories.telling import tell
from slotproof.proofs.stories.terminal import print_story
from slotproof.proofs.stories.told import Told

NAMES = [fault.name for fault in FAULTS]
PIPE = """\
without keep_reserved, watermark falls
  rule off     keep_reserved (stage 2): the reserved blocks stay free
  engine       num_blocks=4 block_size=2 max_model_len=16

1. add_request request=0 tokens=1,1,2,2
  answer       waits
  caller       a prompt of 4 tokens
  request 0    status - → waiting, prompt 0 → 4

2. allocate request=0 new=4 reserved=2
  answer       new blocks b1 b2
  stage 2      need 2 <= free 3; 2 = ceil(4/2)
  stage 3      takes b1 b2
  stage 4      hashes b1 = A, b2 = B
  free queue   b1 b2 b3 → b3
  to zero      none → b1 b2
  block 1      kind free → held, ref_cnt 0 → 1, key - → A
  block 2      kind free → held, ref_cnt 0 → 1, key - → B
  request 0    status waiting → running, computed 0 → 4, in flight 0 → 4, table none → b1 b2

watermark falls
"""


def printed(told: Told, width: int | None = None, full: bool = False) -> str:
    """What a terminal of a width shows, styles apart; a pipe without one."""
    file = io.StringIO()
    print_story(Console(file=file, force_terminal=width is not None, width=width), told, full)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


def told(stories: dict[str, Story], name: str) -> Told:
    return tell(stories[name], NAMED[name].bent)


def test_a_pipe_gets_plain_lines(stories: dict[str, Story]) -> None:
    text = printed(told(stories, "keep_reserved"))
    assert text.startswith(PIPE)
    assert "  broken       watermark 0 + reserved 2 have to stay free, and 1 is left\n" in text
    assert "  B            1 1 · 2 2\n" in text


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("width", [30, 60, 120])
@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_says_the_same_at_any_width(
    name: str, width: int, full: bool, stories: dict[str, Story]
) -> None:
    story = told(stories, name)
    text = printed(story, width, full)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "".join(text.split()) == "".join(printed(story, None, full).split())


def test_full_shows_whole_states(stories: dict[str, Story]) -> None:
    story = told(stories, "count_idle_hits")
    text = printed(story, full=True)
    assert text.count("  free queue ") == len(story.steps) + 1
    assert "  block 1      cached, ref_cnt 0, key A (1 1)\n" in text
    assert "  block 1      held, ref_cnt 1, key A (1 1)\n" in text
    assert "  request 1    table b1 hit, b2 hit\n" in text
    assert "  request 1    tokens 1 1 · 2 2 · 3 3 · 4 4\n" in text
    assert "  to zero      b1 b2\n" in text
    assert "→" not in text


def test_what_is_written_is_shown(dropped: Story) -> None:
    text = printed(tell(dropped, Rules()))
    assert "  allowed      a request may leave after it was scheduled" in text
    assert "\n3. execute\n  answer       done\n  worker       writes tokens 0 to 2 of request 0\n" in text
    assert "  block 1      written 0/2 (this step writes the rest) → 2/2\n" in text
    assert (
        "  broken       request 1 adopts block 3 for entry 0; 0 of its 2 slots are written, and nobody"
        in text
    )
    full = printed(tell(dropped, Rules()), full=True)
    assert "  block 1      held, ref_cnt 1, key A (3 3), written 2/2\n" in full
    assert "  block 2      held, ref_cnt 1, written 1/2\n" in full
    assert "  block 3      cached, ref_cnt 0, key B (1 1), written 0/2 (nobody writes the rest)\n" in full
    assert "  block 4-5    free, ref_cnt 0\n" in full


def test_what_is_shown_is_not_markup(stories: dict[str, Story]) -> None:
    story = told(stories, "keep_reserved")
    reached = msgspec.structs.replace(story, broken=None, reached="[bold]x[/nothing]")
    assert "[bold]x[/nothing] is reached\n" in printed(reached)
