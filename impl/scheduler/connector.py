"""A KV connector: tokens whose KV somebody else has computed, and how they are brought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class Match(msgspec.Struct, frozen=True):
    """What a connector has for a request."""

    num_tokens: int = 0
    """External tokens, after those that the prefix cache has."""
    is_async: bool = False
    """They arrive while other steps run."""


class Connector(Protocol):
    """The scheduler's side of a connector."""

    def get_num_new_matched_tokens(self, request: int, num_tokens: int, num_computed_tokens: int) -> Match:
        """What it has for a request of `num_tokens` tokens, `num_computed_tokens` of them found locally."""
        ...


class ConnectorStub:
    """A connector whose contents somebody makes up.

    Its loads start when the step that granted their blocks has run, and are ordered on the device after
    it. A connector that writes without that order must make its scheduler keep the blocks of ended
    requests until the steps in flight have run (0.32.0: `defer_block_free`).

    Args:
        choose: Answers how many of a number of tokens it has for a request, and whether they arrive
            asynchronously.
        block_size: Tokens in a block; whole blocks of every group, if there are several.
    """

    def __init__(self, choose: Callable[[int, int], Match], block_size: int) -> None:
        self._choose = choose
        self._block_size = block_size

    def get_num_new_matched_tokens(self, request: int, num_tokens: int, num_computed_tokens: int) -> Match:
        """See `Connector`. A token is always left to compute; an asynchronous load ends with a block, so
        that nothing of its blocks stays unwritten when they are not zeroed."""
        match = self._choose(request, num_tokens - 1 - num_computed_tokens)
        if not match.is_async:
            return match
        end = (num_computed_tokens + match.num_tokens) // self._block_size * self._block_size
        if end <= num_computed_tokens:
            return Match()
        return Match(end - num_computed_tokens, is_async=True)
