"""The reference scheduler: two passes a step, with the names and the behaviour of vLLM 0.32.0.

It asks for memory through calls of the gate's protocol alone, and never counts a block itself. Left out are
encoders, structured output, LoRA limits, streaming, and what pads decodes to a uniform length.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from slotproof.impl.allocator.errors import AllocatorError
from slotproof.impl.allocator.request import RequestStatus
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.impl.scheduler.connector import Connector, Match
from slotproof.impl.scheduler.manager import Manager
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy
from slotproof.impl.scheduler.scheduler_output import (
    Load,
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
)
from slotproof.impl.scheduler.scheduler_request import RequestQueue, SchedulerRequest


class Scheduler:
    """Call `schedule`, have the worker run the step, and `update_from_output` with its answer.

    Several steps may be in flight; their answers come in order.

    Args:
        config: The manager's configuration.
        scheduler_config: How to schedule.
        manager: The KV-cache manager, which nobody else drives.
        connector: Where external tokens come from; None for nowhere.
    """

    def __init__(
        self,
        config: Config,
        scheduler_config: SchedulerConfig,
        manager: Manager,
        connector: Connector | None = None,
    ) -> None:
        self.config = config
        self.scheduler_config = scheduler_config
        self.manager = manager
        self.connector = connector
        self.requests: dict[int, SchedulerRequest] = {}
        self.running: list[SchedulerRequest] = []
        self.waiting = RequestQueue(scheduler_config.policy)
        self.kv_holding_waiting = RequestQueue(scheduler_config.policy)
        """Requests that wait with blocks of theirs, for a load or after one. They go before `waiting`: no
        request that is refused may stand in their way."""
        self._step = 0
        self._arrivals = 0
        self._finished: list[int] = []
        self._preempted: list[int] = []
        self._finished_recving: set[int] = set()
        self._in_flight_prefills: dict[int, SchedulerRequest] = {}
        """Requests that hold blocks and need more to finish their prompts."""

    def add_request(
        self,
        request_id: int,
        tokens: Iterable[int],
        *,
        max_tokens: int,
        salt: int = 0,
        lora: int = 0,
        priority: int = 0,
        skip_reading_prefix_cache: bool = False,
    ) -> None:
        """A request arrives and waits.

        Raises:
            AllocatorError: there is no token to sample.
            ValueError: the manager refuses it.
        """
        request = SchedulerRequest(
            request_id, list(tokens), max_tokens, priority, self._arrivals, skip_reading_prefix_cache
        )
        if max_tokens < 1 or request.num_tokens >= self.config.max_model_len:
            raise AllocatorError(
                f"request {request_id}: {request.num_tokens} tokens and {max_tokens} to sample: "
                f"sample at least one, below max_model_len {self.config.max_model_len}"
            )
        self.manager.step(AddRequest(request_id, tuple(request.tokens), salt, lora))
        self._arrivals += 1
        self.requests[request_id] = request
        self.waiting.add(request)

    def has_requests(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self.requests)

    def schedule(self) -> SchedulerOutput:
        """Make up the next step; computed tokens advance as if it had run."""
        limits, others = self.scheduler_config, len(self.requests) > 1
        budget, threshold = limits.max_num_scheduled_tokens, limits.long_prefill_token_threshold
        step = _Step(budget, threshold if threshold and others else budget)
        if not self._schedule_running(step):
            self._schedule_waiting(step)
        self._step += 1
        output = SchedulerOutput(
            step=self._step,
            finished=tuple(self._finished),
            preempted=tuple(self._preempted),
            new_block_ids_to_zero=self.manager.step(TakeNewBlockIds()).new_blocks,
            kv_cache_block_copies=(),
            loads=tuple(step.loads),
            scheduled=tuple(step.scheduled.values()),
        )
        self._finished, self._preempted = [], []
        for scheduled in output.scheduled:
            self._update_after_schedule(self.requests[scheduled.request], scheduled)
        return output

    def update_from_output(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has run. What it says of requests that have ended or were preempted since is dropped."""
        for scheduled in output.scheduled:
            request = self.requests.get(scheduled.request)
            if request is not None and request.num_preemptions == scheduled.num_preemptions:
                self._update_request(request, scheduled, answer)
        for request_id in answer.finished_recving:
            request = self.requests[request_id]
            if request.is_aborted:
                self._free_request(request)
            else:
                self._finished_recving.add(request_id)

    def finish_requests(self, request_ids: Iterable[int]) -> None:
        """Abort requests, whatever they are doing; ids that are not known are passed over."""
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None or request.is_aborted:
                continue
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            elif request.holds_blocks:
                self.kv_holding_waiting.remove(request)
            else:
                self.waiting.remove(request)
            loads = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
            if loads and request_id not in self._finished_recving:
                request.is_aborted = True  # the load still writes to its blocks
            else:
                self._free_request(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached blocks, if no request holds any; whether it was done.

        Args:
            reset_running_requests: Preempt all running requests first, which then compute everything again.
        """
        while reset_running_requests and self.running:
            self._preempt(self.running.pop())
        return self.manager.step(ResetPrefixCache()).granted

    def _schedule_running(self, step: _Step) -> bool:
        """Pass 1: requests that run, in order. Whether one was preempted for them."""
        index, preempted = 0, False
        while index < len(self.running) and step.budget > 0:
            request = self.running[index]
            num_new = min(
                request.num_tokens
                + request.num_drafts
                + request.num_output_placeholders
                - request.num_computed_tokens,
                step.budget,
                step.most,
                self.config.max_model_len - 1 - request.num_computed_tokens,
            )
            if num_new <= 0 or request.sampling_is_scheduled:
                index += 1
                continue
            held = [len(table) for table in self.manager.block_ids(request.request_id)]
            ask = Allocate(request.request_id, num_new, self.scheduler_config.num_lookahead_tokens)
            while not (result := self.manager.step(ask)).granted:
                preempted = True
                victim = self._preempt_lowest(step)
                if victim is request:
                    break
                index = self.running.index(request)
            if not result.granted:
                # The next one is at `index` now. 0.32.0 ends the pass here, though those behind have a higher
                # priority, and may have slots.
                continue
            known = request.num_tokens + request.num_output_placeholders
            num_drafts = max(0, request.num_computed_tokens + num_new - known)
            tables = zip(self.manager.block_ids(request.request_id), held, strict=True)
            new_blocks = tuple([table[end:] for table, end in tables])
            step.add(_scheduled(request, num_new, num_drafts, new_blocks))
            index += 1
        return preempted

    def _preempt_lowest(self, step: _Step) -> SchedulerRequest:
        """A running request loses its blocks; if the step has it already, it leaves the step."""
        victim = self.running[-1]
        if self.scheduler_config.policy is SchedulingPolicy.PRIORITY:
            victim = max(self.running, key=lambda r: r.rank)
        self.running.remove(victim)
        scheduled = step.remove(victim.request_id)
        if scheduled is not None and self.scheduler_config.unpublish:
            self._unpublish(victim, scheduled)
        self._preempt(victim)
        return victim

    def _unpublish(self, request: SchedulerRequest, scheduled: ScheduledRequest) -> None:
        """The blocks that `scheduled` would have filled lose their hashes: nobody will write them."""
        computed = scheduled.num_computed_tokens
        final = min(computed + scheduled.num_scheduled_tokens, request.num_tokens)
        tables = self.manager.block_ids(request.request_id)
        sizes = [group.block_size for group in self.config.all_groups]
        unwritten = [
            table[computed // size : final // size] for table, size in zip(tables, sizes, strict=True)
        ]
        if any(unwritten) and self.config.enable_caching:
            self.manager.step(EvictBlocks(tuple(chain.from_iterable(unwritten))))

    def _preempt(self, request: SchedulerRequest) -> None:
        self.manager.step(Preempt(request.request_id))
        self._in_flight_prefills.pop(request.request_id, None)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.num_output_placeholders = request.num_drafts = 0
        request.num_preemptions += 1
        self.waiting.prepend(request)
        self._preempted.append(request.request_id)

    def _schedule_waiting(self, step: _Step) -> None:
        """Pass 2: requests that wait, in order, until one is refused."""
        for request in [*self.kv_holding_waiting, *self.waiting]:
            if step.budget == 0 or len(self.running) >= self.scheduler_config.max_num_running_reqs:
                return
            if not self._is_ready(request):
                continue
            local, match = self._computed_elsewhere(request)
            computed = request.num_computed_tokens + local + match.num_tokens
            num_new = 0 if match.is_async else min(request.num_tokens - computed, step.budget, step.most)
            lookahead = 0 if match.is_async else self.scheduler_config.num_lookahead_tokens
            result = self.manager.step(
                Allocate(
                    request.request_id,
                    num_new,
                    lookahead,
                    external=match.num_tokens,
                    skip_cache=request.skip_reading_prefix_cache,
                    delay_cache=match.is_async,
                    must_fit=self.scheduler_config.scheduler_reserve_full_isl,
                    reserved=self._reserved_blocks() if match.is_async else 0,
                    has_scheduled=bool(self.running),
                    skip_zeroing=match.is_async,
                )
            )
            if not result.granted:
                return
            blocks = self.manager.block_ids(request.request_id)
            if match.num_tokens:
                start = computed - match.num_tokens
                load = Load(request.request_id, start, computed, blocks[0], match.is_async, blocks[1:])
                step.loads.append(load)
            (self.kv_holding_waiting if request.holds_blocks else self.waiting).remove(request)
            request.num_computed_tokens = computed
            if match.is_async:
                request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
                self._in_flight_prefills[request.request_id] = request
                self.kv_holding_waiting.add(request)
                continue
            if computed + num_new < request.num_tokens:
                self._in_flight_prefills[request.request_id] = request
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            step.add(_scheduled(request, num_new, 0, blocks, tuple(request.tokens)))

    def _is_ready(self, request: SchedulerRequest) -> bool:
        """Whether it can be scheduled; if its load has arrived, it is published."""
        if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self._finished_recving:
            return False
        self._finished_recving.remove(request.request_id)
        self.manager.step(CacheBlocks(request.request_id))
        request.status = RequestStatus.WAITING
        return True

    def _computed_elsewhere(self, request: SchedulerRequest) -> tuple[int, Match]:
        """For a request without blocks: tokens in the prefix cache, and what a connector has after them."""
        if request.holds_blocks or request.skip_reading_prefix_cache:
            return 0, Match()
        local = self.manager.lookup(request.request_id)
        if self.connector is None:
            return local, Match()
        match = self.connector.get_num_new_matched_tokens(request.request_id, request.num_tokens, local)
        return local, match

    def _reserved_blocks(self) -> int:
        """Blocks that a load must leave free, as it is not preempted while it waits: those that requests
        with blocks need to finish their prompts, and those of one step with drafts."""
        k = self.scheduler_config.num_spec_tokens
        slots = 1 + k + self.scheduler_config.num_lookahead_tokens if k else 0
        remaining = sum(self.manager.remaining_blocks(r, slots) for r in self._in_flight_prefills)
        return remaining + sum(-(-slots // group.block_size) for group in self.config.all_groups)

    def _update_after_schedule(self, request: SchedulerRequest, scheduled: ScheduledRequest) -> None:
        request.num_computed_tokens += scheduled.num_scheduled_tokens
        request.num_in_flight_tokens += scheduled.num_scheduled_tokens
        request.num_drafts = 0
        if request.is_prefill_chunk:
            return
        self._in_flight_prefills.pop(request.request_id, None)
        if self.scheduler_config.async_scheduling:
            request.num_output_placeholders += 1 + scheduled.num_draft_tokens
            request.num_drafts = self.scheduler_config.num_spec_tokens

    def _update_request(
        self, request: SchedulerRequest, scheduled: ScheduledRequest, answer: ModelRunnerOutput
    ) -> None:
        sampled = answer.sampled.get(request.request_id, ())
        rejected = scheduled.num_draft_tokens - len(sampled) + 1 if sampled else 0
        most = min(request.num_prompt_tokens + request.max_tokens, self.config.max_model_len)
        kept = sampled[: most - request.num_tokens]
        processed = scheduled.num_scheduled_tokens
        self.manager.step(Complete(request.request_id, processed, rejected, kept))
        request.num_in_flight_tokens -= processed
        request.num_computed_tokens -= rejected
        request.tokens += kept
        if self.scheduler_config.async_scheduling:
            request.num_output_placeholders -= rejected + len(kept) if sampled else 0
        elif sampled:
            request.num_drafts = answer.num_drafts.get(request.request_id, 0)
        if request.num_tokens == most:
            self.running.remove(request)
            self._free_request(request)

    def _free_request(self, request: SchedulerRequest) -> None:
        """A request that is in no queue any more ends."""
        if self.connector is not None and request.holds_blocks:
            self.manager.step(RemoveSkipped(request.request_id))
        self.manager.step(Finish(request.request_id))
        del self.requests[request.request_id]
        self._in_flight_prefills.pop(request.request_id, None)
        self._finished_recving.discard(request.request_id)
        self._finished.append(request.request_id)


class _Step:
    """A step in the making: `budget` tokens are left, of which one request may have `most`."""

    def __init__(self, budget: int, most: int) -> None:
        self.budget = budget
        self.most = most
        self.scheduled: dict[int, ScheduledRequest] = {}
        self.loads: list[Load] = []

    def add(self, scheduled: ScheduledRequest) -> None:
        self.scheduled[scheduled.request] = scheduled
        self.budget -= scheduled.num_scheduled_tokens

    def remove(self, request: int) -> ScheduledRequest | None:
        scheduled = self.scheduled.pop(request, None)
        if scheduled is not None:
            self.budget += scheduled.num_scheduled_tokens
        return scheduled


def _scheduled(
    request: SchedulerRequest,
    num_new: int,
    num_drafts: int,
    new_blocks: tuple[tuple[int, ...], ...],
    tokens: tuple[int, ...] | None = None,
) -> ScheduledRequest:
    return ScheduledRequest(
        request.request_id,
        request.num_preemptions,
        request.num_computed_tokens,
        num_new,
        num_drafts,
        new_blocks[0],
        tokens,
        new_blocks[1:],
    )
