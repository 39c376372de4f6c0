"""What is seen of a manager: a call each, with the request's ledger as it was when it was made.

Events are plain data, so that they can be followed at once or written down and followed later.
"""

from __future__ import annotations

from typing import Any

import msgspec

Blocks = tuple[tuple[int, ...], ...]
"""Block numbers, group by group."""


class Ledger(msgspec.Struct, array_like=True):
    """A live request at a call: what the scheduler keeps of it."""

    request: str
    num_tokens: int
    computed: int
    in_flight: int
    status: str
    """vLLM's name of it."""
    prompt: int
    """Tokens of the prompt."""
    begins: bool
    """`letters` are all its letters, and not those since the last call alone: it was not seen before, or its
    tokens were changed."""
    letters: tuple[int | str, ...]
    """What stands at each of its positions: the token, or a text for what is keyed otherwise too."""
    salt: str = ""
    lora: str = ""
    skips_cache: bool = False
    junction: int = 0
    """Where its groups did not agree when it was looked up (`shared_prefix_boundary`)."""


class Seen(msgspec.Struct, array_like=True, tag=True):
    """Some call. `number` counts the calls of a manager, from 1."""

    number: int


class LookUp(Seen, tag="lookup"):
    """`get_computed_blocks`."""

    ledger: Ledger
    tokens: int
    blocks: Blocks
    junction: int
    """Where the groups that are looked up first leave the others behind; 0: nowhere."""
    raised: str = ""


class AllocateSlots(Seen, tag="allocate"):
    """`allocate_slots`, with the hit that the caller passed."""

    ledger: Ledger
    new: int
    hit_tokens: int
    hits: Blocks
    lookahead: int
    external: int
    delay_cache: bool
    must_fit: bool
    reserved: int
    has_scheduled: bool
    skip_zeroing: tuple[int, ...]
    encoder_tokens: int
    answer: Blocks | None
    raised: str = ""


class CacheBlocks(Seen, tag="cache"):
    """`cache_blocks`."""

    ledger: Ledger
    tokens: int
    raised: str = ""


class RemoveSkipped(Seen, tag="remove_skipped"):
    """`remove_skipped_blocks`."""

    request: str
    processed: int
    raised: str = ""


class Free(Seen, tag="free"):
    """`free`: a finish or a preemption, by the request's status."""

    ledger: Ledger
    raised: str = ""


class PopForFree(Seen, tag="pop"):
    """`pop_blocks_for_free`: the request loses its blocks, which go back later."""

    ledger: Ledger
    blocks: tuple[int, ...]
    raised: str = ""


class FreeLater(Seen, tag="free_blocks"):
    """`BlockPool.free_blocks`, not called by the manager itself."""

    blocks: tuple[int, ...]
    raised: str = ""


class Evict(Seen, tag="evict"):
    """`evict_blocks`."""

    blocks: tuple[int, ...]
    raised: str = ""


class Reset(Seen, tag="reset"):
    """`reset_prefix_cache`."""

    done: bool
    raised: str = ""


class TakeNew(Seen, tag="take_new"):
    """`take_new_block_ids`."""

    blocks: tuple[int, ...]
    raised: str = ""


class RecordForZeroing(Seen, tag="record"):
    """`record_blocks_for_zeroing`."""

    request: str
    start: int
    raised: str = ""


class Behind(Seen, tag="behind"):
    """The pool was written, and no call of the manager did it."""

    what: str


Event = (
    LookUp
    | AllocateSlots
    | CacheBlocks
    | RemoveSkipped
    | Free
    | PopForFree
    | FreeLater
    | Evict
    | Reset
    | TakeNew
    | RecordForZeroing
    | Behind
)


def told(event: Any) -> str:
    """The call as one line."""
    name = str(type(event).__struct_config__.tag)
    fields = {f: getattr(event, f) for f in event.__struct_fields__ if f not in ("number", "raised")}
    ledger = fields.pop("ledger", None)
    parts = []
    if ledger is not None:
        parts.append(
            f"{ledger.request} ({ledger.num_tokens} tokens, {ledger.computed} computed, "
            f"{ledger.in_flight} in flight, {ledger.status})"
        )
    defaults = (0, (), "", False)
    parts += [f"{f} {v}" for f, v in fields.items() if v not in defaults or f == "answer"]
    end = f": raised {event.raised}" if getattr(event, "raised", "") else ""
    return f"{event.number}. {name} {', '.join(parts)}{end}"
