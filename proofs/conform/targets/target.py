"""What a target tells: how an implementation keeps what the model speaks of, and how it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

from slotproof.impl.protocol import Allocator, Config
from slotproof.model.language.state import PREEMPTED, RUNNING, WAITING
from slotproof.proofs.conform.follower import Follower
from slotproof.proofs.conform.numbers import Number, Truth
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.conform.sequences import Items
from slotproof.proofs.conform.situation import Case, Situation


class Target(Protocol):
    """An implementation of `allocate_slots`."""

    @property
    def name(self) -> str:
        """The function."""
        ...

    @property
    def cases(self) -> Sequence[Case]:
        """All situations, apart by how the implementation keeps them."""
        ...

    @property
    def modules(self) -> Sequence[ModuleType]:
        """Where its code looks built-in functions up."""
        ...

    def run(self, situation: Situation, path: Path, follower: Follower) -> None:
        """Make the call once; every request to the pool, and the answer, goes to the follower."""
        ...

    def allocator(self, config: Config) -> Allocator:
        """The implementation behind the gate's protocol, for replays."""
        ...


class Asked:
    """The arguments of a call, as the code gets them."""

    def __init__(self, situation: Situation, path: Path) -> None:
        ask = situation.ask
        self.new, self.lookahead = Number(ask.new), Number(ask.lookahead)
        self.external, self.reserved = Number(ask.external), Number(ask.reserved)
        self.delay_cache, self.must_fit = Truth(ask.delay_cache), Truth(ask.must_fit)
        self.has_scheduled = Truth(ask.has_scheduled)
        self.skipped_groups: Any = _Groups(ask.skip_zeroing)
        self.has_hits = path.decide(situation.num_hits > 0)
        self.hit_tokens: Any = Number(ask.hits.tokens) if self.has_hits else 0
        self.hits = Items(situation.num_hits, lambda i: situation.hit(path, i), Number(0))


class _Groups:
    """The one group, if a condition holds, or none."""

    def __init__(self, condition: Any) -> None:
        self._condition = condition

    def __contains__(self, group: object) -> bool:
        return bool(Truth(self._condition))


class AnyRequest:
    """A request, with what every implementation has; `statuses` are its words for the model's."""

    request_id = "request"

    def __init__(self, situation: Situation, path: Path, statuses: Any, follower: Follower) -> None:
        s, r = situation.before, situation.request
        self._path, self._status = path, s.status(r)
        self._statuses = statuses
        self.num_tokens = Number(s.num_tokens(r))
        self.num_computed_tokens = Number(s.computed(r))
        self.num_in_flight_tokens = Number(s.in_flight(r))
        self.block_hashes: Any = []
        if situation.case.caching:
            full = situation.engine.full_blocks(s.num_tokens(r))
            self.block_hashes = Items(full, follower.key, Number(0))

    @property
    def status(self) -> Any:
        """The run forks: `is` and `==` see the implementation's own word."""
        known = (WAITING, PREEMPTED, RUNNING)
        taken = self._path.choose(*(self._status == status for status in known))
        return self._statuses[taken]
