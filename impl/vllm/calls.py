"""The calls that vLLM's scheduler makes of its `KVCacheManager`, told as the protocol's.

The manager's methods do what they did; each is told to a listener when it has been made. What the scheduler
does on its own (tokens that were run, rejected, sampled) is told as soon as the manager is called next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    TakeNewBlockIds,
)
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.vllm.parts import block_ids, snapshot

REBORN = 1 << 20
"""The first number that is given to a request that comes again (see `VllmCalls`)."""


UNWRITTEN = "A block is published that is never written: a victim that the same pass had scheduled"
"""The section of KNOWN.md."""


class NotInProtocol(RuntimeError):
    """vLLM's scheduler did what no call of the protocol says."""


class _Before(NamedTuple):
    """A request before the answer to a step."""

    request: Any
    num_tokens: int
    num_computed_tokens: int
    num_in_flight_tokens: int
    is_stale: bool


class VllmCalls:
    """Watches one scheduler.

    Requests have the protocol's numbers: their own, until an answer comes for one that was preempted since.
    vLLM keeps the tokens of such an answer, and the protocol knows no tokens for a request that does not run:
    it is told that the request, which holds nothing, ends and comes again under a new number, with these
    tokens.

    Args:
        scheduler: vLLM's, before its first request.
        listener: Sees each call.
        unpublish: Whether blocks that a victim of the pass that scheduled it would have filled lose their
            hashes. vLLM leaves them published, though nobody will write them.
        known: Counts how often vLLM would have left some, by the section of KNOWN.md.
    """

    def __init__(
        self, scheduler: Any, listener: Listener, unpublish: bool = True, known: Counter[str] | None = None
    ) -> None:
        self.number: dict[str, int] = {}
        """By vLLM's request id."""
        self.name: dict[int, str] = {}
        """vLLM's request id by number."""
        self._tags: dict[str, tuple[int, int]] = {}
        self._next = REBORN
        self._manager = manager = scheduler.kv_cache_manager
        self._groups = manager.coordinator.single_type_managers
        self._listener = listener
        self._unpublish = unpublish
        self._known: Counter[str] = Counter() if known is None else known
        self._published: dict[str, set[int]] = {}
        self._unanswered: list[_Before] = []
        watched: tuple[Callable[..., Any], ...] = (
            self.allocate_slots,
            self.cache_blocks,
            self.remove_skipped_blocks,
            self.free,
            self.pop_blocks_for_free,
            self.evict_blocks,
            self.reset_prefix_cache,
            self.take_new_block_ids,
        )
        self._original = {method.__name__: getattr(manager, method.__name__) for method in watched}
        for method in watched:
            setattr(manager, method.__name__, method)

    def add(self, name: str, number: int, tokens: tuple[int, ...], salt: int, lora: int) -> None:
        """A request has come."""
        self.number[name], self.name[number], self._tags[name] = number, name, (salt, lora)
        self._tell(AddRequest(number, tokens, salt, lora))

    def step_ends(self) -> None:
        """A step has been scheduled, and will be run: what it publishes will be written."""
        self._published.clear()

    def answer_begins(self, requests: list[Any]) -> None:
        """The answer for these requests is about to be given to the scheduler."""
        self._unanswered = [
            _Before(
                r,
                r.num_tokens,
                r.num_computed_tokens,
                r.num_in_flight_tokens,
                r.num_stale_output_tokens > 0,
            )
            for r in requests
        ]

    def settle(self) -> None:
        """Tell of the requests that the scheduler has dealt with."""
        before, self._unanswered = self._unanswered, []
        for b in before:
            if b.request.num_in_flight_tokens == b.num_in_flight_tokens:
                self._unanswered.append(b)
                continue
            name, sampled = b.request.request_id, tuple(b.request.all_token_ids[b.num_tokens :])
            if not b.is_stale:
                processed = b.num_in_flight_tokens - b.request.num_in_flight_tokens
                rejected = b.num_computed_tokens - b.request.num_computed_tokens
                self._tell(Complete(self.number[name], processed, rejected, sampled))
            elif sampled:
                self._tell(Finish(self.number[name]))
                self.add(name, self._next, tuple(b.request.all_token_ids), *self._tags[name])
                self._next += 1

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        **how: Any,
    ) -> Any:
        """Told as one `Allocate`, or two: vLLM pads an admission of one token to as many as a decode with
        drafts has, and the protocol knows drafts of running requests alone. The first call asks for the slots
        of the drafts as lookahead, and the second, which needs none any more, schedules them."""
        waits = request.status.name != "RUNNING"
        total = request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
        drafts = max(0, total + num_new_tokens - request.num_tokens) if waits else 0
        before = self._hashed()
        granted = self._original["allocate_slots"](
            request,
            num_new_tokens,
            num_new_computed_tokens=num_new_computed_tokens,
            new_computed_blocks=new_computed_blocks,
            num_lookahead_tokens=num_lookahead_tokens,
            num_external_computed_tokens=num_external_computed_tokens,
            delay_cache_blocks=delay_cache_blocks,
            **how,
        )
        number = self.number[request.request_id]
        hits = () if new_computed_blocks is None else block_ids(new_computed_blocks)
        call = Allocate(
            number,
            num_new_tokens - drafts,
            num_lookahead_tokens + drafts,
            external=num_external_computed_tokens,
            skip_cache=waits and bool(request.skip_reading_prefix_cache),
            delay_cache=delay_cache_blocks,
            must_fit=how.get("full_sequence_must_fit", False),
            reserved=how.get("reserved_blocks", 0),
            has_scheduled=how.get("has_scheduled_reqs", True),
            skip_zeroing=self._skips_zeroing(how.get("skip_zeroing_group_ids", ())),
        )
        if granted is None:
            self._tell(call, Result(granted=False, hits=hits))
            return None
        published = {block for block, key in self._hashed().items() if before.get(block) != key}
        self._published[request.request_id] = published & self._ending_after(request.request_id, total)
        self._tell(call, Result(hits=hits, new_blocks=block_ids(granted)))
        if drafts:
            self._tell(Allocate(number, drafts, num_lookahead_tokens), Result())
        return granted

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Told as `CacheBlocks`: the request's load has arrived, or `AsyncScheduler` publishes what a running
        request has computed as soon as its tokens are known."""
        waits = request.status.name == "WAITING_FOR_REMOTE_KVS"
        run = request.num_computed_tokens - (0 if waits else request.num_in_flight_tokens)
        if num_computed_tokens != run if waits else num_computed_tokens > min(run, request.num_tokens):
            raise NotInProtocol(f"{num_computed_tokens} tokens are published, {run} are there")
        self.settle()
        self._original["cache_blocks"](request, num_computed_tokens)
        if waits:
            self._tell(CacheBlocks(self.number[request.request_id]))
        elif num_computed_tokens:
            self._tell(CacheBlocks(self.number[request.request_id], num_computed_tokens))

    def remove_skipped_blocks(self, request_id: str, *args: Any, **how: Any) -> None:
        """Told as `RemoveSkipped`, if the request holds blocks."""
        self.settle()
        holds_blocks = any(self._manager.get_block_ids(request_id))
        self._original["remove_skipped_blocks"](request_id, *args, **how)
        if holds_blocks:
            self._tell(RemoveSkipped(self.number[request_id]))

    def free(self, request: Any) -> None:
        """Told as `Finish` or `Preempt`."""
        self.settle()
        if request.is_finished():
            call: Finish | Preempt = Finish(self.number[request.request_id])
        else:
            call = Preempt(self.number[request.request_id])
            unwritten = self._published.pop(request.request_id, set())
            if unwritten:
                self._known[UNWRITTEN] += 1
            if unwritten and self._unpublish:
                self._manager.evict_blocks(unwritten)
        self._original["free"](request)
        self._tell(call)

    def pop_blocks_for_free(self, request: Any) -> Any:
        """Not in the protocol: frees that wait for steps in flight."""
        raise NotInProtocol(f"the blocks of request {request.request_id} are freed later")

    def evict_blocks(self, blocks: set[int]) -> None:
        """Told as `EvictBlocks`."""
        self._original["evict_blocks"](blocks)
        self._tell(EvictBlocks(tuple(sorted(blocks))))

    def reset_prefix_cache(self) -> bool:
        """Told as `ResetPrefixCache`."""
        done = bool(self._original["reset_prefix_cache"]())
        self._tell(ResetPrefixCache(), Result(granted=done))
        return done

    def take_new_block_ids(self) -> list[int]:
        """Told as `TakeNewBlockIds`."""
        blocks: list[int] = self._original["take_new_block_ids"]()
        self._tell(TakeNewBlockIds(), Result(new_blocks=tuple(blocks)))
        return blocks

    def _skips_zeroing(self, group_ids: tuple[int, ...]) -> bool:
        if group_ids and group_ids != tuple(range(len(self._groups))):
            raise NotInProtocol(f"the blocks of a load are not zeroed in groups {group_ids} alone")
        return bool(group_ids)

    def _ending_after(self, name: str, num_tokens: int) -> set[int]:
        """The request's blocks that its first tokens do not fill: with several groups a block may be
        published later than it is filled."""
        by_group = zip(self._manager.get_block_ids(name), self._groups, strict=True)
        return {block for blocks, group in by_group for block in blocks[num_tokens // group.block_size :]}

    def _tell(self, call: Call, result: Result | None = None) -> None:
        self._listener(call, result or Result(), snapshot(self._manager, self.number.__getitem__))

    def _hashed(self) -> dict[int, Any]:
        """The keys of the blocks that have one."""
        return {b.block_id: b.block_hash for b in self._manager.block_pool.blocks if b.block_hash is not None}
