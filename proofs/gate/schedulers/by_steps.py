"""Follows a scheduler by its own steps: what they say is held together, and told as the protocol's calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import structs

from slotproof.impl.protocol import AddRequest, Allocate, Call, Complete, Finish, Preempt, Result, Snapshot
from slotproof.impl.scheduler.protocol import Arrival, Setup
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from slotproof.model.language.state import PREEMPTED, RUNNING, UNKNOWN, WAITING
from slotproof.proofs.gate.compare import Difference
from slotproof.proofs.gate.schedulers.disagreement import Disagreement
from slotproof.proofs.gate.schedulers.follower import Audience
from slotproof.proofs.output.words import counted
from slotproof.proofs.traces.trace import Step, usage_of

_DOING = {UNKNOWN: "has ended", WAITING: "waits", PREEMPTED: "was preempted"}


@dataclass
class _Request:
    """One that has come."""

    tokens: list[int]
    most: int
    """Tokens when it ends."""
    status: int = WAITING
    computed: int = 0
    in_flight: int = 0
    preemptions: int = 0
    table: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """What is true of the requests."""

    requests: dict[int, _Request] = field(default_factory=dict)

    def status(self, request: int) -> int:
        """Of `model/language/state.py`."""
        return self.requests[request].status if request in self.requests else UNKNOWN

    def num_tokens(self, request: int) -> int:
        """Final tokens."""
        return len(self.requests[request].tokens)

    def computed(self, request: int) -> int:
        """Tokens that are computed, those in flight included."""
        return self.requests[request].computed

    def in_flight(self, request: int) -> int:
        """Tokens in flight."""
        return self.requests[request].in_flight


class BySteps:
    """What a scheduler's steps amount to.

    Args:
        setup: The engine.
        audience: Is told of the calls that they amount to.
    """

    def __init__(self, setup: Setup, audience: Audience) -> None:
        self.state = Ledger()
        self._setup = setup
        self._audience = audience
        self._step = 0
        self._ended: list[int] = []
        self.initial = self._snapshot()

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        return [r for r in self.state.requests if self.state.status(r) != UNKNOWN]

    def name(self, request: int) -> int:
        """The number under which it arrived."""
        return request

    def has_slots(self, request: int, tokens: int) -> bool:
        """Whether a request has slots for so many tokens."""
        return len(self.blocks(request)) * self._setup.config.block_size >= tokens

    def blocks(self, request: int) -> tuple[int, ...]:
        """Its block table."""
        return self.state.requests[request].table

    def observe(self, call: Call, result: Result, snapshot: Snapshot) -> None:
        """Nothing is known of a manager."""

    def arrives(self, arrival: Arrival) -> None:
        """A request is about to come."""
        most = min(len(arrival.tokens) + arrival.max_tokens, self._setup.config.max_model_len)
        request = _Request(list(arrival.tokens), most)
        self._tell(AddRequest(arrival.request, arrival.tokens, arrival.salt, arrival.lora))
        self.state.requests[arrival.request] = request

    def scheduled(self, output: SchedulerOutput) -> SchedulerOutput:
        """A step has been made up; it, with all that the worker needs.

        Raises:
            Disagreement: it is no step that anybody could run.
        """
        self._check(output)
        self._step += 1
        for r in output.preempted:
            if self.state.status(r) != RUNNING:
                raise _wrong("preempted", "requests that run", f"request {r}, which {self._doing(r)}", r)
            request = self.state.requests[r]
            self._tell(Preempt(r), without=(r,))
            request.status, request.table = PREEMPTED, ()
            request.computed = request.in_flight = 0
            request.preemptions += 1
        whole = tuple(self._schedule(scheduled) for scheduled in output.scheduled)
        ended, self._ended = tuple(self._ended), []
        return structs.replace(output, step=self._step, finished=ended, scheduled=whole)

    def answered(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has been answered; what it says of requests that have ended or were preempted since is
        dropped."""
        for scheduled in output.scheduled:
            r = scheduled.request
            request = self.state.requests[r]
            if request.status == UNKNOWN or request.preemptions != scheduled.num_preemptions:
                continue
            sampled = answer.sampled.get(r, ())
            kept = sampled[: request.most - len(request.tokens)]
            rejected = scheduled.num_draft_tokens - len(sampled) + 1 if sampled else 0
            self._tell(Complete(r, scheduled.num_scheduled_tokens, rejected, kept))
            request.tokens += kept
            request.in_flight -= scheduled.num_scheduled_tokens
            request.computed -= rejected
            if len(request.tokens) == request.most:
                self._end(r)

    def aborted(self, request: int) -> None:
        """A request has been aborted."""
        self._end(request)

    def _end(self, r: int) -> None:
        self._tell(Finish(r), without=(r,))
        request = self.state.requests[r]
        request.status, request.table = UNKNOWN, ()
        self._ended.append(r)

    def _check(self, output: SchedulerOutput) -> None:
        """Raises Disagreement for a step that is more than the engine allows."""
        limits = self._setup.scheduler
        numbers = [scheduled.request for scheduled in output.scheduled]
        for r in numbers:
            if numbers.count(r) > 1:
                raise _wrong("the step", "a request once", f"request {r} {numbers.count(r)} times", r)
        if (tokens := output.num_scheduled_tokens) > limits.max_num_scheduled_tokens:
            most = f"at most {counted(limits.max_num_scheduled_tokens, 'token')}"
            raise _wrong("the step", most, str(tokens), None)
        running = {r for r in self.alive if self.state.status(r) == RUNNING}
        runs = (running - set(output.preempted)) | set(numbers)
        if len(runs) > limits.max_num_running_reqs:
            most = f"at most {counted(limits.max_num_running_reqs, 'running request')}"
            raise _wrong("the step", most, str(len(runs)), None)

    def _schedule(self, scheduled: ScheduledRequest) -> ScheduledRequest:
        """One request's part of the step, whole."""
        r = scheduled.request
        if self.state.status(r) == UNKNOWN:
            raise _wrong("the step", "requests that are alive", f"request {r}, which {self._doing(r)}", None)
        request, computed = self.state.requests[r], int(scheduled.num_computed_tokens)
        runs = request.status == RUNNING
        if scheduled.num_scheduled_tokens < 1:
            got = f"{scheduled.num_scheduled_tokens} of request {r}"
            raise _wrong("the step", "a token or more of each request", got, r)
        most = request.computed if runs else len(request.tokens) - 1
        least = most if runs else 0
        if not self._setup.config.enable_caching:
            most = min(most, request.computed)
        if not least <= computed <= most:
            expected = str(least) if least == most else f"{least} to {most}"
            raise _wrong(f"computed tokens of request {r}", expected, str(computed), r)
        table = self._table(scheduled, request if runs else None)
        table = self._in_window(table, request.computed - request.in_flight if runs else computed)
        old = request.table if runs else ()
        goes_on = runs and all(new in (was, 0) for was, new in zip(old, table, strict=False))
        new_blocks = table[len(old) :] if goes_on else table
        hits = () if runs else table[: -(-computed // self._setup.config.block_size)]
        call = Allocate(r, int(scheduled.num_scheduled_tokens))
        result = Result(hits=hits, new_blocks=table[len(old if goes_on else hits) :])
        ends_at = computed + call.new
        self._tell(call, result, {r: table}, rows=self._rows(request, computed, ends_at))
        request.status, request.table = RUNNING, table
        request.computed = ends_at
        request.in_flight += call.new
        return structs.replace(
            scheduled,
            num_preemptions=request.preemptions,
            new_blocks=new_blocks,
            tokens=None if goes_on else tuple(request.tokens),
            table=None,
        )

    def _rows(self, request: _Request, computed: int, ends_at: int) -> Iterator[str]:
        """Of coverage, by what a request is given."""
        if self._setup.config.sliding_window is not None:
            yield "engine: sliding window"
        if request.status == RUNNING:
            return
        if computed:
            yield "admitted: with a hit"
        if request.status == PREEMPTED:
            yield "admitted: again, after a preemption"
        if ends_at < len(request.tokens):
            yield "admitted: with a chunk of the prompt"

    def _table(self, scheduled: ScheduledRequest, before: _Request | None) -> tuple[int, ...]:
        table = scheduled.table
        if table is None:
            table = (*(before.table if before else ()), *scheduled.new_blocks)
        table, last = tuple(map(int, table)), self._setup.config.num_blocks - 1
        for block in table:
            if not 0 <= block <= last:
                place = f"the block table of request {scheduled.request}"
                raise _wrong(place, f"blocks 0 to {last}", str(block), scheduled.request)
        return table

    def _in_window(self, table: tuple[int, ...], settled: int) -> tuple[int, ...]:
        """The table without the blocks that a window has left: a scheduler may have given them away."""
        window, size = self._setup.config.sliding_window, self._setup.config.block_size
        first = 0 if window is None else max(0, settled - window + 1) // size
        return tuple(0 if index < first else block for index, block in enumerate(table))

    def _doing(self, r: int) -> str:
        return _DOING[self.state.status(r)]

    def _tell(
        self,
        call: Call,
        result: Result | None = None,
        tables: dict[int, tuple[int, ...]] | None = None,
        without: Iterable[int] = (),
        rows: Iterable[str] = (),
    ) -> None:
        """Told before the ledger has it, with the tables as they are after it."""
        step = Step(call, result or Result(), self._snapshot(tables or {}, without))
        self._audience.tell(step)
        self._audience.saw(step, self.state, list(rows))

    def _snapshot(
        self, tables: dict[int, tuple[int, ...]] | None = None, without: Iterable[int] = ()
    ) -> Snapshot:
        """The block tables; nothing is known of free blocks and keys."""
        blocks = self._setup.config.num_blocks
        now = {r: request.table for r, request in self.state.requests.items()} | (tables or {})
        now = {r: table for r, table in now.items() if table and r not in tuple(without)}
        held = [block for table in now.values() for block in table]
        references = [0] * blocks
        for block in held:
            references[block] += block > 0
        return Snapshot(
            ref_cnt=tuple(references), hashes=(None,) * blocks, tables=now, usage=usage_of(blocks, 0)
        )


def _wrong(field: str, expected: str, got: str, request: int | None) -> Disagreement:
    return Disagreement([Difference(field, expected, got)], request=request)
