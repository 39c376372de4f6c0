"""A story written as a test: it passes on vLLM, and fails on a vLLM that has the fault."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.faults.catalogue import FAULTS, NAMED
from slotproof.proofs.faults.vllm_faults import patched
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.oracle import expect_all
from slotproof.proofs.gate.trial import Asked, compare_story
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.stories.generated_test import decision, text_of, write_test

NAMES = [fault.name for fault in FAULTS]
Teller = dict[str, Story]


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_short_and_stands_alone(name: str, stories: Teller) -> None:
    text = text_of(stories[name], NAMED[name].bent)
    compile(text, name, "exec")
    lines = text.splitlines()
    assert len(lines) <= (95 if len(stories[name].config.all_groups) == 1 else 120)
    assert max(map(len, lines)) <= 110
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= {"vllm", "torch", "inspect", "pytest"}
    assert NAMED[name].statement in text
    assert all(f"#{number}" in text for number in NAMED[name].issues)


def test_the_file_says_what_is_right_and_what_the_fault_shows(stories: Teller) -> None:
    text = text_of(stories["free_tail_first"], NAMED["free_tail_first"].bent)
    assert text.endswith(
        '    r0 = new_request("0", [1, 1, 2, 2])\n'
        "    allocate(manager, r0, new=4)\n"
        "    manager.free(r0)\n"
        "    assert free_queue(manager) == [3, 2, 1]  # with the fault: [3, 1, 2]\n"
    )


def test_what_every_release_shows_alike_is_asked_for(stories: Teller) -> None:
    """Up to 0.23.0 blocks without a hash are freed to the tail: their order is another, and no fault."""
    text = text_of(stories["free_unreferenced_only"], NAMED["free_unreferenced_only"].bent)
    assert "assert sorted(free_queue(manager)) == [2, 3, 4, 5]  # with the fault: [1, 2, 3, 4, 5]" in text
    assert "__version__" not in text


@pytest.mark.parametrize(
    ("name", "since", "numbers"),
    [("release_before_count", "0.23.0", "[0, 23]"), ("unhashed_to_front", "0.24.0", "[0, 24]")],
)
def test_a_release_in_which_something_else_is_right_is_left_out(
    stories: Teller, name: str, since: str, numbers: str
) -> None:
    text = text_of(stories[name], NAMED[name].bent)
    assert f'__version__.split(".")[:2]] < {numbers}:' in text
    assert f'pytest.skip("before {since} something else is right")' in text


def test_a_release_that_lacks_what_is_asked_is_left_out(stories: Teller) -> None:
    text = text_of(stories["keep_reserved"], NAMED["keep_reserved"].bent)
    assert 'for function, name in [(KVCacheManager.allocate_slots, "reserved_blocks")]:' in text
    text = text_of(stories["watermark_on_admission"], NAMED["watermark_on_admission"].bent)
    assert 'for function, name in [(KVCacheManager, "watermark")]:' in text


def test_calls_after_the_decisive_one_are_left_out(stories: Teller) -> None:
    story = stories["free_tail_first"]
    longer = msgspec.structs.replace(story.calls[0], request=1)
    found = decision(
        Story(story.config, (*story.calls, longer), story.violation), NAMED["free_tail_first"].bent
    )
    assert found is not None
    assert found.calls == story.calls


def test_a_hidden_count_is_made_to_decide(stories: Teller) -> None:
    story = stories["count_hits_in_window_only"]
    found = decision(story, NAMED["count_hits_in_window_only"].bent)
    assert found is not None
    assert found.calls[-1] == msgspec.structs.replace(story.calls[-1], reserved=3)
    assert (found.right.result, found.wrong and found.wrong.result) == ([3], None)


def test_a_story_that_shows_nothing_is_refused(stories: Teller, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        write_test(tmp_path / "a.py", stories["free_tail_first"], Rules())
    assert not list(tmp_path.iterdir())


TAIL_LAST = NAMED["free_tail_first"]


def everything() -> Story:
    """A story with every kind of call."""
    config = Config(num_blocks=9, block_size=2, max_model_len=16, sliding_window=9, watermark_blocks=1)
    calls = (
        AddRequest(0, (1,), salt=1, lora=2),
        Allocate(0, 1, skip_cache=True, lookahead=1, has_scheduled=False),
        Execute(),
        Complete(0, processed=1, sampled=(2,)),
        Allocate(0, 3, reserved=1),
        Complete(0, processed=3, rejected=1, sampled=(2,)),
        RemoveSkipped(0),
        EvictBlocks((1,)),
        Preempt(0),
        ResetPrefixCache(),
        TakeNewBlockIds(),
        AddRequest(1, (1, 2, 3, 4, 5)),
        Allocate(1, 0, external=4, delay_cache=True, skip_zeroing=True, must_fit=True),
        CacheBlocks(1),
        Allocate(1, 1),
        Finish(1),
    )
    story = tell(config, calls, TAIL_LAST.bent, TAIL_LAST.statement)
    assert story is not None
    return story


def test_the_worker_is_a_remark() -> None:
    """A `KVCacheManager` has nothing to do when the step runs."""
    assert "    # The step runs.\n    complete(r0, 1, sampled=[2])\n" in text_of(everything(), TAIL_LAST.bent)


@pytest.fixture(scope="module")
def vllm() -> None:
    from slotproof.impl.vllm.adapter import vllm_allocator

    vllm_allocator(Config(num_blocks=2, block_size=1, max_model_len=1))


class Outcome:
    """What a run of pytest ended in."""

    def __init__(self) -> None:
        self.raised = ""

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        assert call.excinfo is not None
        self.raised = call.excinfo.type.__name__


def run(path: Path) -> str:
    """Run the file's test in this process: the name of what it raised, empty if it passes."""
    alone = ["-c", os.devnull, "--rootdir", str(path.parent), "-p", "no:cacheprovider"]
    quick = ["-p", "no:unraisableexception"]  # which collects all garbage, several times
    outcome = Outcome()
    code = pytest.main([str(path), "-q", *alone, *quick], plugins=[outcome])
    assert code == (pytest.ExitCode.TESTS_FAILED if outcome.raised else pytest.ExitCode.OK)
    return outcome.raised


