"""A story as records: what decided each call, what it changed, and the values that broke a statement."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Config, Execute
from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN
from slotproof.model.claims.statements import CHECKS
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import Rules
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import call_fields, model_config
from slotproof.proofs.campaign.monitor import Violation
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.faults.catalogue import FAULTS, NAMED
from slotproof.proofs.gate.compare import expected_snapshot
from slotproof.proofs.output.text import call_line
from slotproof.proofs.stories.telling import tell, tell_reached
from slotproof.proofs.stories.told import Change, Entry, Span, Told
from slotproof.proofs.stories.why.broken import SENTENCES

Stories = dict[str, Story]
NAMES = [fault.name for fault in FAULTS]


def told(stories: Stories, name: str) -> Told:
    return tell(stories[name], NAMED[name].bent)


@pytest.mark.parametrize("name", NAMES)
def test_every_state_is_the_models(name: str, stories: Stories) -> None:
    story = stories[name]
    running = Running(**model_config(story.config), rules=NAMED[name].bent)
    steps = told(stories, name).steps
    assert [step.call for step in steps] == [call_line(call) for call in story.calls]
    for step, call in zip(steps, story.calls, strict=True):
        if step.result == "fails half way":
            assert step is steps[-1]
            break
        action, fields = call_fields(call)
        running.step(action, **fields)
        state, shown = expected_snapshot(running), step.state
        assert shown.free_queue == state.free_queue
        assert tuple(block.ref_cnt for block in shown.blocks)[1:] == state.ref_cnt[1:]
        assert shown.to_zero == state.to_zero
        assert shown.usage == state.usage
        tables = {
            r.request * len(r.tables) + g: tuple(entry.block for entry in table.entries)
            for r in shown.requests
            for g, table in enumerate(r.tables)
            if table.entries
        }
        assert tables == state.tables
        for block, key in zip(shown.blocks[1:], state.hashes[1:], strict=True):
            assert (block.key is None) == (key is None)
            assert block.kind == ("held" if block.position is None else "cached" if key else "free")


@pytest.mark.parametrize("name", NAMES)
def test_what_broke_is_said_with_its_values(name: str, stories: Stories) -> None:
    broken, violation = told(stories, name).broken, stories[name].violation
    assert broken is not None
    assert (broken.statement, broken.claim) == (violation.statement, violation.claim)
    assert ": not so" not in broken.reason, "it has no sentence of its own"
    assert any(character.isdigit() for character in broken.reason)


@pytest.mark.parametrize("name", NAMES)
def test_the_changes_lead_from_one_state_to_the_next(name: str, stories: Stories) -> None:
    """Made on the state before, the changes are the state after: nothing is left out."""
    story = told(stories, name)
    for step in story.steps:
        before, after = story.before(step), step.state
        changed = {change.subject: change for change in step.changes}
        for old, new in zip(before.blocks, after.blocks, strict=True):
            same = (old.kind, old.ref_cnt, old.key) == (new.kind, new.ref_cnt, new.key)
            same = same and (old.written, old.filled_by) == (new.written, new.filled_by)
            assert same != (f"block {new.block}" in changed)
        queue = [c for c in step.changes if (c.subject, c.field) == ("pool", "free queue")]
        assert bool(queue) == (before.free_queue != after.free_queue)
        assert all(change.before != change.after for change in step.changes)


@pytest.mark.parametrize("name", NAMES)
def test_slots_are_told_once_and_in_order(name: str, stories: Stories) -> None:
    story = told(stories, name)
    for step in story.steps:
        for request, table in [(r, table) for r in step.state.requests for table in r.tables]:
            end = 0
            for span in table.spans:
                assert span.start == end < span.end
                end = span.end
            slots = len(table.entries) * table.block_size
            live = request.status != "finished"
            assert end == (max(slots, len(request.tokens), request.computed) if live else 0)
            drafts = sum(span.end - span.start for span in table.spans if span.draft)
            assert drafts == request.drafts


def test_every_claim_has_a_sentence() -> None:
    claims = {claim.name for claim in (*STEPWISE, *LEDGER, *WRITTEN)} | {check.name for check in CHECKS}
    claims |= {allowance.check.name for allowance in ALLOWANCES.values()}
    assert set(SENTENCES) <= claims
    # The hand is no request and what a hand or a table's bounds hold cannot be seen from outside.
    assert claims - set(SENTENCES) <= {"hand-is-empty", "held-blocks-are-counted", "live-entries-are-a-range"}


def lines(story: Told, number: int) -> list[tuple[str, str]]:
    return [(line.stage, line.text) for line in story.steps[number - 1].lines]


def test_idle_hits_that_are_not_counted_fail_half_way(stories: Stories) -> None:
    story = told(stories, "count_idle_hits")
    assert story.title == "without count_idle_hits, no-rollback falls"
    assert lines(story, 2) == [
        ("stage 2", "need 2 <= free 3; 2 = ceil(4/2)"),
        ("stage 3", "takes b1 b2"),
        ("stage 4", "hashes b1 = A, b2 = B"),
    ]
    assert lines(story, 3) == [("pool", "frees b1 b2, tail first")]
    assert lines(story, 5) == [
        ("stage 2", "need 2 <= free 3; 2 = ceil(8/2) - 2 covered"),
        ("stage 3", "touches b1 b2"),
        ("stage 3", "take fails: 2 blocks to pop > free 1"),
    ]
    failed = story.steps[-1]
    assert failed.decided.fails
    assert failed.state.free_queue == (3,)
    assert failed.state.requests[1].tables[0].entries == (Entry(1, "hit"), Entry(2, "hit"))
    assert story.broken is not None
    assert story.broken.reason == "stage 2 passed with need 2 of free 3, then " + failed.decided.text
    assert [(key.label, key.tokens) for key in story.keys] == [("A", "1 1"), ("B", "1 1 · 2 2")]


def test_with_the_rule_on_the_same_call_is_counted_and_refused(stories: Stories) -> None:
    story = tell(stories["count_idle_hits"], Rules())
    assert lines(story, 5) == [("stage 2", "need 4 > free 3; 4 = ceil(8/2) - 2 covered + 2 idle hits")]
    assert story.steps[-1].result == "None, hits b1 b2"
    assert story.steps[-1].changes == ()


def test_a_window_given_up_too_early(stories: Stories) -> None:
    story = told(stories, "release_processed_only")
    assert ("stage 1", "gives back b1, out of the window") in lines(story, 3)
    assert story.steps[-1].state.requests[0].tables[0].entries[0] == Entry(0, "null")
    assert story.broken is not None
    assert story.broken.blocks == (1,)
    assert Change("block 1", "kind", "held", "cached") in story.steps[-1].changes


def test_a_hashed_draft(stories: Stories) -> None:
    story = told(stories, "hash_final_tokens_only")
    request = story.steps[-1].state.requests[0]
    assert (request.prompt, request.output, request.drafts) == (2, 1, 1)
    assert request.tables[0].spans == (
        Span(0, 2, "computed", False),
        Span(2, 3, "new", False),
        Span(3, 4, "new", True),
    )
    assert story.keys[-1].tokens == "1 1 · 2 ?"


def test_stage_0_and_the_watermark(stories: Stories) -> None:
    story = tell(stories["whole_prompt_pays_watermark"], Rules())
    assert lines(story, 2) == [("stage 0", "whole prompt 3 + watermark 1 > free 3")]
    assert story.steps[1].decided.stage == "stage 0"
    fallen = told(stories, "whole_prompt_pays_watermark")
    assert lines(fallen, 2)[0] == ("stage 0", "whole prompt 3 <= free 3")
    assert lines(fallen, 2)[1] == ("stage 2", "need 1 + watermark 1 <= free 3; 1 = ceil(2/2)")


def test_lookahead_and_reserved(stories: Stories) -> None:
    story = tell(stories["lookahead_gets_slots"], Rules())
    assert story.steps[1].state.requests[0].tables[0].entries == (Entry(1, "new"), Entry(2, "lookahead"))
    assert story.steps[1].state.requests[0].tables[0].spans[-1] == Span(2, 4, "lookahead", False)
    reserved = tell(stories["keep_reserved"], Rules())
    assert lines(reserved, 2) == [("stage 2", "need 2 > free 3 - reserved 2; 2 = ceil(4/2)")]


def test_lookahead_that_reaches_into_the_prompt() -> None:
    """Prompt tokens stay what they are; only what lies past them is a lookahead slot."""
    config = Config(num_blocks=8, block_size=2, max_model_len=16)
    for lookahead, rest in ((2, ()), (5, (Span(4, 6, "lookahead", False),))):
        calls = (AddRequest(0, (1, 2, 3, 4)), Allocate(0, 1, lookahead=lookahead))
        request = tell_reached(config, calls, "free < 8").steps[-1].state.requests[0]
        assert request.tables[0].spans == (Span(0, 1, "new", False), Span(1, 4, "todo", False), *rest)


def written(story: Told, block: int) -> list[tuple[int | None, str]]:
    """What is said of a block's slots, call by call."""
    return [(step.state.blocks[block].written, step.state.blocks[block].filled_by) for step in story.steps]


