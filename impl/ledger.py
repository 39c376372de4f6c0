"""The caller's ledger: what a scheduler keeps of each request, and which calls its contract allows.

Kept once, for every allocator that is driven by the protocol's calls: an adapter is told of entries, and
decides about blocks alone (`impl/adapter.py`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from slotproof.impl.protocol import AddRequest, Allocate, CacheBlocks, Call, Complete, Config, EvictBlocks


class IllegalCall(ValueError):
    """The caller's contract forbids the call; nothing has changed."""


class Status(Enum):
    """Where a request is in its life."""

    WAITING = auto()
    LOADING = auto()
    """Blocks are granted, and an external load fills them."""
    RUNNING = auto()
    PREEMPTED = auto()


class Entry:
    """What the caller knows of one request. Only the ledger changes it; `own` is the adapter's."""

    __slots__ = (
        "computed",
        "in_flight",
        "lora",
        "num_prompt_tokens",
        "number",
        "own",
        "salt",
        "status",
        "tokens",
    )

    def __init__(self, number: int, tokens: tuple[int, ...], salt: int = 0, lora: int = 0) -> None:
        self.number = number
        self.tokens = list(tokens)
        """Final tokens: the prompt, and what was sampled."""
        self.num_prompt_tokens = len(tokens)
        self.salt = salt
        self.lora = lora
        self.status = Status.WAITING
        self.computed = 0
        """Tokens computed or scheduled, drafts included."""
        self.in_flight = 0
        """The last of these, scheduled and not yet settled."""
        self.own: Any = None
        """What an adapter keeps with the request; the ledger does not look at it."""

    @property
    def waits(self) -> bool:
        """It is to be admitted."""
        return self.status in (Status.WAITING, Status.PREEMPTED)

    @property
    def settled(self) -> int:
        """Tokens that are computed and no longer in flight; 0 if a load of its blocks brings fewer."""
        return max(0, self.computed - self.in_flight)


