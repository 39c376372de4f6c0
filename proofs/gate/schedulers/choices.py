"""What a step leaves to choice: drawn and noted, or given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import structs

from slotproof.impl.scheduler.connector import Match
from slotproof.proofs.traces.script import Choice


class Draw(Protocol):
    """Draws numbers and matches."""

    def number(self, most: int) -> int:
        """From 0 to `most`."""
        ...

    def accepted(self, most: int) -> int:
        """How many of `most` drafts turn out right."""
        ...

    def match(self, most: int) -> Match:
        """What a connector has, of `most` tokens."""
        ...


class Drawn:
    """The choices of one step, drawn when they are asked for.

    Args:
        draw: Where they come from.
        name: The number under which a request arrived.
    """

    def __init__(self, draw: Draw, name: Callable[[int], int]) -> None:
        self._draw = draw
        self._name = name
        self._made: dict[int, Choice] = {}
        self._matches: dict[int, Match] = {}

    def accepted(self, request: int, most: int) -> int:
        """Drafts that turn out right."""
        number = self._draw.accepted(most)
        self._note(request, accepted=number)
        return number

    def proposed(self, request: int, most: int) -> int:
        """Drafts for the next step."""
        number = self._draw.number(most)
        self._note(request, drafts=number)
        return number

    def match(self, request: int, most: int) -> Match:
        """What the connector has for a request: the same all step long."""
        if request not in self._matches:
            match = self._matches[request] = self._draw.match(most)
            if match.num_tokens:
                self._note(request, external=match.num_tokens, is_async=match.is_async)
        return self._matches[request]

    @property
    def made(self) -> tuple[Choice, ...]:
        """All of them, so far."""
        return tuple(choice for r, choice in self._made.items() if choice != Choice(r))

    def _note(self, request: int, **made: int) -> None:
        name = self._name(request)
        self._made[name] = structs.replace(self._made.get(name, Choice(name)), **made)


class Given:
    """The choices of one step as they were made before; what does not fit any more is cut down.

    Args:
        choices: They.
        name: The number under which a request arrived.
    """

    def __init__(self, choices: Iterable[Choice] = (), name: Callable[[int], int] = lambda r: r) -> None:
        self._choices = {choice.request: choice for choice in choices}
        self._name = name

    def accepted(self, request: int, most: int) -> int:
        """Drafts that turn out right."""
        return min(self._of(request).accepted, most)

    def proposed(self, request: int, most: int) -> int:
        """Drafts for the next step."""
        return min(self._of(request).drafts, most)

    def match(self, request: int, most: int) -> Match:
        """What the connector has for a request."""
        choice = self._of(request)
        external = max(0, min(choice.external, most))
        return Match(external, choice.is_async) if external else Match()

    def _of(self, request: int) -> Choice:
        name = self._name(request)
        return self._choices.get(name, Choice(name))
