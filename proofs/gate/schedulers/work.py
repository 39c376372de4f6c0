"""What a scheduler owes its requests: no work is withheld that could be done, and none is lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from slotproof.impl.protocol import AddRequest, Allocate, Call, Finish, Preempt, Result
from slotproof.impl.scheduler.protocol import Arrival, Setup
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.model.language.state import RUNNING, UNKNOWN
from slotproof.proofs.gate.compare import Difference
from slotproof.proofs.gate.schedulers.follower import View
from slotproof.proofs.output.words import counted

WITHHELD = "A request that preempts itself ends the pass for those behind it"
"""The section of KNOWN.md."""

HasSlots = Callable[[int, int], bool]
"""Whether a request has slots for so many tokens."""


class Work:
    """Follows one scheduler. States are the model's.

    *Withheld*: a request that ran before a pass, and still does, has a known token that was not computed, the
    slots for it, and budget is left, and yet it is not in the step (vllm#49097). *Lost*: a request ran from
    when a step was scheduled until it was answered, and does not have the tokens that the step sampled for it
    (vllm-gaudi#1794), or ends before it has all that it came for.

    Args:
        setup: The engine.
        known: Counts what is withheld in the one way that KNOWN.md tells of; None where that is no excuse.
        may_wait: Whether running requests may be made to wait for others.
    """

    def __init__(self, setup: Setup, known: Counter[str] | None, may_wait: bool = False) -> None:
        self._config, self._limits = setup.config, setup.scheduler
        self._known = known
        self._may_wait = may_wait
        self._most: dict[int, int] = {}
        self._preemptions: Counter[int] = Counter()
        self._scheduled: deque[dict[int, int]] = deque()
        self._refused = self._ended = -1
        self._ran: list[int] = []
        self._one_preempted_itself = False

    def arrives(self, arrival: Arrival) -> None:
        """A request is about to come."""
        self._most[arrival.request] = min(
            len(arrival.tokens) + arrival.max_tokens, self._config.max_model_len
        )

    def call(self, call: Call, result: Result) -> None:
        """The manager has been called."""
        if isinstance(call, Allocate):
            self._refused = -1 if result.granted else call.request
        elif isinstance(call, Preempt):
            self._preemptions[call.request] += 1
            self._one_preempted_itself |= call.request == self._refused
        elif isinstance(call, Finish):
            self._ended = call.request
        elif isinstance(call, AddRequest):  # one that nobody announced is the one that just ended, again
            self._most.setdefault(call.request, self._most.get(self._ended, self._config.max_model_len))

    def step_begins(self, requests: list[int], s: View) -> None:
        """A step is about to be scheduled."""
        self._ran = [r for r in requests if s.status(r) == RUNNING]
        self._one_preempted_itself = False

    def withheld(
        self, output: SchedulerOutput, s: View, has_slots: HasSlots
    ) -> Iterator[tuple[int, Difference]]:
        """What a step that has just been scheduled leaves out, and of whom."""
        self._scheduled.append({x.request: self._preemptions[x.request] for x in output.scheduled})
        if self._may_wait or output.num_scheduled_tokens >= self._limits.max_num_scheduled_tokens:
            return
        owed = [r for r in self._ran if r not in self._scheduled[-1] and self._is_owed(r, s, has_slots)]
        if owed and self._known is not None and self._one_preempted_itself:
            self._known[WITHHELD] += 1
            return
        left = self._limits.max_num_scheduled_tokens - output.num_scheduled_tokens
        have = f"it has {counted(left, 'token')} of budget left, and the request the slots for one"
        for r in owed:
            yield r, Difference("work-withheld", f"request {r} in the step", f"none: {have}")

    def _is_owed(self, r: int, s: View, has_slots: HasSlots) -> bool:
        """It runs, and a token of it could be computed without a new block."""
        need = min(s.computed(r) + 1 + self._limits.num_lookahead_tokens, self._config.max_model_len)
        return bool(s.status(r) == RUNNING and s.computed(r) < s.num_tokens(r) and has_slots(r, need))

    def due(self, answer: ModelRunnerOutput, s: View) -> dict[int, int]:
        """The tokens that requests must have when the oldest step has been answered; before it is."""
        return {
            r: min(s.num_tokens(r) + len(answer.sampled.get(r, ())), self._most[r])
            for r, preemptions in self._scheduled.popleft().items()
            if s.status(r) == RUNNING and self._preemptions[r] == preemptions
        }

    def lost(self, due: dict[int, int], s: View) -> Iterator[tuple[int, Difference]]:
        """What is missing of what was `due`, and to whom, now that the step has been answered."""
        for r, tokens in due.items():
            if s.num_tokens(r) != tokens:
                got = f"{s.num_tokens(r)}: what was sampled is lost"
                yield r, Difference("work-lost", f"request {r} to have {counted(tokens, 'token')}", got)
            elif s.status(r) == UNKNOWN and tokens < self._most[r]:
                due_in_all = f"request {r} to have {self._most[r]} tokens"
                yield r, Difference("work-lost", due_in_all, f"{tokens}: it ended")
