"""The protocol of the gate: what an allocator is asked, and what it shows.

The calls drive one KV-cache manager *and the caller's bookkeeping around it* (tokens, computed tokens,
tokens in flight): that part is `impl/adapter.py`, so that an adapter says only what its allocator knows.
A factory ``FACTORY(config: Config) -> Allocator`` is all a user supplies.

Requests are small integers, unique for the life of an allocator. Blocks are integers
``0 .. num_blocks - 1``; block 0 is the null block.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, lcm
from typing import Any, Protocol, TypeAlias

import msgspec


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One attention group."""

    block_size: int
    """Tokens (slots) in a block."""
    sliding_window: int | None = None
    """Tokens an attention window spans; without it and without chunks it is full attention."""
    attention_chunk_size: int | None = None
    """Tokens of a chunk, in which alone its tokens attend to each other."""
    is_eagle: bool = False
    """Layers of a draft head: a hit leaves out its last block."""
    extra_retained_tokens: int = 0
    """Tokens before a window that are kept all the same."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pool and its attention groups. Counts are blocks or tokens as named."""

    num_blocks: int
    """Blocks in the pool, the null block included."""
    block_size: int
    """Tokens (slots) in a block of the first group."""
    max_model_len: int
    """Tokens a request may ever have."""
    sliding_window: int | None = None
    """Tokens the first group's attention window spans; None is full attention."""
    attention_chunk_size: int | None = None
    is_eagle: bool = False
    extra_retained_tokens: int = 0
    """These three as in `Group`, of the first."""
    groups: tuple[Group, ...] = ()
    """The groups after the first."""
    enable_caching: bool = True
    """Whether full blocks are hashed and looked up."""
    watermark_blocks: int = 0
    """Blocks kept free when a waiting or preempted request is admitted beside others."""
    max_in_flight_tokens: int = 1 << 30
    """Most tokens of one request scheduled and not yet settled (caps the admission of windows)."""
    num_prefill_lookahead: int = 0
    """Tokens past a chunk that draft heads read when they prefill; all but one of as many at the end of what
    is computed wait for a hash."""
    retention_interval: int | None = None
    """Tokens from one hit that windows keep blocks for to the next; 0: only where a prompt can be taken up
    again; None: wherever groups can agree."""
    behaviours: tuple[str, ...] = ()
    """Where the model does as another release than vLLM 0.32.0 (`model/language/behaviours.py`); an
    allocator does not look at it."""

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """Every group, the first too."""
        first = {name: getattr(self, name) for name in Group.__struct_fields__}
        return (Group(**first), *self.groups)

    @property
    def scheduler_block_size(self) -> int:
        """Tokens at which a block of every group ends."""
        return all_end_at(group.block_size for group in self.all_groups)

    @property
    def hash_block_size(self) -> int:
        """Tokens of which every group's block has a whole number: what is hashed at once."""
        return hashed_at_once(group.block_size for group in self.all_groups)

    @property
    def is_plain(self) -> bool:
        """One group of full attention or with a window, and nothing more: what every implementation knows."""
        return self == msgspec.structs.replace(self, **_PLAIN)


_PLAIN: dict[str, Any] = {
    "groups": (),
    "attention_chunk_size": None,
    "is_eagle": False,
    "extra_retained_tokens": 0,
    "num_prefill_lookahead": 0,
    "retention_interval": None,
}


def all_end_at(block_sizes: Iterable[int]) -> int:
    """Tokens at which a block of each of these sizes ends."""
    return lcm(*block_sizes)


def hashed_at_once(block_sizes: Iterable[int]) -> int:
    """Tokens of which a block of each of these sizes has a whole number."""
    return gcd(*block_sizes)


