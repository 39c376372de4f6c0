"""From integers to legal calls: what a campaign draws, and the configurations it draws them for.

A number is read byte by byte, least significant first: each byte settles one choice (the action, the
request, an amount), and a smaller byte means the simpler answer. Whatever the number, the call is one
that the caller's contract allows in the model's present state; so Hypothesis shrinks numbers, and the
calls grow simple.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import msgspec

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
    Group,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.model.language.engine import DENSE
from slotproof.model.language.groups import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotproof.model.language.groups import Group as ModelGroup
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, UNKNOWN, WAITING
from slotproof.model.running import Running, Stuck
from slotproof.model.system.allocate_slots import Ask, allocate_slots

NUMBER_BYTES = 16
"""Bytes of a number: more than any call reads."""
LIVE_REQUESTS = 8
"""Requests alive at once, at most."""
MAX_LOOKAHEAD = 8
MAX_DRAFTS = 5

T = TypeVar("T")


class Digits:
    """The choices in a number, one byte each; all zero after its end."""

    def __init__(self, number: int) -> None:
        self._rest = number

    def below(self, n: int) -> int:
        """A choice of 0 .. n - 1, evenly; growing with the byte."""
        if n > 256:
            return min(n - 1, self.below(256) * n // 256 + self.below(-(-n // 256)))
        byte, self._rest = self._rest & 255, self._rest >> 8
        return byte * n >> 8

    def one_in(self, n: int) -> bool:
        """True once in n."""
        return self.below(n) == n - 1

    def pick(self, options: list[T]) -> T:
        return options[self.below(len(options))]

    def amount(self, most: int) -> int:
        """1 .. most, and `most` itself in every second case."""
        return most if self.one_in(2) else 1 + self.below(most)


def decode(running: Running, number: int) -> Call:
    """The legal call that a number stands for in the model's present state. Pure.

    Raises:
        ValueError: the number is negative.
    """
    if number < 0:
        raise ValueError(f"{number} stands for no call: take a number from 0 on")
    digits = Digits(number)
    makers = _makers(running)
    choice = digits.below(sum(weight for weight, _, _ in makers))
    for weight, make, options in makers:
        if choice < weight:
            return make(running, digits, options)
        choice -= weight
    raise AssertionError("a choice is below the sum of the weights")


Maker = Callable[[Running, Digits, list[int]], Call]


def _makers(running: Running) -> list[tuple[int, Maker, list[int]]]:
    """What can be called now: (weight, maker, the requests or blocks to choose from), simplest first."""
    s, engine = running.state, running.engine
    alive = [r for r in running.requests if s.status(r) != UNKNOWN]
    by_status: dict[int, list[int]] = {status: [] for status in (WAITING, LOADING, RUNNING, PREEMPTED)}
    for r in alive:
        by_status[s.status(r)].append(r)
    runs = by_status[RUNNING]
    waits = by_status[WAITING] + by_status[PREEMPTED]
    room = [r for r in runs if step_room(running, r) > 0]
    in_flight = [r for r in runs if s.in_flight(r) > 0]
    has_run = [r for r in runs if _final_run(running, r) > 0]
    with_blocks = [r for r in alive if s.length(engine.row(r, 0)) > 0]
    hashed = [b for b in range(1, engine.num_blocks) if s.is_hashed(b)]
    idle = s.num_held == 0
    makers: list[tuple[int, Maker, list[int]]] = [
        (2, _take_new_block_ids, []),
        (4 if len(alive) < 3 else 2 if len(alive) < LIVE_REQUESTS else 0, _add_request, []),
        (12 if waits else 0, _admit, waits),
        (10 if room else 0, _advance, room),
        (6 if running.read.ghosts and any(s.unwritten(r) > 0 for r in runs) else 0, _execute, []),
        (9 if in_flight else 0, _complete, in_flight),
        (4 if by_status[LOADING] else 0, _cache_blocks, by_status[LOADING]),
        (1 if has_run else 0, _cache_running, has_run),
        (2 if alive else 0, _finish, alive),
        (2 if runs else 0, _preempt, runs),
        (2 if with_blocks else 0, _remove_skipped, with_blocks),
        (1, _evict_blocks, hashed),
        (3 if idle and hashed else 1, _reset_prefix_cache, []),
    ]
    return [maker for maker in makers if maker[0] > 0]


def step_room(running: Running, r: int) -> int:
    """The most tokens that a running request may ask for."""
    s, engine = running.state, running.engine
    room: int = min(engine.max_model_len - s.computed(r), engine.max_in_flight_tokens - s.in_flight(r))
    return room


def _take_new_block_ids(running: Running, digits: Digits, _: list[int]) -> Call:
    return TakeNewBlockIds()


def _add_request(running: Running, digits: Digits, _: list[int]) -> Call:
    """A prompt that starts as a fixed stream or an earlier request does, and may end otherwise."""
    engine = running.engine
    pool = engine.tokens(engine.num_blocks)
    most = min(engine.max_model_len, pool + 1 if digits.one_in(8) else max(1, pool // 3))
    length = 1 + digits.below(most)
    earlier = running.requests
    source = digits.below(4)
    if source < 2 or not earlier:
        stream = _stream(source % 2, length)
        salt, lora = digits.pick(_TAGS)
    else:
        text = running.read.texts[digits.pick(earlier[-LIVE_REQUESTS:])]
        stream = (*text.tokens, *_stream(0, length))[:length]
        salt, lora = digits.pick(_TAGS) if digits.one_in(4) else (text.salt, text.lora)
        if text.lora and digits.one_in(2):
            salt, lora = text.salt, 3 - text.lora  # the other LoRA of the same name
    tail = digits.below(length + 1) if digits.one_in(2) else 0
    tokens = stream[: length - tail] + (3,) * tail
    return AddRequest(request=len(earlier), tokens=tokens, salt=salt, lora=lora)


_TAGS = [(0, 0)] * 6 + [(1, 0), (0, 1), (2, 0), (0, 2), (1, 1), (2, 1)]
"""Cache salt and LoRA of a prompt; their numbers overlap, so that an ambiguous key would show."""


def _stream(which: int, length: int) -> tuple[int, ...]:
    """The same token again and again (every block alike), or a pattern that no block size divides."""
    return (1,) * length if which == 0 else tuple(1 + (i % 5 == 0) for i in range(length))


def _admit(running: Running, digits: Digits, options: list[int]) -> Call:
    """A waiting or preempted request is scheduled, perhaps on tokens that a connector supplies."""
    s, engine = running.state, running.engine
    r = digits.pick(options)
    skip_cache = digits.one_in(8)
    computed = s.computed(r)
    hits = running.hits(r, skip_cache).tokens
    total = computed + hits
    room = s.num_tokens(r) - 1 - total
    external = 0
    kind = digits.below(6)
    if kind >= (2 if hits else 4) and computed == 0 and room > 0:
        external = digits.amount(room)
    delay_cache = kind == 5 and external > 0
    most = min(s.num_tokens(r) - total - external, engine.max_in_flight_tokens)
    call = Allocate(
        request=r,
        new=0 if delay_cache else digits.amount(most),
        lookahead=_lookahead(digits),
        external=external,
        skip_cache=skip_cache,
        delay_cache=delay_cache,
        must_fit=digits.one_in(2),
        has_scheduled=not digits.one_in(3),
        skip_zeroing=external > 0 and digits.one_in(2),
    )
    return _reserve(running, digits, call)


def _advance(running: Running, digits: Digits, options: list[int]) -> Call:
    """A running request is scheduled: a chunk of its prompt, or a token and drafts."""
    s = running.state
    r = digits.pick(options)
    left = max(0, s.num_tokens(r) - s.computed(r))
    drafts = digits.below(MAX_DRAFTS + 1) if digits.one_in(2) else 0
    new = digits.amount(left) if left > 1 and digits.below(4) else max(1, left) + drafts
    call = Allocate(
        request=r,
        new=min(new, step_room(running, r)),
        lookahead=_lookahead(digits),
        must_fit=digits.one_in(16),
        has_scheduled=not digits.one_in(3),
    )
    return _reserve(running, digits, call)


def _lookahead(digits: Digits) -> int:
    return digits.below(MAX_LOOKAHEAD + 1) if digits.one_in(3) else 0


def _reserve(running: Running, digits: Digits, call: Allocate) -> Call:
    """Mostly nothing; else any number of blocks, or as many as stage 2 can just spare, or one more:
    then a count that is wrong by one shows."""
    kind = digits.below(8)
    if kind < 6:
        return call
    s = running.state
    if kind == 6:
        return msgspec.structs.replace(call, reserved=digits.below(running.engine.num_blocks))
    ask = Ask(
        new=call.new,
        hits=running.hits(call.request, call.skip_cache),
        lookahead=call.lookahead,
        external=call.external,
        has_scheduled=call.has_scheduled,
    )
    try:
        answer = allocate_slots(s, call.request, ask)
    except Stuck:  # with a rule off
        return call
    spare = answer.released.num_free - answer.need - answer.watermark
    return msgspec.structs.replace(call, reserved=max(0, spare + digits.below(2)))


def _complete(running: Running, digits: Digits, options: list[int]) -> Call:
    """Steps in flight have run; drafts among them are kept or rejected, and tokens sampled."""
    s = running.state
    r = digits.pick(options)
    processed = digits.amount(s.in_flight(r))
    ran = s.computed(r) - s.in_flight(r) + processed
    drafts = max(0, ran - s.num_tokens(r))
    rejected = digits.below(min(processed, drafts) + 1)
    settled = ran - rejected
    most = min(running.engine.max_model_len, settled + 1) - s.num_tokens(r)
    sampled = digits.amount(most) if most > 0 and digits.below(8) else 0
    token = 1 + digits.below(2)
    return Complete(request=r, processed=processed, rejected=rejected, sampled=(token,) * sampled)


def _execute(running: Running, digits: Digits, _: list[int]) -> Call:
    """The step runs. Only who keeps the ghosts sees it, and no allocator is asked."""
    return Execute()


def _cache_blocks(running: Running, digits: Digits, options: list[int]) -> Call:
    return CacheBlocks(request=digits.pick(options))


def _final_run(running: Running, r: int) -> int:
    """Final tokens of r that have run."""
    s = running.state
    run: int = min(s.num_tokens(r), s.computed(r) - s.in_flight(r))
    return run


def _cache_running(running: Running, digits: Digits, options: list[int]) -> Call:
    """What a running request has computed is published early."""
    r = digits.pick(options)
    return CacheBlocks(request=r, tokens=digits.amount(_final_run(running, r)))


def _finish(running: Running, digits: Digits, options: list[int]) -> Call:
    return Finish(request=digits.pick(options))


def _preempt(running: Running, digits: Digits, options: list[int]) -> Call:
    return Preempt(request=digits.pick(options))


def _remove_skipped(running: Running, digits: Digits, options: list[int]) -> Call:
    return RemoveSkipped(request=digits.pick(options))


def _evict_blocks(running: Running, digits: Digits, hashed: list[int]) -> Call:
    """Mostly blocks that have a hash, held or idle; sometimes any, the null block too."""
    options = hashed if hashed and not digits.one_in(4) else list(range(running.engine.num_blocks))
    return EvictBlocks(blocks=tuple(digits.pick(options) for _ in range(1 + digits.below(3))))


def _reset_prefix_cache(running: Running, digits: Digits, _: list[int]) -> Call:
    return ResetPrefixCache()


def call_fields(call: Call) -> tuple[str, dict[str, Any]]:
    """A call's name and fields, as `Running.step` takes them."""
    return call_name(call), msgspec.structs.asdict(call)


