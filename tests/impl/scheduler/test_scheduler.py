"""The scheduler: two passes, and what each does when there is no memory."""

from __future__ import annotations

from typing import Any

import pytest

from slotproof.impl.allocator.adapter import TorchAllocator
from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.request import RequestStatus
from slotproof.impl.protocol import Allocate, Call, Config, EvictBlocks, Finish, Preempt
from slotproof.impl.scheduler.connector import Connector, ConnectorStub, Match
from slotproof.impl.scheduler.manager import Recording
from slotproof.impl.scheduler.scheduler import Scheduler, _Step
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput

PRIORITY = SchedulingPolicy.PRIORITY


class Bench:
    """A scheduler, and the calls it has made. A step's answer samples token 7 for who is to sample."""

    def __init__(self, connector: Connector | None = None, *, num_blocks: int = 9, **how: Any) -> None:
        config = Config(num_blocks=num_blocks, block_size=4, max_model_len=32)
        self.calls: list[Call] = []
        manager = Recording(TorchAllocator(config), lambda call, result, snapshot: self.calls.append(call))
        self.scheduler = Scheduler(config, SchedulerConfig(**how), manager, connector)

    def add(self, request: int, length: int, *, max_tokens: int = 8, priority: int = 0) -> None:
        tokens = range(100 * request, 100 * request + length)
        self.scheduler.add_request(request, tokens, max_tokens=max_tokens, priority=priority)

    def schedule(self) -> SchedulerOutput:
        self.calls.clear()
        return self.scheduler.schedule()

    def step(self, accepted: int = 0, num_drafts: int = 0) -> dict[int, int]:
        """Schedule and answer; the tokens scheduled by request."""
        output = self.schedule()
        self.answer(output, accepted, num_drafts)
        return amounts(output)

    def answer(self, output: SchedulerOutput, accepted: int = 0, num_drafts: int = 0) -> None:
        sampled = {}
        for s in output.scheduled:
            request = self.scheduler.requests.get(s.request)
            known = s.num_computed_tokens + s.num_scheduled_tokens - s.num_draft_tokens
            if request is not None and known >= request.num_tokens:
                sampled[s.request] = (7,) * (1 + min(accepted, s.num_draft_tokens))
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(sampled, dict.fromkeys(sampled, num_drafts))
        )

    def of(self, kind: type[Call]) -> list[Any]:
        return [call for call in self.calls if isinstance(call, kind)]


def amounts(output: SchedulerOutput) -> dict[int, int]:
    return {s.request: s.num_scheduled_tokens for s in output.scheduled}


def test_prompts_are_cut_by_the_budget_and_running_requests_come_first() -> None:
    bench = Bench(max_num_scheduled_tokens=6, scheduler_reserve_full_isl=False)
    bench.add(0, 9)
    bench.add(1, 4)
    assert [bench.step() for _ in range(3)] == [{0: 6}, {0: 3, 1: 3}, {0: 1, 1: 1}]


def test_a_threshold_leaves_budget_for_others() -> None:
    bench = Bench(long_prefill_token_threshold=3)
    bench.add(0, 8)
    assert bench.step() == {0: 8}
    bench.add(1, 8)
    assert bench.step() == {0: 1, 1: 3}


def test_pass_2_stops_at_the_first_refusal() -> None:
    bench = Bench(num_blocks=4)
    bench.add(0, 8)
    bench.add(1, 12)
    bench.add(2, 2)
    assert bench.step() == {0: 8}
    assert [call.request for call in bench.of(Allocate)] == [0, 1]


def test_pass_1_preempts_the_last_and_then_admits_nobody() -> None:
    bench = Bench(num_blocks=5)
    bench.add(0, 8, max_tokens=20)
    bench.add(1, 7, max_tokens=20)
    bench.step()
    bench.add(2, 2)
    output = bench.schedule()
    assert output.preempted == (1,)
    assert amounts(output) == {0: 1}
    assert [call.request for call in bench.of(Allocate)] == [0, 0]
    assert [r.request_id for r in bench.scheduler.waiting] == [1, 2]


