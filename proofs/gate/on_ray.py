"""Turns of a campaign, played ahead by the workers of a Ray cluster (`pip install 'slotproof[ray]'`).

A worker has an implementation of its own, and slotproof installed. One that dies loses the turns that it had,
and they are dealt again.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec

from slotproof.proofs.gate.ahead import AHEAD, Play, Played, Turn
from slotproof.proofs.gate.isolation import Isolated, Load
from slotproof.proofs.output.errors import UserError

REVIVALS = 10
"""Times that workers may be made anew before nobody plays ahead any more."""


def _reach(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


class OnRay:
    """Players that are actors of a cluster. To be closed, as a context.

    Args:
        address: Of the cluster; "local" starts one here for as long as it is open.
        jobs: How many players; as many as the cluster has processors, if it is not said.
        load: Imports the implementation.
        patience: Seconds that a call may take.
        play: Plays a turn.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """

    def __init__(self, address: str, jobs: int | None, load: Load, patience: float, play: Play) -> None:
        try:
            import ray
        except ImportError:
            raise UserError("--ray: Ray is not installed: pip install 'slotproof[ray]'") from None
        self._ray: Any = ray
        try:
            _reach(address)
            where = {"num_cpus": jobs} if address == "local" else {"address": address}
            ray.init(**where, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (OSError, ValueError) as error:
            raise UserError(f"--ray {address}: {' '.join(str(error).split())}") from None
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(_Player)
        self._made_of = (ray.put(load), patience, ray.put(play))
        count = jobs or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._given: dict[Any, dict[Any, Turn]] = {self._new(): {} for _ in range(count)}
        self._played: dict[Turn, Played] = {}
        self._again: list[Turn] = []
        self._next = 0
        self.died = 0
        """Workers that have died so far."""

    def __enter__(self) -> OnRay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for player in self._given:
            with suppress(Exception):
                self._ray.kill(player)
        self._ray.shutdown()

    def take(self, turn: Turn) -> Played | None:
        """What came of the turn; None if nobody has it."""
        self._next = max(self._next, turn.number)
        self._deal(turn)
        while turn not in self._played and self._is_given(turn):
            open_now = [answer for given in self._given.values() for answer in given]
            (answer,), _ = self._ray.wait(open_now, num_returns=1)
            self._receive(answer)
            self._deal(turn)
        return self._played.pop(turn, None)

    def _new(self) -> Any:
        return self._actor.remote(*self._made_of)

    def _is_given(self, turn: Turn) -> bool:
        return any(turn in given.values() for given in self._given.values())

    def _deal(self, turn: Turn) -> None:
        """What was lost, then turns from this one on, to whoever has few."""
        for player, given in self._given.items():
            while len(given) < AHEAD:
                if self._again:
                    new = self._again.pop(0)
                else:
                    new = Turn(self._next, turn.missing)
                    self._next += 1
                given[player.play.remote(msgspec.json.encode(new))] = new

    def _receive(self, answer: Any) -> None:
        player = next(p for p, given in self._given.items() if answer in given)
        try:
            played = msgspec.json.decode(self._ray.get(answer), type=Played)
        except self._ray.exceptions.RayError:
            lost = self._given.pop(player)
            self._again += lost.values()
            self.died += 1
            if self.died <= REVIVALS:
                self._given[self._new()] = {}
            return
        del self._given[player][answer]
        self._played[played.turn] = played


class _Player:
    """An actor: an implementation, and how a turn is played with it."""

    def __init__(self, load: Load, patience: float, play: Play) -> None:
        self._play = play
        self._implementation = Isolated(load, patience)
        self._implementation.start()

    def play(self, turn: bytes) -> bytes:
        return msgspec.json.encode(self._play(self._implementation, msgspec.json.decode(turn, type=Turn)))