def test_what_is_written_is_told_where_the_story_is_about_it(stories: Stories, dropped: Story) -> None:
    story = tell(dropped, Rules())
    assert lines(story, 3) == [("worker", "writes tokens 0 to 2 of request 0")]
    assert written(story, 1) == [(None, ""), (0, "this step"), *[(2, "")] * 5]
    assert written(story, 2) == [(None, ""), (0, ""), *[(1, "")] * 5], "of a block without a key, how much"
    assert written(story, 3) == [*[(None, "")] * 4, (0, "this step"), (0, "nobody"), (0, "nobody")]
    assert Change("block 1", "written", "0/2 (this step writes the rest)", "2/2") in story.steps[2].changes
    assert story.broken is not None
    assert (story.broken.blocks, story.broken.requests) == ((3,), (1,))
    assert "left behind" in story.allowed
    loads = told(stories, "delay_cache_blocks")
    assert written(loads, 1) == [(None, ""), (0, "a load")]
    assert loads.allowed == ""
    for calls, reached, shown in ((2, "free<5", False), (3, "free<5", True), (2, "not(unwritten<1)", True)):
        blocks = tell_reached(dropped.config, dropped.calls[:calls], reached).steps[-1].state.blocks
        assert (blocks[1].written is not None) is shown
    for block in told(stories, "count_idle_hits").steps[-1].state.blocks:
        assert (block.written, block.filled_by) == (None, "")


