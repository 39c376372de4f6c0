"""What a scheduler is put through: engines of every kind, and requests that come, end and disturb."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from random import Random

from slotproof.impl.device.model_runner import VOCABULARY
from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.connector import Match
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig, SchedulingPolicy

LIVE_REQUESTS = 10
"""Requests alive at once, at most."""
MAX_DRAFTS = 3
MAX_STEPS_IN_FLIGHT = 3
_TAGS = [(0, 0)] * 8 + [(1, 0), (0, 1), (0, 2), (1, 1)]
"""Cache salt and LoRA; mostly none. Both LoRAs have one name (vllm#30931)."""


@dataclass(frozen=True)
class Setup:
    """An engine and how it is run."""

    config: Config
    scheduler: SchedulerConfig
    steps_in_flight: int = 1
    """Steps scheduled before the answer of the first of them is known, at most."""
    has_connector: bool = False


@dataclass(frozen=True)
class Arrival:
    """A request that comes."""

    tokens: tuple[int, ...]
    max_tokens: int
    salt: int
    lora: int
    priority: int
    skip_reading_prefix_cache: bool


def setups(seed: int, unpublish: bool = True) -> tuple[Setup, ...]:
    """Engines in which each request fits the pool alone: both policies, windows and full attention, steps in
    flight, drafts and connectors in all combinations, pools tight and roomy."""
    random = Random(seed)
    return tuple(_setup(random, index, unpublish) for index in range(32))


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
        enable_caching=random.random() < 0.9,
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


class Workload:
    """Draws what happens next.

    Args:
        setup: The engine.
        random: Where all draws come from.
    """

    def __init__(self, setup: Setup, random: Random) -> None:
        self.random = random
        self._max_model_len = setup.config.max_model_len
        self._earlier: list[Arrival] = []
        # Then those that run first are preempted first, often when the step has them already.
        self._latest_first = self.one_in(2)

    def one_in(self, n: float) -> bool:
        """True once in n."""
        return self.random.random() * n < 1

    def arrival(self) -> Arrival:
        """A prompt that starts as an earlier one does or as a fixed stream, and may end otherwise."""
        random = self.random
        length = random.randint(1, (self._max_model_len - 1) // random.choice((1, 2, 4)) or 1)
        earlier = random.choice(self._earlier[-LIVE_REQUESTS:]) if self._earlier and self.one_in(2) else None
        stream = ((earlier.tokens if earlier else ()) + (1,) * length)[:length]
        tail = random.randint(0, length) if self.one_in(2) else 0
        tokens = stream[: length - tail] + tuple(random.randrange(VOCABULARY) for _ in range(tail))
        max_tokens = random.randint(1, max(1, self._max_model_len - length))
        priority = -1 - len(self._earlier) if self._latest_first else random.randrange(4)
        salt, lora = random.choice(_TAGS)
        if earlier and earlier.lora and self.one_in(2):
            salt, lora = earlier.salt, 3 - earlier.lora  # the other LoRA of the same name
        self._earlier.append(Arrival(tokens, max_tokens, salt, lora, priority, self.one_in(12)))
        return self._earlier[-1]

    def abort(self, kinds: dict[int, Hashable]) -> int:
        """A request to abort, of requests by what they are doing: the rare ones are as likely."""
        kind = self.random.choice(sorted(set(kinds.values()), key=repr))
        return self.random.choice([request for request, of_kind in kinds.items() if of_kind == kind])

    def match(self, most: int) -> Match:
        """What a connector has, of `most` tokens."""
        if most < 1 or self.one_in(2):
            return Match()
        return Match(self.random.randint(1, most), is_async=self.one_in(2))