def test_a_request_alone_preempts_itself() -> None:
    bench = Bench(num_blocks=3)
    bench.add(0, 8)
    bench.step()
    output = bench.schedule()
    assert (output.preempted, output.scheduled) == ((0,), ())


def test_those_behind_a_request_that_preempts_itself_run() -> None:
    """Request 0 needs a second block for its fifth token; request 1 has slots."""
    bench = Bench(num_blocks=3, policy=PRIORITY, scheduler_reserve_full_isl=False)
    bench.add(0, 3, priority=2)
    bench.step()
    bench.add(1, 1, priority=1)
    assert bench.step() == {0: 1, 1: 1}
    output = bench.schedule()
    assert (output.preempted, amounts(output)) == ((0,), {1: 1})


@pytest.mark.parametrize("unpublish", [True, False])
def test_priority_may_take_back_what_the_step_has(unpublish: bool) -> None:
    """The victim's 8th token fills a block; it leaves the step, and the block its hash."""
    bench = Bench(num_blocks=5, policy=PRIORITY, unpublish=unpublish, scheduler_reserve_full_isl=False)
    bench.add(0, 6, priority=5, max_tokens=20)
    bench.step()
    bench.add(1, 8, priority=1, max_tokens=20)
    bench.step()
    output = bench.schedule()
    assert amounts(output) == {1: 1}
    assert output.preempted == (0,)
    kinds = [type(call) for call in bench.calls if isinstance(call, EvictBlocks | Preempt)]
    assert kinds == ([EvictBlocks, Preempt] if unpublish else [Preempt])


def test_what_leaves_a_step_gives_its_tokens_back() -> None:
    step = _Step(budget=5, most=5)
    step.add(ScheduledRequest(0, 0, 0, 3, 0, ()))
    assert step.budget == 2
    assert step.remove(1) is None
    assert step.remove(0) is not None
    assert (step.budget, step.scheduled) == (5, {})


def test_priority_orders_those_that_wait() -> None:
    bench = Bench(max_num_running_reqs=2, policy=PRIORITY)
    for request, priority in enumerate((2, 1, 0, 1)):
        bench.add(request, 2, priority=priority)
    assert list(bench.step()) == [2, 1]
    assert [r.request_id for r in bench.scheduler.waiting] == [3, 0]


def test_admission_says_whether_others_run() -> None:
    bench = Bench()
    bench.add(0, 2)
    bench.add(1, 2)
    bench.schedule()
    assert [call.has_scheduled for call in bench.of(Allocate)] == [False, True]


def test_drafts_are_scheduled_and_rejected_ones_roll_back() -> None:
    bench = Bench(num_spec_tokens=3, num_blocks=20)
    bench.add(0, 5, max_tokens=20)
    bench.step(num_drafts=3)
    request = bench.scheduler.requests[0]
    assert bench.step(accepted=1, num_drafts=2) == {0: 4}
    assert (request.num_tokens, request.num_computed_tokens) == (8, 7)
    assert bench.step(accepted=2) == {0: 3}
    assert (request.num_tokens, request.num_computed_tokens) == (11, 10)


def test_asynchronous_steps_run_ahead_of_their_answers() -> None:
    bench = Bench(num_spec_tokens=2, async_scheduling=True, num_blocks=20)
    bench.add(0, 4, max_tokens=20)
    first, second, third = (bench.schedule() for _ in range(3))
    assert [amounts(output)[0] for output in (first, second, third)] == [4, 3, 3]
    assert third.scheduled[0].num_computed_tokens == 7
    request = bench.scheduler.requests[0]
    bench.answer(first)
    bench.scheduler.update_from_output(second, ModelRunnerOutput({0: (7, 7)}))
    bench.scheduler.update_from_output(third, ModelRunnerOutput({0: (7,)}))
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (8, 7, 0)


def test_no_step_is_scheduled_when_those_in_flight_must_end_the_request() -> None:
    bench = Bench(async_scheduling=True)
    bench.add(0, 4, max_tokens=2)
    first, second = bench.schedule(), bench.schedule()
    bench.answer(first)
    assert [amounts(output) for output in (first, second, bench.schedule())] == [{0: 4}, {0: 1}, {}]