def test_a_step_that_has_nothing_to_write_says_so(dropped: Story) -> None:
    calls = (*dropped.calls[:3], Execute(), *dropped.calls[3:], Execute())
    story = tell_reached(dropped.config, calls, "free > 0")
    assert lines(story, 4) == [("worker", "writes nothing: nothing is scheduled")]
    assert lines(story, 9) == [("worker", "writes token 2 of request 1")]


@pytest.mark.parametrize(
    ("calls", "claim", "detail", "reason"),
    [
        (
            6,
            "hashed-blocks-are-written",
            "block 3",
            "block 3 (taken for entry 0 of request 1) is published with key B; 0 of its 2 slots are written, "
            "and nobody will write them: request 1 was preempted before the step ran",
        ),
        (
            6,
            "hit-is-written",
            "index 0",
            "the lookup of request 1 finds block 3 for entry 0; 0 of its 2 slots are written, and nobody "
            "will write them: request 1 was preempted before the step ran",
        ),
        (
            6,
            "dropped-blocks-stay-unwritten",
            "index 0",
            "block 3 (entry 0 of request 1) was left with 0 written slots; it is published, and has 0 "
            "written slots now",
        ),
        (
            7,
            "computed-tokens-are-written",
            "request 1, index 0",
            "request 1 takes its first 2 tokens for written, but of block 3 (entry 0) 0 of its 2 slots are "
            "written, and nobody will write them: request 1 writes from token 2 on",
        ),
        (
            7,
            "open-tokens-have-own-blocks",
            "request 1, index 1",
            "request 1 is yet to write from token 2 on, and its entry 1 is block 4, which was taken for "
            "request 1",
        ),
        (
            8,
            "step-reads-what-is-written",
            "request 1, index 0",
            "the step reads 2 slots of block 3 (entry 0 of request 1's table), of which 0 hold KV",
        ),
        (
            8,
            "step-reads-what-is-written",
            "request 1, index 1",
            "the step reads 1 slot of block 4 (entry 1 of request 1's table), of which 1 hold KV",
        ),
    ],
)
def test_what_is_not_written_is_said(
    calls: int, claim: str, detail: str, reason: str, dropped: Story
) -> None:
    violation = Violation("published-is-written", claim, "worker", detail)
    broken = tell(Story(dropped.config, (*dropped.calls, Execute())[:calls], violation), Rules()).broken
    assert broken is not None
    assert broken.reason == reason


def test_a_story_of_other_rules_is_refused(stories: Stories) -> None:
    story = stories["count_idle_hits"]
    with pytest.raises(ContractError):
        tell(Story(story.config, story.calls[::-1], story.violation), Rules())


def test_a_state_that_was_asked_for_is_reached_and_nothing_breaks(stories: Stories) -> None:
    story = stories["count_idle_hits"]
    reached = tell_reached(story.config, story.calls[:3], "free == 3")
    assert reached.title == "free == 3 is reached"
    assert reached.broken is None
    assert reached.steps == told(stories, "count_idle_hits").steps[:3]
