"""Our scheduler, behind the gate's protocol."""

from __future__ import annotations

from slotproof.impl.scheduler.protocol import Arrival
from slotproof.impl.scheduler.scheduler import Scheduler
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput


class TorchScheduler:
    """See `GatedScheduler` (`impl/scheduler/protocol.py`).

    Args:
        scheduler: The one that does the work.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def add(self, arrival: Arrival) -> None:
        """A request arrives and waits."""
        self._scheduler.add_request(
            arrival.request,
            arrival.tokens,
            max_tokens=arrival.max_tokens,
            salt=arrival.salt,
            lora=arrival.lora,
            priority=arrival.priority,
            skip_reading_prefix_cache=arrival.skip_reading_prefix_cache,
        )

    def schedule(self) -> SchedulerOutput:
        """The next step."""
        return self._scheduler.schedule()

    def answer(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """A step has run, or loads have arrived."""
        self._scheduler.update_from_output(output, answer)

    def abort(self, request: int) -> None:
        """The request ends, whatever it is doing."""
        self._scheduler.finish_requests((request,))

    def reset(self, reset_running_requests: bool) -> bool:
        """Forget all cached blocks; whether it was done."""
        return self._scheduler.reset_prefix_cache(reset_running_requests)