def lora_name(lora: int) -> str:
    """The name of a LoRA: 2n - 1 and 2n have one, and paths of their own."""
    return str((lora + 1) // 2)


class AddRequest(
    msgspec.Struct, frozen=True, tag="add_request", tag_field="call", forbid_unknown_fields=True
):
    """A request arrives and waits. `tokens` is its prompt; `salt` and `lora` 0 mean none.

    Two LoRAs may have one name (`lora_name`), and are told apart by their paths.
    """

    request: int
    tokens: tuple[int, ...]
    salt: int = 0
    lora: int = 0


class Allocate(msgspec.Struct, frozen=True, tag="allocate", tag_field="call", forbid_unknown_fields=True):
    """One `allocate_slots`, with the caller's bookkeeping around it.

    A waiting or preempted request without blocks is first looked up in the prefix cache, unless
    `skip_cache`; the blocks found are passed on. If slots are granted, computed tokens advance by
    the hit, `external` and `new`, tokens in flight by `new`, and the request runs (it waits for
    its load when `delay_cache` is set).
    """

    request: int
    new: int
    lookahead: int = 0
    external: int = 0
    skip_cache: bool = False
    delay_cache: bool = False
    must_fit: bool = False
    reserved: int = 0
    has_scheduled: bool = True
    skip_zeroing: bool = False


class Execute(msgspec.Struct, frozen=True, tag="execute", tag_field="call", forbid_unknown_fields=True):
    """The step that was made up goes to the worker, which writes what was scheduled. An allocator has nothing
    to do; only stories contain this call."""


class Complete(msgspec.Struct, frozen=True, tag="complete", tag_field="call", forbid_unknown_fields=True):
    """`processed` tokens in flight have run: `rejected` drafts roll computed tokens back, `sampled` ones are
    final."""

    request: int
    processed: int
    rejected: int = 0
    sampled: tuple[int, ...] = ()


class CacheBlocks(
    msgspec.Struct, frozen=True, tag="cache_blocks", tag_field="call", forbid_unknown_fields=True
):
    """`cache_blocks`: a delayed load has arrived, and the request waits again; or, with `tokens`, a running
    request's first tokens, final ones that have run, are published before its next allocation (as vLLM's
    `AsyncScheduler` does)."""

    request: int
    tokens: int | None = None
    """None for a load: all computed tokens."""


class RemoveSkipped(
    msgspec.Struct, frozen=True, tag="remove_skipped", tag_field="call", forbid_unknown_fields=True
):
    """`remove_skipped_blocks` on the tokens that are computed and no longer in flight."""

    request: int


class Preempt(msgspec.Struct, frozen=True, tag="preempt", tag_field="call", forbid_unknown_fields=True):
    """The request loses its blocks, its computed tokens and what it had in flight; it waits as preempted."""

    request: int


class Finish(msgspec.Struct, frozen=True, tag="finish", tag_field="call", forbid_unknown_fields=True):
    """The request ends, in whatever state, and its blocks are freed."""

    request: int


class EvictBlocks(
    msgspec.Struct, frozen=True, tag="evict_blocks", tag_field="call", forbid_unknown_fields=True
):
    """`evict_blocks`: the named blocks lose their hashes and stay where they are."""

    blocks: tuple[int, ...]


class ResetPrefixCache(
    msgspec.Struct, frozen=True, tag="reset_prefix_cache", tag_field="call", forbid_unknown_fields=True
):
    """`reset_prefix_cache`: every hash is dropped, if no request holds a block."""


class TakeNewBlockIds(
    msgspec.Struct, frozen=True, tag="take_new_block_ids", tag_field="call", forbid_unknown_fields=True
):
    """`take_new_block_ids`: drains the list of blocks to zero."""


Call: TypeAlias = (
    AddRequest
    | Allocate
    | Execute
    | Complete
    | CacheBlocks
    | RemoveSkipped
    | Preempt
    | Finish
    | EvictBlocks
    | ResetPrefixCache
    | TakeNewBlockIds
)


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a call answers. Fields that a call does not answer keep their defaults."""

    granted: bool = True
    """`allocate`: slots were granted. `reset_prefix_cache`: the cache was reset."""
    hits: tuple[int, ...] = ()
    """`allocate`: blocks the lookup found, by block-table index, 0 for skipped ones; group after group."""
    new_blocks: tuple[int, ...] = ()
    """`allocate`: the returned new blocks, in order. `take_new_block_ids`: the blocks to zero, in order. Both
    group after group."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be seen of an allocator between calls. A field that its `lacks` names (`impl/capabilities.py`)
    may be left out."""

    free_queue: tuple[int, ...] = ()
    """Free blocks, next to be taken first."""
    ref_cnt: tuple[int, ...] = ()
    """References by block; that of the null block is not kept and shown as 0."""
    hashes: tuple[bytes | int | None, ...] = ()
    """Key by block, None for none. Only whether two keys are equal means anything, within a
    snapshot and between snapshots."""
    tables: dict[int, tuple[int, ...]] = {}
    """Block tables with at least one entry, by row: request * number of groups + group."""
    usage: float = 0.0
    """`usage` as the implementation reports it."""
    to_zero: tuple[int, ...] = ()
    """Blocks recorded for zeroing since the last `take_new_block_ids`, group after group."""
    copies: tuple[tuple[int, ...], ...] | None = None
    """The map from key to blocks: the blocks under each key, that which a lookup finds first, in the order of
    these; None if it is not shown."""


class Allocator(Protocol):
    """An implementation under test."""

    def step(self, call: Call) -> Result:
        """Make one call.

        Raises:
            Exception: anything an implementation raises is reported as a difference.
        """
        ...

    def snapshot(self) -> Snapshot:
        """The state now; it must not change anything."""
        ...
