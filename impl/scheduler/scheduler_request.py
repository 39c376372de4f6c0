"""A request as the scheduler sees it, and the queue in which requests wait."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from slotproof.impl.allocator.request import RequestStatus
from slotproof.impl.scheduler.scheduler_config import SchedulingPolicy


@dataclass(eq=False)
class SchedulerRequest:
    """Counts are tokens."""

    request_id: int
    tokens: list[int]
    """Final tokens: the prompt, then what was sampled."""
    max_tokens: int
    """Tokens to sample, at most."""
    priority: int = 0
    arrival: int = 0
    """Number of its arrival, which orders requests of one priority."""
    skip_reading_prefix_cache: bool = False
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_output_placeholders: int = 0
    """Tokens that steps in flight will sample if every draft is kept (asynchronous scheduling)."""
    num_drafts: int = 0
    """Drafts to schedule in the next step."""
    num_preemptions: int = 0
    is_aborted: bool = False
    """Its end waits for the arrival of its load."""
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def rank(self) -> tuple[int, int]:
        """Its place under the priority policy: smaller goes first."""
        return self.priority, self.arrival

    @property
    def holds_blocks(self) -> bool:
        """Whether the manager has granted it slots."""
        return self.num_computed_tokens > 0

    @property
    def is_prefill_chunk(self) -> bool:
        """Whether tokens are known that no step has been given yet: such a request samples nothing."""
        return self.num_computed_tokens < self.num_tokens + self.num_output_placeholders

    @property
    def sampling_is_scheduled(self) -> bool:
        """Whether steps in flight sample its last token, even if they reject every draft."""
        in_flight = self.num_output_placeholders
        certain = self.num_computed_tokens + 2 - in_flight
        return in_flight > 0 and certain >= self.num_prompt_tokens + self.max_tokens


class RequestQueue:
    """Waiting requests, in the order of the policy."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._requests: list[SchedulerRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[SchedulerRequest]:
        return iter(self._requests)

    def add(self, request: SchedulerRequest) -> None:
        """A request arrives."""
        if self._policy is SchedulingPolicy.PRIORITY:
            insort(self._requests, request, key=lambda r: r.rank)
        else:
            self._requests.append(request)

    def prepend(self, request: SchedulerRequest) -> None:
        """A request that was scheduled before comes back: to the front, but for its priority."""
        if self._policy is SchedulingPolicy.PRIORITY:
            self.add(request)
        else:
            self._requests.insert(0, request)

    def remove(self, request: SchedulerRequest) -> None:
        """A request leaves."""
        self._requests.remove(request)
