"""Follows a scheduler by the calls that it makes of its manager: the model takes each of them too."""

from __future__ import annotations

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Call,
    Config,
    Finish,
    Result,
    Snapshot,
    TakeNewBlockIds,
)
from slotproof.impl.scheduler.protocol import Arrival
from slotproof.impl.scheduler.scheduler_output import ModelRunnerOutput, SchedulerOutput
from slotproof.model.language.state import UNKNOWN, State
from slotproof.model.running import ContractError, Running, Stuck
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
from slotproof.proofs.gate.coverage import reached
from slotproof.proofs.gate.oracle import expect
from slotproof.proofs.gate.schedulers.disagreement import Disagreement
from slotproof.proofs.gate.schedulers.follower import Audience
from slotproof.proofs.traces.trace import Step


class ByCalls:
    """The model beside one manager.

    Args:
        config: The manager's configuration.
        audience: Is told of every call.
    """

    def __init__(self, config: Config, audience: Audience) -> None:
        self.model = Running(**model_config(config))
        self.initial = expected_snapshot(self.model)
        self._config = config
        self._audience = audience
        self._keys = KeyMatch()
        self._to_zero: tuple[int, ...] = ()
        self._loaded: set[int] = set()
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

    def has_slots(self, request: int, tokens: int) -> bool:
        """Whether a request has slots for so many tokens, in every group."""
        s = self.state
        tables = [(s.length(s.engine.row(request, g)), g) for g in range(s.engine.groups.num)]
        return all(s.engine.tokens(length, g) >= tokens for length, g in tables)

    def blocks(self, request: int) -> tuple[int, ...]:
        """Its blocks, group after group."""
        s = self.state
        rows = [s.engine.row(request, g) for g in range(s.engine.groups.num)]
        return tuple([s.table(row, i) for row in rows for i in range(s.length(row))])

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
        except Stuck as error:  # without a rule that a release lacks
            raise Disagreement([Difference("the model", str(error), "an answer")], call, request) from None
        self._audience.tell(e.step)
        found = result_differences(Strictness.EXACT, e.result, result)
        found += snapshot_differences(Strictness.EXACT, e.snapshot, snapshot, self._keys)
        if found:
            raise Disagreement(found, call, request)
        if isinstance(call, Finish):
            self._ended = call.request
        elif isinstance(call, AddRequest) and call.request not in self._names:
            self._names[call.request] = self.name(self._ended)  # nobody announced it
        elif isinstance(call, Allocate) and call.delay_cache and result.granted:
            self._loaded |= self._blocks_of_load(call)
        elif isinstance(call, TakeNewBlockIds):
            self._to_zero = result.new_blocks
        self._audience.saw(Step(call, result, snapshot), e.before, list(reached(self._config, e)))

    def _blocks_of_load(self, call: Allocate) -> set[int]:
        """Those that a load just granted writes to."""
        s, r = self.state, call.request
        end = s.computed(r)
        places = [
            (s.engine.row(r, g), i)
            for g, group in enumerate(self._config.all_groups)
            for i in range((end - call.external) // group.block_size, -(-end // group.block_size))
        ]
        return {s.table(row, i) for row, i in places}

    def arrives(self, arrival: Arrival) -> None:
        """A request is about to come."""
        self._names[arrival.request] = arrival.request

    def scheduled(self, output: SchedulerOutput) -> SchedulerOutput:
        """A step has been made up. It need not zero what a load writes: vLLM before 0.32.0 lists these
        blocks, and its scheduler leaves them out; later ones do not list them.

        Raises:
            Disagreement: it does not zero what it must.
        """
        zeroed = output.new_block_ids_to_zero
        must = tuple(b for b in self._to_zero if b in zeroed or b not in self._loaded)
        self._loaded.clear()
        if zeroed != must:
            raise Disagreement([list_difference("blocks to zero", must, zeroed)])
        return output

    def answered(self, output: SchedulerOutput, answer: ModelRunnerOutput) -> None:
        """The calls say what came of it."""

    def aborted(self, request: int) -> None:
        """The calls say so."""
