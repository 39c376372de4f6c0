"""vLLM's own scheduler behind the gate's protocol, with every call of its manager shown."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import Arrival
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from slotproof.impl.vllm.calls import VllmCalls
from slotproof.impl.vllm.engine import real_scheduler
from slotproof.impl.vllm.parts import block_hasher, tables, tags


class VllmScheduler:
    """See `GatedScheduler` (`impl/scheduler/protocol.py`).

    Args:
        config: The pool and its attention groups.
        scheduler_config: How to schedule.
        listener: Sees every call of the KV-cache manager.
        steps_in_flight: Steps whose answers may be out at once.
        connector: Where external tokens come from; None for nowhere.
        known: Counts what KNOWN.md tells of vLLM, by section, whenever it comes to pass.

    Raises:
        ImportError: vLLM is not installed or does not import; the message names the remedy.
        ValueError: vLLM cannot be configured so.
    """

    def __init__(
        self,
        config: Config,
        scheduler_config: SchedulerConfig,
        listener: Listener,
        steps_in_flight: int = 1,
        connector: Connector | None = None,
        known: Counter[str] | None = None,
    ) -> None:
        self.scheduler = real_scheduler(config, scheduler_config, steps_in_flight, connector is not None)
        self.calls = VllmCalls(self.scheduler, listener, scheduler_config.unpublish, known)
        self._config = scheduler_config
        self._block_hasher = block_hasher(config)
        self._num_groups = len(config.all_groups)
        self._arrivals = 0
        self._step = 0
        self._in_flight: deque[tuple[Any, dict[str, int]]] = deque()
        if connector is not None:
            self.scheduler.connector.source = connector
            self.scheduler.connector.number = self.calls.number
            self.scheduler.connector.num_groups = len(config.all_groups)

    def add(self, arrival: Arrival) -> None:
        """A request arrives and waits."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            request_id=str(arrival.request),
            prompt_token_ids=list(arrival.tokens),
            sampling_params=SamplingParams(
                max_tokens=arrival.max_tokens,
                ignore_eos=True,
                skip_reading_prefix_cache=arrival.skip_reading_prefix_cache,
            ),
            pooling_params=None,
            arrival_time=float(self._arrivals),
            priority=arrival.priority,
            block_hasher=self._block_hasher,
            **tags(arrival.salt, arrival.lora),
        )
        self._arrivals += 1
        self.scheduler.add_request(request)
        self.calls.add(request.request_id, arrival.request, arrival.tokens, arrival.salt, arrival.lora)

    def schedule(self) -> SchedulerOutput:
        """Make up the next step."""
        output = self.scheduler.schedule()
        self.calls.step_ends()
        number = self.calls.number
        self._in_flight.append((output, {name: number[name] for name in output.num_scheduled_tokens}))
        self._step += 1
        connector = self.scheduler.connector
        return SchedulerOutput(
            step=self._step,
            finished=tuple(sorted(number[name] for name in output.finished_req_ids)),
            preempted=tuple(sorted(number[name] for name in output.preempted_req_ids)),
            new_block_ids_to_zero=tuple(output.new_block_ids_to_zero or ()),
            kv_cache_block_copies=tuple(
                (copy.src_block_id, copy.dst_block_id) for copy in output.kv_cache_block_copies or ()
            ),
            loads=() if connector is None else connector.take_loads(),
            scheduled=(*self._running(output), *self._new(output)),
        )

    def answer(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has run, or loads have arrived; steps are answered in their order.

        No drafts are brought for a request that was preempted since: vLLM would schedule them without the
        token before them (KNOWN.md).
        """
        from vllm.v1.core.sched.output import SchedulerOutput as VllmSchedulerOutput
        from vllm.v1.outputs import KVConnectorOutput
        from vllm.v1.outputs import ModelRunnerOutput as VllmModelRunnerOutput

        if answer.finished_recving:
            arrived = {self.calls.name[request] for request in answer.finished_recving}
            nothing = VllmModelRunnerOutput(
                [], {}, kv_connector_output=KVConnectorOutput(finished_recving=arrived)
            )
            self.scheduler.update_from_output(VllmSchedulerOutput.make_empty(), nothing)
            return
        theirs, number = self._in_flight.popleft()
        names = list(number)
        sampled = [list(answer.sampled.get(number[name], ())) for name in names]
        known = [self.scheduler.requests[name] for name in names if name in self.scheduler.requests]
        stale = {request.request_id for request in known if request.num_stale_output_tokens}
        self.calls.answer_begins(known)
        self.scheduler.update_from_output(
            theirs,
            VllmModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: index for index, name in enumerate(names)},
                sampled_token_ids=sampled,
            ),
        )
        self.calls.settle()
        if self._config.num_spec_tokens and not self._config.async_scheduling:
            drafts = {name: answer.num_drafts.get(number[name], 0) for name in names}
            self._propose({name: count for name, count in drafts.items() if name not in stale})

    def abort(self, request: int) -> None:
        """The request ends, whatever it is doing."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests([self.calls.name[request]], RequestStatus.FINISHED_ABORTED)

    def reset(self, reset_running_requests: bool) -> bool:
        """Forget all cached blocks; whether it was done.

        Raises:
            RuntimeError: vLLM could not, and no request holds blocks for a load, which is its reason not to.
        """
        try:
            return bool(self.scheduler.reset_prefix_cache(reset_running_requests))
        except RuntimeError:
            if not self._loads_hold_blocks():
                raise
            return False

    def _loads_hold_blocks(self) -> bool:
        """Whether a request holds blocks for a load: it waits, or has ended while the load is under way."""
        held = self.scheduler.kv_cache_manager.get_block_ids
        return any(
            request.status.name != "RUNNING" and any(held(name))
            for name, request in self.scheduler.requests.items()
        )

    def _propose(self, num_drafts: dict[str, int]) -> None:
        """The drafter's tokens reach the scheduler as the engine brings them, after a step's answer."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = [[0] * count for count in num_drafts.values()]
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(num_drafts), drafts))

    def _running(self, output: Any) -> list[ScheduledRequest]:
        """Requests that the worker knows, or knew before they were preempted."""
        cached = output.scheduled_cached_reqs
        return [
            self._scheduled(
                output,
                name,
                cached.num_computed_tokens[index],
                cached.new_block_ids[index],
                cached.all_token_ids[name] if name in cached.resumed_req_ids else None,
            )
            for index, name in enumerate(cached.req_ids)
        ]

    def _new(self, output: Any) -> list[ScheduledRequest]:
        """Requests that the worker does not know. For Model Runner V2 those that were preempted are new, too,
        and all tokens are told beside the prompt."""
        found = []
        for new in output.scheduled_new_reqs:
            known = getattr(new, "prefill_token_ids", None)
            tokens = new.prompt_token_ids if known is None else known
            found.append(self._scheduled(output, new.req_id, new.num_computed_tokens, new.block_ids, tokens))
        return found

    def _scheduled(
        self, output: Any, name: str, num_computed_tokens: int, blocks: Any, tokens: list[int] | None
    ) -> ScheduledRequest:
        first, *more = tables(blocks) if blocks else [()] * self._num_groups
        return ScheduledRequest(
            self.calls.number[name],
            self.scheduler.requests[name].num_preemptions,
            num_computed_tokens,
            output.num_scheduled_tokens[name],
            len(output.scheduled_spec_decode_tokens.get(name, ())),
            first,
            None if tokens is None else tuple(tokens),
            tuple(more),
        )
