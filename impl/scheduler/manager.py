"""The KV-cache manager as a scheduler drives it, and a thin layer over one that shows every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from slotproof.impl.protocol import Allocator, Call, Result, Snapshot

Listener: TypeAlias = Callable[[Call, Result, Snapshot], None]
"""Sees a call, its answer, and the state after it."""


class Manager(Allocator, Protocol):
    """The protocol's calls, and what a scheduler asks in between."""

    def lookup(self, request: int) -> int:
        """Tokens that the request would find in the prefix cache (`get_computed_blocks`); nothing changes."""
        ...

    def block_ids(self, request: int) -> tuple[tuple[int, ...], ...]:
        """The request's block table in each group (`get_block_ids`)."""
        ...

    def remaining_blocks(self, request: int, num_extra_tokens: int) -> int:
        """Blocks that the request still needs for all its tokens and `num_extra_tokens` more slots, as
        admission counts them (`get_num_blocks_to_allocate`)."""
        ...


class CallFailed(Exception):
    """The manager raised on this call; the cause is what it raised."""

    def __init__(self, call: Call) -> None:
        super().__init__(str(call))
        self.call = call


class Recording:
    """`Manager` over another one.

    Args:
        manager: The one that does the work.
        listener: Sees each call when it has been made.
    """

    def __init__(self, manager: Manager, listener: Listener) -> None:
        self._manager = manager
        self._listener = listener
        self.snapshot = manager.snapshot
        self.lookup = manager.lookup
        self.block_ids = manager.block_ids
        self.remaining_blocks = manager.remaining_blocks

    def step(self, call: Call) -> Result:
        """Make one call, and show it.

        Raises:
            CallFailed: the manager raised.
        """
        try:
            result = self._manager.step(call)
        except Exception as error:
            raise CallFailed(call) from error
        self._listener(call, result, self._manager.snapshot())
        return result