def call_name(call: Call) -> str:
    """A call's name in the protocol, such as `allocate`."""
    return str(type(call).__struct_config__.tag)


def model_config(config: Config) -> dict[str, Any]:
    """The keywords of `Running` for a configuration."""
    fields = msgspec.structs.asdict(config)
    every = fields.pop("retention_interval")
    for name in ("block_size", "sliding_window", "attention_chunk_size", "is_eagle", "extra_retained_tokens"):
        del fields[name]
    reprefillable = max(0, fields.pop("num_prefill_lookahead") - 1)
    groups = tuple(model_group(group) for group in config.all_groups)
    return fields | {
        "groups": groups,
        "num_reprefillable": reprefillable,
        "retention_interval": DENSE if every is None else every,
    }


def model_group(group: Group) -> ModelGroup:
    """A group, in the model."""
    kind, window = FULL, 1
    if group.sliding_window is not None:
        kind, window = SLIDING_WINDOW, group.sliding_window
    elif group.attention_chunk_size is not None:
        kind, window = CHUNKED_LOCAL, group.attention_chunk_size
    return ModelGroup(group.block_size, kind, window, group.is_eagle, group.extra_retained_tokens)


def configurations(seed: int, has_groups: bool = False, has_more: bool = False) -> tuple[Config, ...]:
    """Small engines of every kind, drawn from a seed: windows and full attention in turn, prefix caching on
    and off, watermarks, and pools and model lengths that are tight or roomy; with `has_groups` every fourth
    has two to four attention groups; with `has_more` most of these have chunks, draft heads, or keep few
    blocks of their windows."""
    random, groups, more = Random(seed), Random(seed), Random(seed)
    engines = []
    for index in range(24):
        engines.append(_configuration(random, index))
        if has_groups and index % 3 == 2:
            config = _of_several_groups(groups, index // 3)
            engines.append(_with_more(more, config, index // 3) if has_more else config)
    return tuple(engines)


def _of_several_groups(random: Random, index: int) -> Config:
    """The first group has the smallest blocks, and full attention has no others: vLLM also keys the last
    partial block of a prompt in full attention with larger blocks, which is not in the model (KNOWN.md)."""
    size, other = random.choice(((1, 1), (1, 2), (1, 3), (2, 2), (2, 4), (4, 8)))
    windows = [random.choice((2, 3, 5, 8)) for _ in range(1 + index % 3)]
    num_blocks = random.choice((8, 16, 24, 32))
    return Config(
        num_blocks=num_blocks,
        block_size=size,
        max_model_len=size * random.choice((num_blocks // 4, num_blocks // 2, num_blocks)),
        sliding_window=random.choice((None, None, None, 2 * size + 1)),
        groups=tuple(Group(block_size=other, sliding_window=window) for window in windows),
        watermark_blocks=random.choice((0, 1, 2)),
        max_in_flight_tokens=random.choice((3, 5, 1 << 30, 1 << 30)),
    )


def _with_more(random: Random, config: Config, index: int) -> Config:
    """By turns: chunks for the last group, draft heads, few blocks kept of windows, the last two together."""
    groups, unit = list(config.all_groups), config.scheduler_block_size
    if index % 4 == 0:
        groups = [msgspec.structs.replace(group, block_size=unit) for group in groups]
        groups[-1] = Group(block_size=unit, attention_chunk_size=unit * random.choice((1, 2, 3)))
        groups = groups if random.random() < 0.7 else groups[-1:]
        return _of_groups(config, groups)
    changes: dict[str, Any] = {}
    if index % 4 in (1, 3):
        changes["num_prefill_lookahead"] = lookahead = random.choice((0, 0, 1, min(2, unit), unit))
        groups = _with_draft_head(random, groups, max(0, lookahead - 1))
    if index % 4 in (2, 3):
        changes["retention_interval"] = random.choice((0, 0, 2 * unit, 4 * unit))
    return _of_groups(config, groups, **changes)


def _with_draft_head(random: Random, groups: list[Group], retained: int) -> list[Group]:
    """One group drops, or all of full attention and windows of one kind; windows retain so many tokens."""
    kinds = {(group.block_size, group.sliding_window) for group in groups if group.sliding_window}
    all_drop, chosen = len(kinds) <= 1 and random.random() < 0.3, random.randrange(len(groups))
    return [
        msgspec.structs.replace(
            group,
            is_eagle=all_drop or g == chosen,
            extra_retained_tokens=retained if group.sliding_window else 0,
        )
        for g, group in enumerate(groups)
    ]


def _of_groups(config: Config, groups: list[Group], **changes: Any) -> Config:
    first = msgspec.structs.asdict(groups[0])
    return msgspec.structs.replace(config, **first, groups=tuple(groups[1:]), **changes)


def _configuration(random: Random, index: int) -> Config:
    block_size = random.choice((1, 2, 3, 4, 4, 16))
    num_blocks = random.choice((4, 6, 8, 12, 16, 24, 32, 32))
    pool = num_blocks * block_size
    window = random.randint(1, 3 * block_size + 1) if index % 2 else None
    return Config(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=random.choice((2 * pool, 2 * pool, pool, max(2, pool // 3))),
        sliding_window=window,
        enable_caching=index % 6 < 4,
        watermark_blocks=random.choice((0, 1, 2, num_blocks // 4)),
        max_in_flight_tokens=random.choice((1 << 30, 1 << 30, pool // 2, 2 * block_size + 1, 3)),
    )