class Ledger:
    """The entries of the requests that are alive, and what each call does to them.

    A method that checks raises IllegalCall and changes nothing; one that changes comes after the allocator
    has done its part.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.entries: dict[int, Entry] = {}
        self._used: set[int] = set()

    def entry(self, call: Any) -> Entry:
        """The entry of the request that a call is about."""
        entry = self.entries.get(call.request)
        if entry is None:
            raise _illegal(call, "it is unknown: add it first")
        return entry

    def running(self, call: Any) -> Entry:
        """The entry of a request that has to run."""
        entry = self.entry(call)
        if entry.status is not Status.RUNNING:
            raise _illegal(call, f"it does not run, it is {entry.status.name}")
        return entry

    def arrival(self, call: AddRequest) -> Entry:
        """A new entry, to be `enter`ed once the allocator knows of it."""
        most = self.config.max_model_len
        if call.request < 0:
            raise _illegal(call, "a request's number is not negative")
        if call.request in self._used:
            raise _illegal(call, "it was added before: ids are never reused")
        if not 1 <= len(call.tokens) <= most:
            raise _illegal(call, f"it has {len(call.tokens)} tokens: 1 to max_model_len {most} are possible")
        if call.salt < 0 or call.lora < 0:
            raise _illegal(call, f"salt {call.salt} and lora {call.lora} must not be negative")
        return Entry(call.request, call.tokens, call.salt, call.lora)

    def enter(self, entry: Entry) -> None:
        """The request has arrived."""
        self.entries[entry.number] = entry
        self._used.add(entry.number)

    def check_allocate(self, entry: Entry, call: Allocate, hit_tokens: int) -> None:
        """Whether slots may be asked for, after a lookup that found `hit_tokens` tokens."""
        for name in ("new", "lookahead", "external", "reserved"):
            if getattr(call, name) < 0:
                raise _illegal(call, f"{name} is {getattr(call, name)}: counts must not be negative")
        total = entry.computed + hit_tokens + call.external
        end = total + call.new
        if entry.status is Status.LOADING:
            raise _illegal(call, "it waits for its load: cache_blocks comes first")
        if entry.status is Status.RUNNING:
            if call.new < 1 or call.external or call.delay_cache:
                raise _illegal(call, "it runs: ask for new tokens, and for nothing external")
        else:
            if call.delay_cache != (call.new == 0) or (call.delay_cache and call.external < 1):
                raise _illegal(call, "ask for new tokens, or for none with delay_cache and external ones")
            if call.external and entry.computed:
                raise _illegal(call, f"it has {entry.computed} computed tokens: no external ones on top")
            if total + max(call.new, 1) > len(entry.tokens):
                hit = f" with a hit of {hit_tokens}" if hit_tokens else ""
                raise _illegal(call, f"{total} computed{hit} + {call.new} new of {len(entry.tokens)} tokens")
        if end > self.config.max_model_len:
            raise _illegal(call, f"{total} computed + {call.new} new tokens exceed max_model_len")
        if entry.in_flight + call.new > self.config.max_in_flight_tokens:
            raise _illegal(call, f"{entry.in_flight} in flight + {call.new} new exceed max_in_flight_tokens")

    def advance(self, entry: Entry, call: Allocate, hit_tokens: int) -> None:
        """Slots were granted: the request is scheduled, or waits for its load."""
        entry.computed += hit_tokens + call.external + call.new
        entry.in_flight += call.new
        entry.status = Status.LOADING if call.delay_cache else Status.RUNNING

    def settle(self, call: Complete) -> None:
        """Tokens in flight have run: drafts are rejected, sampled tokens become final. Checks first."""
        entry = self.running(call)
        tokens = len(entry.tokens)
        if not 1 <= call.processed <= entry.in_flight:
            raise _illegal(call, f"{call.processed} tokens processed, {entry.in_flight} in flight")
        if not 0 <= call.rejected <= call.processed:
            raise _illegal(call, f"{call.rejected} of {call.processed} processed tokens rejected")
        ran = entry.computed - entry.in_flight + call.processed
        if ran - call.rejected < min(ran, tokens):
            raise _illegal(call, f"{call.rejected} rejected: only drafts past {tokens} tokens can be")
        limit = min(self.config.max_model_len, ran - call.rejected + 1)
        if call.sampled and tokens + len(call.sampled) > limit:
            raise _illegal(call, f"{tokens} + {len(call.sampled)} sampled tokens exceed {limit}")
        entry.tokens += call.sampled
        entry.computed -= call.rejected
        entry.in_flight -= call.processed

    def to_publish(self, entry: Entry, call: CacheBlocks) -> int:
        """How many of its tokens are to be published."""
        if call.tokens is None:
            if entry.status is not Status.LOADING:
                raise _illegal(call, "it waits for no load")
            return entry.computed
        ran = entry.computed - entry.in_flight
        if entry.status is not Status.RUNNING:
            raise _illegal(call, f"it does not run, it is {entry.status.name}")
        if not 1 <= call.tokens <= min(ran, len(entry.tokens)):
            raise _illegal(
                call, f"{call.tokens} to publish: {ran} of its {len(entry.tokens)} tokens have run"
            )
        return call.tokens

    def loaded(self, entry: Entry) -> None:
        """A load has arrived, and the request waits to be scheduled."""
        entry.status = Status.WAITING

    def check_has_blocks(self, call: Call, entry: Entry) -> None:
        """A window's blocks can only be released of a request that has a block table."""
        if entry.computed == 0:
            raise _illegal(call, "it has no block table")

    def preempted(self, entry: Entry) -> None:
        """The request has lost its blocks and what it computed."""
        entry.computed = entry.in_flight = 0
        entry.status = Status.PREEMPTED

    def finished(self, entry: Entry) -> None:
        """The request has ended; its number is not used again."""
        del self.entries[entry.number]

    def check_blocks(self, call: EvictBlocks) -> None:
        """The named blocks are of the pool."""
        last = self.config.num_blocks - 1
        for block in call.blocks:
            if not 0 <= block <= last:
                raise IllegalCall(f"EvictBlocks: block {block} is out of range: the pool has 0 to {last}")


def _illegal(call: Any, why: str) -> IllegalCall:
    return IllegalCall(f"{type(call).__name__} of request {call.request}: {why}")
