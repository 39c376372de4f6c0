"""Every manager that is made, followed from its first call on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from slotproof.impl.vllm.live.attach import on_every_manager
from slotproof.impl.vllm.live.calls import Calls
from slotproof.impl.vllm.live.describe import describe
from slotproof.impl.vllm.live.events import Event
from slotproof.impl.vllm.live.view import View
from slotproof.proofs.watch.alike import Alike
from slotproof.proofs.watch.follower import Follower
from slotproof.proofs.watch.summary import Summary
from slotproof.proofs.watch.violation import Violation


class Watching:
    """Follows every `KVCacheManager` that is made while it is open.

    Raises:
        ImportError: vLLM is not installed or does not import.
    """

    def __init__(self) -> None:
        self.summary = Summary()
        self._followed: list[tuple[Follower, Calls]] = []
        self._end: Callable[[], None] = on_every_manager(self._made)

    def _made(self, manager: Any) -> None:
        self.attach(manager)

    def attach(self, manager: Any) -> Follower | None:
        """Follow a manager that has not been used yet; None if it cannot be followed, which is counted."""
        found = describe(manager)
        if found.config is None:
            self.summary.managers += 1
            for why in found.cannot:
                self.summary.never[why] += 1
            return None
        name = f"manager {self.summary.managers + 1}"
        look = partial(Alike, View(manager))
        follower = Follower(found.config, look, self.summary, name, found.unseen)
        calls = Calls(manager, _Safely(follower), follower.before)
        self._followed.append((follower, calls))
        return follower

    @property
    def violations(self) -> list[Violation]:
        """What was not as the model has it, at most one for each manager."""
        return [follower.violation for follower, _ in self._followed if follower.violation is not None]

    def close(self) -> None:
        """Follow no more: managers are left as they were, and compared once more."""
        self._end()
        for follower, calls in self._followed:
            calls.detach()
            follower.at_rest()


class _Safely:
    """A follower that fails is no failure of what it follows: it stops, and says so."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def __call__(self, event: Event) -> None:
        try:
            self._follower(event)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._follower.stop(f"slotproof itself failed ({type(error).__name__}: {error}, {where.name})")
