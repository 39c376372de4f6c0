"""The model beside a live manager: it takes each call as the caller made it, and both are compared.

The caller's ledger is not the model's own here: what a scheduler keeps of a request is read off the request
at each call. A call outside the caller's contract is told as such, and followed as far as it can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from slotproof.impl.protocol import Config
from slotproof.impl.vllm.live.events import (
    AllocateSlots,
    Behind,
    Blocks,
    CacheBlocks,
    Event,
    Evict,
    Free,
    FreeLater,
    LookUp,
    PopForFree,
    RecordForZeroing,
    RemoveSkipped,
    Reset,
    TakeNew,
)
from slotproof.model.integers.sparse import Sparse
from slotproof.model.language.changes import Change, one
from slotproof.model.language.keys import block_key
from slotproof.model.language.state import HAND, NULL_BLOCK, RUNNING, WAITING
from slotproof.model.running import Running, Stuck
from slotproof.model.scheduling.caller import allocate_contract, cache_blocks_contract
from slotproof.model.system import coordinator, pool
from slotproof.model.system.allocate_slots import Ask, allocate_slots
from slotproof.model.system.prefix_cache import Hits, get_computed_blocks
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.gate.by_itself.consistency import Consistency
from slotproof.proofs.gate.compare import Difference, difference, new_blocks, to_zero
from slotproof.proofs.watch.ledgers import Ledgers
from slotproof.proofs.watch.look import Look, MakeLook
from slotproof.proofs.watch.summary import Summary
from slotproof.proofs.watch.violation import Violation

KEPT = 12
"""Calls before a violation that are told with it."""
MANY_IDS = 200_000
"""Prefixes and keys that are told apart before those that nobody needs are forgotten."""


class Follower:
    """Follows one manager.

    Args:
        config: Its configuration, as `impl/vllm/live/describe.py` reads it.
        look: Makes what compares the manager's state with the model's.
        summary: Where it is counted.
        name: What it is called.
        unseen: What of it is not compared.
    """

    def __init__(
        self,
        config: Config,
        look: MakeLook,
        summary: Summary,
        name: str = "manager",
        unseen: tuple[str, ...] = (),
    ) -> None:
        self.name = f"{name} ({config.num_blocks} blocks of {config.block_size} tokens)"
        self.violation: Violation | None = None
        self.stopped = ""
        """Why the calls from now on are not followed; "" while they are."""
        self.summary = summary
        self._config = config
        self._running = Running(**model_config(config))
        assert isinstance(self._running.read, Sparse)
        self._read: Sparse = self._running.read
        self._zeroing = not any(what.startswith("the blocks to zero") for what in unseen)
        self._ledgers = Ledgers(self._running)
        self._popped: dict[tuple[int, ...], int] = {}
        self._ids_before = 0
        self._outside: list[str] = []
        self._before: deque[Event] = deque(maxlen=KEPT)
        self._look: Look = look(self._running, self._ledgers.names, self._zeroing)
        self._take: dict[type[Any], Callable[[Any], list[Difference]]] = {
            LookUp: self._look_up,
            AllocateSlots: self._allocate,
            CacheBlocks: self._cache,
            RemoveSkipped: self._remove_skipped,
            Free: self._free,
            PopForFree: self._pop,
            FreeLater: self._free_later,
            Evict: self._evict,
            Reset: self._reset,
            TakeNew: self._take_new,
            RecordForZeroing: self._record,
        }
        summary.managers += 1
        summary.followed += 1
        summary.several_groups += bool(config.groups)
        summary.unseen.update(unseen)
        if self._look.whole():
            self.stop("it was in use before it was followed")

    def before(self) -> None:
        """A call is about to be made: whatever was written since the last one, no call did."""
        if self.stopped:
            return
        if not self._look.is_as_before():
            self.stop("its pool or tables were written behind its back")

    def __call__(self, event: Event) -> None:
        """A call was made."""
        if isinstance(event, Behind) and not self.stopped:
            self.stop(event.what)
        if self.stopped:
            self.summary.not_followed[self.stopped] += 1
            return
        self._outside = []
        self._read.changed.clear()
        self._read.overall.clear()
        try:
            raised = getattr(event, "raised", "")
            found = self._of_raising(event) if raised else self._take[type(event)](event)
            self._settle()
        except (Stuck, KeyError, IndexError) as error:
            self.stop(f"the model cannot go on after a call outside the contract: {error}")
            self.summary.not_followed[self.stopped] += 1
            return
        if self.stopped:
            self.summary.not_followed[self.stopped] += 1
            return
        found = found or self._look.after_call()
        if not found:
            self.summary.outside.update(self._outside)
            self.summary.calls += 1
            self.summary.lookups += isinstance(event, LookUp)
            self._before.append(event)
        elif self._outside:
            self.stop(f"outside the contract the model does otherwise: {', '.join(self._outside)}")
            self.summary.not_followed[self.stopped] += 1
        else:
            self._violated(event, found)

    def at_rest(self) -> None:
        """No call is under way: all of the state is compared, as far as it can be seen."""
        if not self.stopped and (found := self._look.whole()):
            last = self._before[-1] if self._before else Behind(0, "before the first call")
            self._violated(last, found)

    def _violated(self, event: Event, found: list[Difference]) -> None:
        statements: list[Difference] = []
        if not self._config.groups:  # the statements' own eyes know one group
            shown = self._look.snapshot()
            if shown is not None:
                hidden = frozenset() if self._zeroing else frozenset({"to_zero"})
                statements = Consistency(self._config, hidden).state(shown)
        self.violation = Violation(self.name, event, tuple(found), tuple(statements), tuple(self._before))
        self.summary.violations += 1
        self.stop("a call before it was not as the model has it")

    def stop(self, why: str) -> None:
        """Calls are not followed from now on."""
        if not self.stopped:
            self.stopped = why
            self.summary.stopped += 1

    def _of_raising(self, event: Any) -> list[Difference]:
        """A call that raised: whether the contract allowed it. It should have changed nothing."""
        if isinstance(event, AllocateSlots):
            r = self._ledgers.set(event.ledger)
            self._check(allocate_contract(self._running.state, r, self._ask(event, r)))
        elif isinstance(event, CacheBlocks):
            r = self._ledgers.set(event.ledger)
            self._check(cache_blocks_contract(self._running.state, r, event.tokens))
        else:
            self._outside.append("a call that raises")
        return [Difference("the call", "an answer", f"it raised {event.raised}")] if not self._outside else []

    def _check(self, contract: dict[str, Any]) -> None:
        self._outside += [name for name, holds in contract.items() if not holds]

    # The calls.

    def _look_up(self, event: LookUp) -> list[Difference]:
        r = self._ledgers.set(event.ledger)
        if not self._config.enable_caching or event.ledger.skips_cache:
            expected: tuple[int, Blocks] = (0, ())
            junction = 0
        else:
            hits = get_computed_blocks(self._running.state, r)
            junction = hits.junction
            groups = range(self._running.engine.groups.num)
            blocks = tuple(tuple(hits.at(g, i) for i in range(hits.num(g))) for g in groups)
            expected = (hits.tokens, blocks)
        got = (event.tokens, event.blocks if any(event.blocks) else ())
        if expected[0] == 0:
            expected = (0, ())
        if expected != got:
            return [difference("the hit: tokens, blocks", expected, got)]
        if self._config.retention_interval is None or junction == event.junction:
            return []
        return [difference("where the groups do not agree", junction, event.junction)]

    def _ask(self, event: AllocateSlots, r: int) -> Ask:
        s, engine = self._running.state, self._running.engine
        rows = [engine.row(r, g) for g in range(engine.groups.num)]
        hits = event.hits if any(event.hits) else ()
        if any(s.length(row) for row in rows):
            if hits:
                self._outside.append("a hit is for a request without blocks")
            hits = ()
        for row, found in zip(rows, hits, strict=False):
            for i, b in enumerate(found):
                if b != NULL_BLOCK and s.block_hash(b) != block_key(engine, row, i):
                    self._outside.append("a hit is of blocks that a lookup finds now")
                    break
        return Ask(
            new=event.new,
            hits=Hits(event.hit_tokens, lambda g: len(hits[g]) if hits else 0, lambda g, i: hits[g][i]),
            lookahead=event.lookahead,
            external=event.external,
            delay_cache=event.delay_cache,
            must_fit=event.must_fit,
            reserved=event.reserved,
            has_scheduled=event.has_scheduled,
            skip_zeroing=bool(event.skip_zeroing),
        )

    def _allocate(self, event: AllocateSlots) -> list[Difference]:
        r = self._ledgers.set(event.ledger)
        engine, s = self._running.engine, self._running.state
        ask = self._ask(event, r)
        seen = s
        if s.status(r) == WAITING and s.length(engine.row(r, 0)):  # who drives a manager alone sets none
            seen = s.replace(status=Change(s.status, one(r), RUNNING))
        self._check(allocate_contract(seen, r, ask))
        if 0 < len(event.skip_zeroing) < engine.groups.num and self._zeroing:
            self._outside.append("zeroing is skipped for all groups or none")
        answer = allocate_slots(s, r, ask)
        self._running.take(answer.state)
        got = None if event.answer is None else tuple(b for group in event.answer for b in group)
        expected = new_blocks(answer.state, r, answer) if answer.granted else None
        if expected == got:
            return []
        if None in (expected, got):
            words = tuple("a refusal" if x is None else "a grant" for x in (expected, got))
            return [Difference("the answer", *words)]
        return [difference("result.new_blocks", expected, got)]

    def _cache(self, event: CacheBlocks) -> list[Difference]:
        r = self._ledgers.set(event.ledger)
        self._check(cache_blocks_contract(self._running.state, r, event.tokens))
        self._running.take(coordinator.cache_blocks(self._running.state, r, event.tokens))
        return []

    def _remove_skipped(self, event: RemoveSkipped) -> list[Difference]:
        r = self._ledgers.numbers.get(event.request)
        if r is not None:
            s = self._running.state
            self._running.take(coordinator.remove_skipped_blocks(s, r, event.processed))
        return []

    def _free(self, event: Free) -> list[Difference]:
        r = self._ledgers.set(event.ledger)
        self._running.take(coordinator.free(self._running.state, r))
        self._ledgers.forget(r)
        return []

    def _pop(self, event: PopForFree) -> list[Difference]:
        """The request's rows are nobody's from now on, until their blocks go back."""
        r = self._ledgers.set(event.ledger)
        engine, s = self._running.engine, self._running.state
        rows = [engine.row(r, g) for g in range(engine.groups.num)]
        live = tuple(s.table(row, i) for row in rows for i in range(s.length(row)))
        if tuple(event.blocks) != live:
            return [difference("blocks to free later", live, event.blocks)]
        if any(live):
            self._popped[tuple(reversed(live))] = r
        self._ledgers.lose(event.ledger.request)
        return []

    def _free_later(self, event: FreeLater) -> list[Difference]:
        r = self._popped.pop(event.blocks, None)
        if r is None:
            self.stop("blocks were freed that no call had taken out for it")
            return []
        engine = self._running.engine
        front = 0
        for g in reversed(range(engine.groups.num)):
            s, row = self._running.state, engine.row(r, g)
            if s.length(row) > s.first(row):
                s = pool.free_blocks(pool.release(s, row, s.length(row)).replace(front=front), g)
                front = s.front
            self._running.take(pool.clear_table(s, row))
        self._ledgers.forget(r)
        return []

    def _evict(self, event: Evict) -> list[Difference]:
        named = frozenset(event.blocks).__contains__
        self._running.take(pool.evict_blocks(self._running.state, named))
        return []

    def _reset(self, event: Reset) -> list[Difference]:
        s = self._running.state
        done = bool(s.num_held == 0)
        self._running.take(pool.reset_prefix_cache(s))
        return [] if done == event.done else [difference("the answer", done, event.done)]

    def _take_new(self, event: TakeNew) -> list[Difference]:
        expected = to_zero(self._running.state)
        self._drained()
        if not self._zeroing or expected == event.blocks:
            return []
        return [difference("blocks to zero", expected, event.blocks)]

    def _record(self, event: RecordForZeroing) -> list[Difference]:
        r, engine = self._ledgers.numbers.get(event.request), self._running.engine
        if r is not None:
            for g in range(engine.groups.num):
                s, row = self._running.state, engine.row(r, g)
                low = event.start // engine.groups.block_size(g)
                if low < s.length(row):
                    self._running.take(pool.record_for_zeroing(s, row, low, s.length(row)))
        return []

    # Nothing grows that need not.

    def _drained(self) -> None:
        s = self._running.state
        self._running.take(s.replace(num_to_zero=lambda g: 0))

    def _settle(self) -> None:
        s = self._running.state
        if not self._zeroing and any(s.num_to_zero(g) for g in range(s.engine.groups.num)):
            self._drained()
        assert s.length(HAND) == 0
        if self._read.num_ids > max(MANY_IDS, 2 * self._ids_before):
            keys = self._look.keys_in_use()
            self._read.forget_all_but(keys)
            self._ids_before = self._read.num_ids
