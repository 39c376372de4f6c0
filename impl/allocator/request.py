"""A request: its tokens and their hashes, and how far the caller has come with it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum, auto
from math import gcd

from slotproof.impl.allocator.block_hash import extend_block_hashes, extend_block_keys, root_hash
from slotproof.impl.allocator.errors import AllocatorError


class RequestStatus(Enum):
    """Where a request is in its life. The watermark looks at WAITING and PREEMPTED."""

    WAITING = auto()
    WAITING_FOR_REMOTE_KVS = auto()
    """Blocks are granted, and an external load fills them."""
    RUNNING = auto()
    PREEMPTED = auto()


class Request:
    """Tokens are final: drafts are counted in `allocate_slots`, never appended here.

    The caller advances `status`, `num_computed_tokens` (tokens whose KV is computed or scheduled) and
    `num_in_flight_tokens` (those scheduled and not yet settled).

    Args:
        request_id: Unique among the live requests.
        prompt_token_ids: The prompt.
        block_size: Tokens in a block, by group if there are several; None hashes nothing (caching is off).
        cache_salt: Only requests of equal salt share blocks.
        lora: Name and path of the LoRA the request runs with: another one may be loaded under the name.

    Raises:
        AllocatorError: a token is not an integer of 64 bits.
    """

    __slots__ = (
        "_hash_block_size",
        "_hash_root",
        "_hashes_in_a_block",
        "_token_ids",
        "block_hashes",
        "block_keys",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_tokens",
        "request_id",
        "skip_reading_prefix_cache",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        *,
        block_size: int | Sequence[int] | None = None,
        cache_salt: str | None = None,
        lora: tuple[str, str] | None = None,
    ) -> None:
        salt_key = () if cache_salt is None else (("cache_salt", cache_salt),)
        lora_key = () if lora is None else (("lora", *lora),)
        self.request_id = request_id
        self.status = RequestStatus.WAITING
        self.num_computed_tokens = 0
        self.num_in_flight_tokens = 0
        self.skip_reading_prefix_cache = False
        sizes = (block_size,) if isinstance(block_size, int) else tuple(block_size or ())
        self.block_hashes: list[bytes] = []
        """Of the tokens up to each multiple of the hash unit, which divides every group's block size."""
        self.block_keys = (self.block_hashes,) if len(sizes) <= 1 else tuple([] for _ in sizes)
        """By group, what its blocks are found by; the group is in them, if there are several."""
        self._hash_root = root_hash((*salt_key, *lora_key))
        unit = gcd(*sizes)
        self._hash_block_size = unit or None
        self._hashes_in_a_block = tuple(size // unit for size in sizes)
        self._token_ids = array("q")
        self.append_output_token_ids(prompt_token_ids)

    def append_output_token_ids(self, token_ids: Sequence[int]) -> None:
        """Append sampled tokens, and hash the blocks they fill.

        Raises:
            AllocatorError: a token is not an integer of 64 bits; none is appended.
        """
        try:
            self._token_ids += array("q", token_ids)
        except (OverflowError, TypeError):
            raise AllocatorError(f"request {self.request_id}: tokens must be integers of 64 bits") from None
        self.num_tokens = len(self._token_ids)
        if self._hash_block_size is not None:
            extend_block_hashes(self.block_hashes, self._hash_root, self._token_ids, self._hash_block_size)
            if len(self.block_keys) > 1:
                for group_id, (keys, unit) in enumerate(
                    zip(self.block_keys, self._hashes_in_a_block, strict=True)
                ):
                    extend_block_keys(keys, self.block_hashes, unit, group_id)