def agrees(implementation: Isolated, config: Config, calls: tuple[Call, ...]) -> bool:
    return compare_story(implementation, config, expect_all(config, list(calls)), Asked())[1] is None


@pytest.mark.vllm
@pytest.mark.usefixtures("vllm")
class TestVllm:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_test_passes_on_vllm_and_fails_on_the_fault(
        self, name: str, stories: Teller, tmp_path: Path
    ) -> None:
        path = tmp_path / f"test_{name}.py"
        write_test(path, stories[name], NAMED[name].bent)
        breaks_down = NAMED[name].statement == "no-rollback"
        assert run(path) == ""
        with patched(name):
            assert run(path) == ("ValueError" if breaks_down else "AssertionError")
        assert run(path) == ""

    def test_the_gate_agrees_with_vllm_and_disagrees_with_the_fault(self, stories: Teller) -> None:
        """But for the fault that shows in full attention with larger blocks, which the adapter refuses."""
        gated = [name for name in NAMES if name != "lookup_is_aligned"]
        traces = {name: trace(stories[name], NAMED[name].bent) for name in gated}
        with closing(Isolated(loader("vllm"))) as vllm:
            assert [name for name, told in traces.items() if not agrees(vllm, *told)] == []
        unseen = []
        for name, told in traces.items():
            with patched(name), closing(Isolated(loader("vllm"))) as faulty:
                if agrees(faulty, *told):
                    unseen.append(name)
        assert unseen == []

    def test_the_gate_agrees_on_what_a_statement_needs(self, dropped: Story) -> None:
        """vLLM, too, lets a request hit the block that it left unwritten."""
        with closing(Isolated(loader("vllm"))) as vllm:
            assert agrees(vllm, dropped.config, dropped.calls)

    def test_every_kind_of_call_can_be_written(self, tmp_path: Path) -> None:
        path = tmp_path / "test_everything.py"
        write_test(path, everything(), TAIL_LAST.bent)
        assert run(path) == ""
        with patched(TAIL_LAST.name):
            assert run(path) == "AssertionError"

    @pytest.mark.slow
    def test_the_file_needs_nothing_but_vllm(self, stories: Teller, tmp_path: Path) -> None:
        path = tmp_path / "test_it.py"
        write_test(path, stories["release_processed_only"], NAMED["release_processed_only"].bent)
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path.name],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def trace(story: Story, rules: Rules) -> tuple[Config, tuple[Call, ...]]:
    """The calls up to where the fault shows. A lookup shows once it is used."""
    found = decision(story, rules)
    assert found is not None
    calls = found.calls
    if "hits" in found.differing:
        calls += (Allocate(max(found.right.hits), new=1),)
    return story.config, calls
