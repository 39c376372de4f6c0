"""Turns of a campaign, played ahead by other processes, each with an implementation of its own.

A turn depends on its number alone. So others may play it before its time; it counts when its time has come,
and a turn that fails, or that the campaign's budget cuts, is played once more where it counts. What a
campaign finds is the same, however many play.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Protocol

import msgspec

from slotproof.proofs.gate.isolation import Isolated, Load

AHEAD = 3
"""Turns that each player is given at once, so that it never waits."""


class Turn(msgspec.Struct, frozen=True):
    """Which turn, and the behaviours that the campaign has found missing by then."""

    number: int
    missing: tuple[str, ...] = ()


class Played(msgspec.Struct):
    """What came of a turn."""

    turn: Turn
    failed: bool
    calls: int = 0
    sequences: int = 0
    coverage: dict[str, int] = {}

    @property
    def rows(self) -> Counter[str]:
        return Counter(self.coverage)


Play = Callable[[Isolated, Turn], Played]
"""Plays a turn with an implementation, without making a failure simpler."""


class Players(Protocol):
    """Who plays turns ahead."""

    def take(self, turn: Turn) -> Played | None:
        """What came of the turn; None if nobody has played it, and nobody will."""
        ...


class Nobody:
    """Whoever campaigns plays alone."""

    def take(self, turn: Turn) -> None:
        return None


class Processes:
    """Players that are processes here. To be closed, as a context.

    Args:
        jobs: How many. The one that campaigns waits for them, and plays what counts otherwise.
        load: Imports the implementation.
        patience: Seconds that a call may take.
        play: Plays a turn.
    """

    def __init__(self, jobs: int, load: Load, patience: float, play: Play) -> None:
        context = multiprocessing.get_context("fork")
        self._players: dict[Connection, BaseProcess] = {}
        self._given: dict[Connection, list[Turn]] = {}
        self._played: dict[Turn, Played] = {}
        self._next = 0
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            player = context.Process(target=_serve, args=(theirs, load, patience, play), daemon=False)
            player.start()
            theirs.close()
            self._players[ours], self._given[ours] = player, []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for pipe, player in self._players.items():
            pipe.close()
            player.terminate()
            player.join()

    def take(self, turn: Turn) -> Played | None:
        """What came of the turn; None if whoever had it has died, or nobody is left."""
        self._next = max(self._next, turn.number)
        self._deal(turn)
        while turn not in self._played and any(turn in given for given in self._given.values()):
            for pipe in wait(list(self._players)):
                assert isinstance(pipe, Connection)
                self._receive(pipe)
            self._deal(turn)
        return self._played.pop(turn, None)

    def _deal(self, turn: Turn) -> None:
        """Turns from this one on, to whoever has few."""
        for pipe, given in self._given.items():
            while len(given) < AHEAD:
                new = Turn(self._next, turn.missing)
                self._next += 1
                with suppress(OSError):  # it has died, which is seen when it is listened to
                    pipe.send_bytes(msgspec.json.encode(new))
                given.append(new)

    def _receive(self, pipe: Connection) -> None:
        try:
            played = msgspec.json.decode(pipe.recv_bytes(), type=Played)
        except (EOFError, OSError):
            self._players.pop(pipe).join()
            del self._given[pipe]  # its share is played by whoever campaigns
            return
        self._given[pipe].remove(played.turn)
        self._played[played.turn] = played


def _serve(pipe: Connection, load: Load, patience: float, play: Play) -> None:
    """Play the turns that come, until none does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever campaigns is interrupted, and ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with closing(Isolated(load, patience)) as implementation:
        implementation.start()
        with suppress(EOFError, OSError):
            while True:
                turn = msgspec.json.decode(pipe.recv_bytes(), type=Turn)
                pipe.send_bytes(msgspec.json.encode(play(implementation, turn)))