def test_answers_to_an_earlier_life_are_dropped() -> None:
    bench = Bench(async_scheduling=True)
    bench.add(0, 4)
    output = bench.schedule()
    assert bench.scheduler.reset_prefix_cache(reset_running_requests=True)
    again = bench.schedule()
    bench.answer(output)
    request = bench.scheduler.requests[0]
    assert (request.num_tokens, request.num_in_flight_tokens) == (4, 4)
    bench.answer(again)
    assert (request.num_tokens, request.num_in_flight_tokens) == (5, 0)


def loads(is_async: bool) -> Bench:
    bench = Bench(ConnectorStub(lambda request, most: Match(min(most, 6), is_async), 4))
    bench.add(0, 9)
    return bench


def test_a_synchronous_load_is_part_of_the_step() -> None:
    output = loads(is_async=False).schedule()
    assert amounts(output) == {0: 3}
    assert [(load.start, load.end, load.is_async) for load in output.loads] == [(0, 6, False)]


def test_an_asynchronous_load_ends_with_a_block_and_the_request_waits_for_it() -> None:
    bench = loads(is_async=True)
    output = bench.schedule()
    assert amounts(output) == {}
    assert [(load.start, load.end, load.is_async) for load in output.loads] == [(0, 4, True)]
    assert output.new_block_ids_to_zero == ()
    assert bench.step() == {}
    bench.scheduler.update_from_output(output, ModelRunnerOutput(finished_recving=(0,)))
    assert bench.step() == {0: 5}


def test_an_abort_waits_for_the_load() -> None:
    bench = loads(is_async=True)
    output = bench.schedule()
    bench.scheduler.finish_requests([0, 0, 5])
    assert bench.of(Finish) == []
    bench.scheduler.update_from_output(output, ModelRunnerOutput(finished_recving=(0,)))
    assert bench.of(Finish) == [Finish(0)]
    assert not bench.scheduler.has_requests()


@pytest.mark.parametrize(("length", "granted"), [(17, True), (21, False)])
def test_a_load_leaves_the_blocks_that_a_prompt_still_needs(length: int, granted: bool) -> None:
    """Of eight blocks request 0 has one and needs three more: four are left for a load."""
    connector = ConnectorStub(lambda request, most: Match(0 if most == 15 else most, True), 4)
    bench = Bench(connector, long_prefill_token_threshold=4)
    bench.add(0, 16)
    bench.add(1, length)
    output = bench.schedule()
    assert amounts(output) == {0: 4}
    assert [call.reserved for call in bench.of(Allocate)] == [0, 3]
    assert bool(output.loads) == granted


def test_a_load_leaves_the_blocks_that_another_load_still_needs() -> None:
    connector = ConnectorStub(lambda request, most: Match(4, True), 4)
    bench = Bench(connector, num_lookahead_tokens=3)
    bench.add(0, 14)
    bench.add(1, 14)
    assert [load.request for load in bench.schedule().loads] == [0, 1]
    assert [(call.reserved, call.lookahead) for call in bench.of(Allocate)] == [(0, 0), (3, 0)]


@pytest.mark.parametrize(("request_id", "status"), [(0, RequestStatus.RUNNING), (1, RequestStatus.WAITING)])
def test_an_abort_in_any_queue(request_id: int, status: RequestStatus) -> None:
    bench = Bench(num_blocks=4)
    bench.add(0, 8)
    bench.add(1, 12)
    bench.step()
    assert bench.scheduler.requests[request_id].status is status
    bench.scheduler.finish_requests([request_id])
    assert bench.schedule().finished == (request_id,)


def test_a_request_needs_room_for_a_token() -> None:
    bench = Bench()
    with pytest.raises(AllocatorError, match="request 0: 32 tokens"):
        bench.add(0, 32)
    with pytest.raises(AllocatorError, match="sample at least one"):
        bench.add(0, 3, max_tokens=0)
