"""The calls of a live `KVCacheManager`, seen as they are made.

The manager's methods do what they did; each is told when it has been made, with the request as it was before.
What calls the pool itself, and not through the manager, is told too: blocks that were taken out for freeing
go back in this way, and whatever else does so works behind the manager's back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from slotproof.impl.vllm.live.events import (
    AllocateSlots,
    Behind,
    Blocks,
    CacheBlocks,
    Event,
    Evict,
    Free,
    FreeLater,
    Ledger,
    LookUp,
    PopForFree,
    RecordForZeroing,
    RemoveSkipped,
    Reset,
    TakeNew,
)
from slotproof.impl.vllm.live.requests import Requests

Sink: TypeAlias = Callable[[Event], None]
"""Is told each call when it has been made."""

POOL = (
    "get_new_blocks",
    "touch",
    "free_blocks",
    "cache_full_blocks",
    "cache_partial_block",
    "evict_blocks",
    "reset_prefix_cache",
    "move_block_hashes",
    "unpin_blocks",
)
"""The methods of a pool that change it."""


class Calls:
    """Sees one manager.

    Args:
        manager: A `KVCacheManager`. Its methods are wrapped, on this one object.
        sink: Is told each call.
        before: Is called before each call that changes something.
    """

    def __init__(self, manager: Any, sink: Sink, before: Callable[[], None] | None = None) -> None:
        self.number = 0
        self._manager = manager
        self._sink = sink
        self._before = before
        self._requests = Requests()
        self._depth = 0
        self._raising: BaseException | None = None
        self._undo: list[tuple[Any, str]] = []
        for name in (
            "get_computed_blocks",
            "allocate_slots",
            "cache_blocks",
            "remove_skipped_blocks",
            "free",
            "pop_blocks_for_free",
            "evict_blocks",
            "reset_prefix_cache",
            "take_new_block_ids",
            "record_blocks_for_zeroing",
        ):
            self._wrap(manager, name, getattr(self, f"_{name}"))
        for name in POOL:
            if hasattr(manager.block_pool, name):
                self._wrap(manager.block_pool, name, functools.partial(self._pool, name))

    def detach(self) -> None:
        """The manager is left as it was."""
        for owner, name in self._undo:
            owner.__dict__.pop(name, None)
        self._undo = []

    def _wrap(self, owner: Any, name: str, seen: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, functools.wraps(original)(functools.partial(seen, original)))
        self._undo.append((owner, name))

    def _made(self, original: Callable[..., Any], arguments: Any, named: Any) -> tuple[Any, str]:
        """Make the call: its answer, or what it raised."""
        if self._before is not None:
            self._before()
        self._depth += 1
        try:
            return original(*arguments, **named), ""
        except BaseException as error:
            self._raising = error
            return None, f"{type(error).__name__}: {error}"
        finally:
            self._depth -= 1

    def _tell(self, event: Event, answer: Any = None) -> Any:
        self._sink(event)
        if getattr(event, "raised", ""):
            self._raise()
        return answer

    def _raise(self) -> NoReturn:
        """What the call at hand raised."""
        error, self._raising = self._raising, None
        assert error is not None
        raise error

    def _next(self) -> int:
        self.number += 1
        return self.number

    def _get_computed_blocks(self, original: Any, request: Any) -> Any:
        if self._depth:
            return original(request)
        ledger = self._requests.ledger(request)
        answer, raised = self._made(original, (request,), {})
        blocks, tokens, junction = ((), 0, 0) if raised else (_blocks(answer[0]), answer[1], answer[2])
        return self._tell(LookUp(self._next(), ledger, tokens, blocks, junction, raised), answer)

    def _allocate_slots(
        self,
        original: Any,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        **how: Any,
    ) -> Any:
        ledger = self._requests.ledger(request)
        hits = () if new_computed_blocks is None else _blocks(new_computed_blocks)
        answer, raised = self._made(
            original,
            (
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                num_lookahead_tokens,
                num_external_computed_tokens,
                delay_cache_blocks,
                num_encoder_tokens,
            ),
            how,
        )
        event = AllocateSlots(
            self._next(),
            ledger,
            num_new_tokens,
            num_new_computed_tokens,
            hits,
            num_lookahead_tokens,
            num_external_computed_tokens,
            delay_cache_blocks,
            how.get("full_sequence_must_fit", False),
            how.get("reserved_blocks", 0),
            how.get("has_scheduled_reqs", True),
            tuple(how.get("skip_zeroing_group_ids", ())),
            num_encoder_tokens,
            None if answer is None else _blocks(answer),
            raised,
        )
        return self._tell(event, answer)

    def _cache_blocks(self, original: Any, request: Any, num_computed_tokens: int) -> Any:
        ledger = self._requests.ledger(request)
        answer, raised = self._made(original, (request, num_computed_tokens), {})
        return self._tell(CacheBlocks(self._next(), ledger, num_computed_tokens, raised), answer)

    def _remove_skipped_blocks(
        self, original: Any, request_id: str, processed_computed_tokens: int, *rest: Any, **named: Any
    ) -> Any:
        answer, raised = self._made(original, (request_id, processed_computed_tokens, *rest), named)
        event = RemoveSkipped(self._next(), request_id, processed_computed_tokens, raised)
        return self._tell(event, answer)

    def _free(self, original: Any, request: Any) -> Any:
        ledger = self._ledger_of_freed(request)
        answer, raised = self._made(original, (request,), {})
        return self._tell(Free(self._next(), ledger, raised), answer)

    def _pop_blocks_for_free(self, original: Any, request: Any) -> Any:
        ledger = self._ledger_of_freed(request)
        answer, raised = self._made(original, (request,), {})
        blocks = tuple(block.block_id for block in answer or ())
        return self._tell(PopForFree(self._next(), ledger, blocks, raised), answer)

    def _ledger_of_freed(self, request: Any) -> Ledger:
        ledger = self._requests.ledger(request)
        self._requests.forget(request.request_id)
        return ledger

    def _evict_blocks(self, original: Any, block_ids: Any) -> Any:
        blocks = tuple(sorted(block_ids))
        answer, raised = self._made(original, (block_ids,), {})
        return self._tell(Evict(self._next(), blocks, raised), answer)

    def _reset_prefix_cache(self, original: Any) -> Any:
        answer, raised = self._made(original, (), {})
        return self._tell(Reset(self._next(), bool(answer), raised), answer)

    def _take_new_block_ids(self, original: Any) -> Any:
        answer, raised = self._made(original, (), {})
        return self._tell(TakeNew(self._next(), tuple(answer or ()), raised), answer)

    def _record_blocks_for_zeroing(self, original: Any, request_id: str, start_token: int) -> Any:
        answer, raised = self._made(original, (request_id, start_token), {})
        return self._tell(RecordForZeroing(self._next(), request_id, start_token, raised), answer)

    def _pool(self, name: str, original: Any, *arguments: Any, **named: Any) -> Any:
        """A call of the pool: the manager's own is part of the call at hand."""
        if self._depth:
            return original(*arguments, **named)
        if name != "free_blocks":
            answer, raised = self._made(original, arguments, named)
            self._sink(Behind(self._next(), f"BlockPool.{name} was called by none of the manager's methods"))
            if raised:
                self._raise()
            return answer
        blocks = list(arguments[0] if arguments else named["ordered_blocks"])
        answer, raised = self._made(original, (blocks,), {})
        event = FreeLater(self._next(), tuple(block.block_id for block in blocks), raised)
        return self._tell(event, answer)


def _blocks(blocks: Any) -> Blocks:
    """The numbers in a `KVCacheBlocks`, group by group."""
    return tuple([tuple([block.block_id for block in group]) for group in blocks.blocks])
