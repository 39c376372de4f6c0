"""What an adapter writes: the few things that only its allocator knows. The caller's side is done here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from slotproof.impl.capabilities import Unsupported
from slotproof.impl.ledger import Entry, Ledger
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)


class Hit(NamedTuple):
    """What a lookup found."""

    blocks: tuple[int, ...] = ()
    """By block-table index, 0 for skipped ones."""
    num_tokens: int = 0
    own: Any = None
    """What the adapter's `allocate` wants back; nobody else looks at it."""


NO_HIT = Hit()


class Adapter(ABC):
    """`Allocator` (`impl/protocol.py`) around one allocator, with the caller's ledger kept for it.

    A subclass says how its allocator allocates and frees, and what can be seen of it; the other methods
    only if the allocator can do that, and in `lacks` what it cannot. None is asked for what the contract
    forbids. A method that raises must have changed nothing.

    Args:
        config: Sizes and policy.
    """

    lacks: Collection[str] = ()
    """Names of `impl/capabilities.py`: what is neither drawn nor compared."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.ledger = Ledger(config)
        self._steps: dict[type[Call], Callable[[Any], Result]] = {
            AddRequest: self._add_request,
            Allocate: self._allocate,
            Execute: lambda _: Result(),
            Complete: self._complete,
            CacheBlocks: self._cache_blocks,
            RemoveSkipped: self._remove_skipped,
            Preempt: self._preempt,
            Finish: self._finish,
            EvictBlocks: self._evict_blocks,
            ResetPrefixCache: lambda _: Result(granted=self.reset()),
            TakeNewBlockIds: lambda _: Result(new_blocks=self.take_new_block_ids()),
        }

    @abstractmethod
    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        """Blocks so that the request has slots for its computed tokens, the hit's, `call.external` ones,
        `call.new` ones and `call.lookahead` ones: those returned as new, in order, or None for a refusal.

        `entry` is as before the call; `hit` is what `find` answered, or `NO_HIT`.
        """

    @abstractmethod
    def free(self, entry: Entry) -> None:
        """The request loses all its blocks: it is preempted, or ends."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The state now; it must not change anything."""

    def add(self, entry: Entry) -> None:  # noqa: B027 (an allocator need not know)
        """A request arrives; `entry.own` may keep what the allocator wants of it."""

    def find(self, entry: Entry) -> Hit:
        """What the prefix cache has of the request, which has no blocks; nothing changes."""
        self._unless_caching()
        return NO_HIT

    def publish(self, entry: Entry, num_tokens: int) -> None:
        """The blocks that the request's first tokens fill can be found from now on, where they are cached."""
        self._unless_caching()

    def release(self, entry: Entry) -> None:
        """Blocks before the attention window of token `entry.settled` go back, where there is a window."""
        if self.config.sliding_window is not None:
            raise Unsupported("sliding_window")

    def evict(self, blocks: tuple[int, ...]) -> None:
        """The blocks can be found no longer."""
        raise Unsupported("evict_blocks")

    def reset(self) -> bool:
        """No block can be found any longer, if none is held; whether it was done."""
        raise Unsupported("reset_prefix_cache")

    def take_new_block_ids(self) -> tuple[int, ...]:
        """The blocks to zero before the next step, in order; from now on there are none."""
        raise Unsupported("take_new_block_ids")

    def _unless_caching(self) -> None:
        if self.config.enable_caching:
            raise Unsupported("prefix_caching")

    def step(self, call: Call) -> Result:
        """Make one call. `hits` is what the lookup found, also when slots are then refused.

        Raises:
            IllegalCall: the caller's contract forbids the call; nothing has changed.
            Exception: what the allocator raises.
        """
        return self._steps[type(call)](call)

    def _add_request(self, call: AddRequest) -> Result:
        entry = self.ledger.arrival(call)
        self.add(entry)
        self.ledger.enter(entry)
        return Result()

    def _allocate(self, call: Allocate) -> Result:
        entry = self.ledger.entry(call)
        looks_up = entry.waits and entry.computed == 0 and not call.skip_cache
        hit = self.find(entry) if looks_up else NO_HIT
        self.ledger.check_allocate(entry, call, hit.num_tokens)
        new_blocks = self.allocate(entry, call, hit)
        if new_blocks is None:
            return Result(granted=False, hits=hit.blocks)
        self.ledger.advance(entry, call, hit.num_tokens)
        return Result(hits=hit.blocks, new_blocks=new_blocks)

    def _complete(self, call: Complete) -> Result:
        self.ledger.settle(call)
        return Result()

    def _cache_blocks(self, call: CacheBlocks) -> Result:
        entry = self.ledger.entry(call)
        self.publish(entry, self.ledger.to_publish(entry, call))
        if call.tokens is None:
            self.ledger.loaded(entry)
        return Result()

    def _remove_skipped(self, call: RemoveSkipped) -> Result:
        entry = self.ledger.entry(call)
        self.ledger.check_has_blocks(call, entry)
        self.release(entry)
        return Result()

    def _preempt(self, call: Preempt) -> Result:
        entry = self.ledger.running(call)
        self.free(entry)
        self.ledger.preempted(entry)
        return Result()

    def _finish(self, call: Finish) -> Result:
        entry = self.ledger.entry(call)
        self.free(entry)
        self.ledger.finished(entry)
        return Result()

    def _evict_blocks(self, call: EvictBlocks) -> Result:
        self.ledger.check_blocks(call)
        self.evict(call.blocks)
        return Result()
