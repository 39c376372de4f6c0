"""The model behind the protocol: the implementation that agrees, and with a rule off, one that does not.

What the gate itself is tried on. `slotproof gate --impl slotproof.proofs.gate.model_allocator:ModelAllocator`
compares the model's allocator under the adapters' ledger with the model under its own.
"""

from __future__ import annotations

from slotproof.impl.adapter import Adapter, Hit
from slotproof.impl.ledger import Entry, Status
from slotproof.impl.protocol import Allocate, Config, Snapshot
from slotproof.model.language.algebra import Function
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, WAITING, State
from slotproof.model.running import Running, Text
from slotproof.model.scheduling.caller import note_junction
from slotproof.model.system.allocate_slots import Ask, allocate_slots
from slotproof.model.system.coordinator import cache_blocks, free, remove_skipped_blocks
from slotproof.model.system.pool import evict_blocks, reset_prefix_cache
from slotproof.model.system.prefix_cache import NO_HITS, get_computed_blocks
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.compare import expected_snapshot, hit_blocks, new_blocks, to_zero

_STATUS = {
    Status.WAITING: WAITING,
    Status.LOADING: LOADING,
    Status.RUNNING: RUNNING,
    Status.PREEMPTED: PREEMPTED,
}


class ModelAllocator(Adapter):
    """An `Allocator` that decides as the model does under some rules, all of them unless given. With a rule
    off a call may raise Stuck: it failed half way; nothing has changed."""

    has_groups = True
    has_more = True

    def __init__(self, config: Config, rules: Rules | None = None) -> None:
        super().__init__(config)
        self._running = Running(**model_config(config), rules=rules)

    def find(self, entry: Entry) -> Hit:
        if not self.config.enable_caching:
            return Hit()
        hits = get_computed_blocks(self.state_of(entry), entry.number)
        return Hit(hit_blocks(self._running.engine, hits), hits.tokens, hits)

    def ask(self, call: Allocate, hit: Hit) -> Ask:
        """A call's question."""
        return Ask(
            new=call.new,
            hits=hit.own or NO_HITS,
            lookahead=call.lookahead,
            external=call.external,
            delay_cache=call.delay_cache,
            must_fit=call.must_fit,
            reserved=call.reserved,
            has_scheduled=call.has_scheduled,
            skip_zeroing=call.skip_zeroing,
        )

    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        r, ask = entry.number, self.ask(call, hit)
        answer = allocate_slots(note_junction(self.state_of(entry), r, ask.hits), r, ask)
        self._running.take(answer.state)
        if not answer.granted:
            return None
        return new_blocks(answer.state, r, answer)

    def publish(self, entry: Entry, num_tokens: int) -> None:
        self._running.take(cache_blocks(self.state_of(entry), entry.number, num_tokens))

    def release(self, entry: Entry) -> None:
        self._running.take(remove_skipped_blocks(self.state_of(entry), entry.number, entry.settled))

    def free(self, entry: Entry) -> None:
        self._running.take(free(self.state_of(entry), entry.number))

    def evict(self, blocks: tuple[int, ...]) -> None:
        self._running.take(evict_blocks(self._running.state, frozenset(blocks).__contains__))

    def reset(self) -> bool:
        before = self._running.state
        self._running.take(reset_prefix_cache(before))
        return bool(before.num_held == 0)

    def take_new_block_ids(self) -> tuple[int, ...]:
        s = self._running.state
        self._running.take(s.replace(num_to_zero=lambda g: 0))
        return to_zero(s)

    def snapshot(self) -> Snapshot:
        """The state now."""
        return expected_snapshot(self._running)

    def state_of(self, entry: Entry) -> State:
        """The model's state, with the request as the ledger has it now."""
        running, r = self._running, entry.number
        running.read.texts = {**running.read.texts, r: Text(tuple(entry.tokens), entry.salt, entry.lora)}
        s = running.state
        return s.replace(
            status=_at(r, _STATUS[entry.status], s.status),
            num_tokens=_at(r, len(entry.tokens), s.num_tokens),
            prompt=_at(r, entry.num_prompt_tokens, s.prompt),
            computed=_at(r, entry.computed, s.computed),
            in_flight=_at(r, entry.in_flight, s.in_flight),
        )


def _at(request: int, value: int, elsewhere: Function) -> Function:
    return lambda r: value if r == request else elsewhere(r)
