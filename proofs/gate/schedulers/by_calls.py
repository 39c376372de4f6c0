"""Follows a scheduler by the calls that it makes of its manager: the model takes each of them too."""

from __future__ import annotations

from collections.abc import Callable

from slotproof.impl.protocol import AddRequest, Call, Config, Finish, Result, Snapshot, TakeNewBlockIds
from slotproof.impl.scheduler.scheduler_output import SchedulerOutput
from slotproof.model.language.state import UNKNOWN, State
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    expected_snapshot,
    list_difference,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.oracle import Expectation, expect
from slotproof.proofs.gate.schedulers.disagreement import Disagreement


class ByCalls:
    """The model beside one manager.

    Args:
        config: The manager's configuration.
        tell: Is told of every call, as the model tells it.
        saw: Is told of every call that agrees, with what was answered and shown.
    """

    def __init__(
        self,
        config: Config,
        tell: Callable[[Expectation], None],
        saw: Callable[[Expectation, Result, Snapshot], None],
    ) -> None:
        self.model = Running(**model_config(config))
        self.initial = expected_snapshot(self.model)
        self._tell = tell
        self._saw = saw
        self._keys = KeyMatch()
        self._to_zero: tuple[int, ...] = ()
        self._names: dict[int, int] = {}
        self._ended = -1

    @property
    def state(self) -> State:
        """What is true of the requests."""
        return self.model.state

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        return [r for r in self.model.requests if self.state.status(r) != UNKNOWN]

    def name(self, request: int) -> int:
        """The number under which it arrived: a scheduler may have one end and come again under another."""
        return self._names.get(request, request)

    def observe(self, call: Call, result: Result, snapshot: Snapshot) -> None:
        """The manager has been called.

        Raises:
            Disagreement: it should not have been, or did otherwise than the model.
        """
        request = getattr(call, "request", None)
        try:
            e = expect(self.model, call)
        except ContractError as error:
            found = [Difference("contract", "a call that it allows", str(error))]
            raise Disagreement(found, call, request) from None
        self._tell(e)
        found = result_differences(Strictness.EXACT, e.result, result)
        found += snapshot_differences(Strictness.EXACT, e.snapshot, snapshot, self._keys)
        if found:
            raise Disagreement(found, call, request)
        if isinstance(call, Finish):
            self._ended = call.request
        elif isinstance(call, AddRequest) and call.request not in self._names:
            self._names[call.request] = self.name(self._ended)  # nobody announced it
        elif isinstance(call, TakeNewBlockIds):
            self._to_zero = result.new_blocks
        self._saw(e, result, snapshot)

    def arrives(self, request: int) -> None:
        """A request is about to come."""
        self._names[request] = request

    def scheduled(self, output: SchedulerOutput) -> None:
        """A step has been made up.

        Raises:
            Disagreement: it does not zero what it must.
        """
        if output.new_block_ids_to_zero != self._to_zero:
            raise Disagreement(
                [list_difference("blocks to zero", self._to_zero, output.new_block_ids_to_zero)]
            )
