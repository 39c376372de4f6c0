"""What a scheduler is put through: engines of every kind, and requests that come, end and disturb."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from msgspec import structs

from slotproof.impl.device.model_runner import VOCABULARY
from slotproof.impl.protocol import Config, Group
from slotproof.impl.scheduler.connector import Match
from slotproof.impl.scheduler.protocol import Arrival, Setup
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy
from slotproof.proofs.traces.script import Abort, Add, Answer, Arrive, Drain, Event, Reset, Step

LIVE_REQUESTS = 10
"""Requests alive at once, at most."""
MAX_DRAFTS = 3
MAX_STEPS_IN_FLIGHT = 3
_DRAFTS = [(drafts, accepted) for drafts in range(1, MAX_DRAFTS + 1) for accepted in range(drafts + 1)]
_TAGS = [(0, 0)] * 8 + [(1, 0), (0, 1), (0, 2), (1, 1)]
"""Cache salt and LoRA; mostly none. Both LoRAs have one name (vllm#30931)."""


def fit(setup: Setup, lacks: Collection[str]) -> Setup:
    """The engine, for a scheduler without connectors, of one attention group, that lacks something."""
    config, scheduler = structs.replace(setup.config, groups=()), setup.scheduler
    if "sliding_window" in lacks:
        config = structs.replace(config, sliding_window=None)
    if "prefix_caching" in lacks:
        config = structs.replace(config, enable_caching=False)
    if "priority" in lacks:
        scheduler = structs.replace(scheduler, policy=SchedulingPolicy.FCFS)
    if "chunked_prefill" in lacks:
        most = max(scheduler.max_num_scheduled_tokens, config.max_model_len)
        scheduler = structs.replace(scheduler, max_num_scheduled_tokens=most, long_prefill_token_threshold=0)
    if "drafts" in lacks:
        scheduler = structs.replace(scheduler, num_spec_tokens=0)
    if "drafts" in lacks or "lookahead" in lacks:
        scheduler = structs.replace(scheduler, num_lookahead_tokens=0)
    steps = setup.steps_in_flight
    if "steps_in_flight" in lacks:
        scheduler, steps = structs.replace(scheduler, async_scheduling=False), 1
    return Setup(config, scheduler, steps)


class Situation(Protocol):
    """What a workload looks at before it draws what happens next."""

    steps: int
    """Steps so far."""
    is_idle: bool
    """The last of them had nothing to do."""

    @property
    def in_flight(self) -> Sequence[object]:
        """Steps that are not answered."""
        ...

    @property
    def alive(self) -> list[int]:
        """Requests that have not ended."""
        ...

    @property
    def loading(self) -> list[int]:
        """Requests whose load is under way."""
        ...

    @property
    def doing(self) -> dict[int, Hashable]:
        """By the number that it arrived under, what a request is doing."""
        ...


def setups(seed: int, unpublish: bool = True) -> tuple[Setup, ...]:
    """Engines in which each request fits the pool alone: both policies, windows and full attention, steps in
    flight, drafts and connectors in all combinations, pools tight and roomy; after every three, one more with
    two to four attention groups."""
    random, groups = Random(seed), Random(seed)
    drawn: list[Setup] = []
    for index in range(32):
        drawn.append(_setup(random, index, unpublish))
        if index % 3 == 2:
            drawn.append(_of_several_groups(groups, index // 3, drawn[groups.randrange(len(drawn))]))
    return tuple(drawn)


def _of_several_groups(random: Random, index: int, setup: Setup) -> Setup:
    """An engine that is run as another one. Full attention has the smallest blocks: 0.32.0 keys a partial
    last one of larger ones too, which is not in the model (KNOWN.md)."""
    size, other = random.choice(((1, 1), (1, 2), (2, 2), (2, 4), (2, 6), (3, 3)))
    windows = [random.choice((2, 3, 5, 8)) for _ in range(1 + index % 3)]
    config = structs.replace(
        setup.config,
        block_size=size,
        sliding_window=random.choice((None, None, None, 2 * size + 1)),
        groups=tuple(Group(block_size=other, sliding_window=window) for window in windows),
    )
    drafts, lookahead = setup.scheduler.num_spec_tokens, setup.scheduler.num_lookahead_tokens
    spare = _blocks(config, 1 + drafts + lookahead) if drafts else 0
    pool = random.randint(10, 16) + 4 * len(windows)
    most = max(tokens for tokens in range(pool * size) if _blocks(config, tokens) <= pool)
    config = structs.replace(
        config, num_blocks=1 + spare + pool, max_model_len=max(4, random.randint(most // 2, most))
    )
    return structs.replace(setup, config=config)


def _blocks(config: Config, tokens: int) -> int:
    """The blocks that so many tokens need in all groups, if none is given back."""
    return sum(-(-tokens // group.block_size) for group in config.all_groups)


def _setup(random: Random, index: int, unpublish: bool) -> Setup:
    block_size = random.choice((1, 2, 2, 3, 4, 8))
    num_blocks = random.randint(8, 18)
    drafts = 1 + index % MAX_DRAFTS if index & 4 else 0
    lookahead = random.choice((0, drafts))
    is_async = bool(index & 8)
    in_flight = random.randint(2, MAX_STEPS_IN_FLIGHT) if is_async else random.choice((1, 1, 2))
    budget = random.choice((4, 8, 16, 32))
    # A load must leave one step's blocks free (0.32.0), or it waits for ever.
    spare = -(-(1 + drafts + lookahead) // block_size) if drafts else 0
    pool = (num_blocks - 1 - spare) * block_size
    config = Config(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max(4, random.randint(pool // 4, pool)),
        sliding_window=random.randint(2, 3 * block_size + 1) if index & 2 else None,
        enable_caching=index % 10 != 7,
        watermark_blocks=random.choice((0, 0, 1, 2)),
        max_in_flight_tokens=random.choice((1 << 30, in_flight * budget)),
    )
    scheduler = SchedulerConfig(
        policy=SchedulingPolicy.PRIORITY if index & 1 else SchedulingPolicy.FCFS,
        max_num_scheduled_tokens=budget,
        long_prefill_token_threshold=random.choice((0, max(1, budget // 3))),
        max_num_running_reqs=random.choice((4, 16)),
        num_spec_tokens=drafts,
        num_lookahead_tokens=lookahead,
        scheduler_reserve_full_isl=random.random() < 0.5,
        async_scheduling=is_async,
        unpublish=unpublish,
    )
    return Setup(config, scheduler, in_flight, has_connector=bool(index & 16) or random.random() < 0.3)


@dataclass(frozen=True)
class Mood:
    """How often things happen: once in so many times."""

    aborts: float = 10.0
    aborts_of_arrived: float = 8.0
    """Of a request whose load has just arrived."""
    resets: float = 40.0
    arrivals: float = 4.0
    """Of a load that is under way."""
    loads: float = 2.0
    """When the connector is asked."""
    delays: float = 2.0
    """Of a load: it is asynchronous."""
    same_lora_name: float = 2.0
    """After a request with a LoRA, one with the other LoRA of its name."""
    skips: float = 12.0
    """A request that is not looked up."""
    latest_first: float = 2.0
    """A workload in which those that run first are preempted first, often when the step has them already."""


_STEERED: dict[str, dict[str, float]] = {
    "aborted": {"aborts": 3},
    "aborted: loading": {"loads": 1.2, "delays": 1.2},
    "aborted: loaded": {"aborts_of_arrived": 1.5, "loads": 1.2, "delays": 1.2},
    "answer": {"aborts": 3, "resets": 10},
    "cache: a LoRA": {"same_lora_name": 1},
    "cache: a lookup is skipped": {"skips": 3},
    "external": {"loads": 1.2},
    "load": {"loads": 1.2},
    "load: two": {"delays": 1.2, "arrivals": 10},
    "load: arrives for": {"aborts": 3, "delays": 1.2, "arrivals": 8},
    "preempted": {"latest_first": 1},
    "refused: stage 2, by reserved": {"loads": 1.1, "delays": 1.1, "arrivals": 8},
    "reset": {"resets": 8},
}
"""By the beginning of a row's name, what makes it likelier."""


def steered(rows: Collection[str]) -> Mood:
    """The mood in which these rows of coverage are likely; the usual one for none."""
    changes: dict[str, float] = {}
    for beginning, rates in _STEERED.items():
        if any(row.startswith(beginning) for row in rows):
            changes |= rates
    return replace(Mood(), **changes)


class Workload:
    """Draws what happens next.

    Args:
        setup: The engine.
        random: Where all draws come from.
        wanted: Rows of coverage to make likely.
        lacks: What the scheduler cannot do, and is not asked (`impl/scheduler/protocol.py`).
    """

    def __init__(
        self, setup: Setup, random: Random, wanted: Collection[str] = (), lacks: Collection[str] = ()
    ) -> None:
        self._random = random
        self._setup = setup
        self._mood = steered(wanted)
        self._lacks = lacks
        self._plain = [name for name in lacks if name in Arrival.__struct_fields__]
        self._wanted_drafts = [d for d in _DRAFTS if f"drafts: {d[1]} of {d[0]} accepted" in wanted]
        self._earlier: list[Arrival] = []
        self._latest_first = self._one_in(self._mood.latest_first)

    def events(self, now: Situation, steps: int, patience: int | None) -> Iterator[Event]:
        """So many steps with all that may happen, and, unless `patience` is None, at most so many more until
        every request has finished."""
        for _ in range(steps):
            yield from self._arrivals(now)
            yield from self._disturbances(now)
            yield from self._step(now)
        while patience is not None and (now.alive or now.in_flight):
            if now.steps > steps + patience:
                yield Drain(0)
            yield from self._arrivals(now)
            yield from self._step(now)

    def number(self, most: int) -> int:
        """From 0 to `most`."""
        return self._random.randint(0, most)

    def accepted(self, most: int) -> int:
        """How many of `most` drafts turn out right: what is wanted, if it is."""
        wanted = [accepted for drafts, accepted in self._wanted_drafts if drafts == most]
        return self._random.choice(wanted) if wanted else self.number(most)

    def match(self, most: int) -> Match:
        """What a connector has, of `most` tokens."""
        if most < 1 or not self._one_in(self._mood.loads):
            return Match()
        return Match(self._random.randint(1, most), is_async=self._one_in(self._mood.delays))

    def _arrivals(self, now: Situation) -> Iterator[Event]:
        """Loads arrive."""
        arrived = tuple(request for request in now.loading if self._one_in(self._mood.arrivals))
        if arrived:
            yield Arrive(arrived)
            if self._one_in(self._mood.aborts_of_arrived):
                yield Abort(arrived[0])

    def _disturbances(self, now: Situation) -> Iterator[Event]:
        """Requests come and are aborted, the prefix cache is reset."""
        while len(now.alive) < LIVE_REQUESTS and self._one_in(2.5):
            yield Add(self._arrival())
        if now.alive and self._one_in(self._mood.aborts):
            yield Abort(self._victim(now.doing))
        if self._one_in(self._mood.resets) and "reset_prefix_cache" not in self._lacks:
            yield Reset(self._one_in(2) and "preemption" not in self._lacks)

    def _step(self, now: Situation) -> Iterator[Event]:
        """A step, and the answers of some that are in flight."""
        yield Step()
        most = 0 if now.is_idle else self._setup.steps_in_flight - 1
        while len(now.in_flight) > most or (now.in_flight and self._one_in(4)):
            yield Answer()

    def _one_in(self, n: float) -> bool:
        """True once in n."""
        return self._random.random() * n < 1

    def _arrival(self) -> Arrival:
        """A prompt that starts as an earlier one does or as a fixed stream, and may end otherwise."""
        random, most = self._random, self._setup.config.max_model_len
        length = random.randint(1, (most - 1) // random.choice((1, 2, 4)) or 1)
        earlier = random.choice(self._earlier[-LIVE_REQUESTS:]) if self._earlier and self._one_in(2) else None
        stream = ((earlier.tokens if earlier else ()) + (1,) * length)[:length]
        tail = random.randint(0, length) if self._one_in(2) else 0
        salt, lora = random.choice(_TAGS)
        if earlier and earlier.lora and self._one_in(self._mood.same_lora_name):
            salt, lora = earlier.salt, 3 - earlier.lora  # the other LoRA of the same name
        arrival = Arrival(
            request=len(self._earlier),
            tokens=stream[: length - tail] + tuple(random.randrange(VOCABULARY) for _ in range(tail)),
            max_tokens=random.randint(1, max(1, most - length)),
            salt=salt,
            lora=lora,
            priority=-1 - len(self._earlier) if self._latest_first else random.randrange(4),
            skip_reading_prefix_cache=self._one_in(self._mood.skips),
        )
        arrival = structs.replace(arrival, **dict.fromkeys(self._plain, 0))
        self._earlier.append(arrival)
        return arrival

    def _victim(self, doing: dict[int, Hashable]) -> int:
        """A request to abort: the rare things to be doing are as likely."""
        kind = self._random.choice(sorted(set(doing.values()), key=repr))
        return self._random.choice([request for request, of_kind in doing.items() if of_kind == kind])
