"""What a kind of attention decides; everything else is the same for all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from slotproof.model.language.algebra import Bool, Int, ite
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import CHUNKED_LOCAL, FULL, SLIDING_WINDOW
from slotproof.model.language.state import State
from slotproof.model.system.attention import chunked_local, full_attention, sliding_window


class Kind(Protocol):
    """A module with these functions is a kind of attention. `g` is a group of that kind."""

    def skipped_tokens(self, engine: Engine, g: Int, computed: Int) -> Int:
        """Tokens that nothing attends to any more from token `computed` on."""
        ...

    def admission_cap(self, engine: Engine, g: Int) -> Int | None:
        """The most blocks a request can hold at once; None if it holds all it ever had."""
        ...

    def hit_start(self, engine: Engine, g: Int, blocks: Int) -> Int:
        """The first of `blocks` blocks that the token behind them attends to, and a hit of them needs."""
        ...

    def is_reachable(self, s: State, row: Int, i: Int) -> Bool:
        """A hit may need entry i of a row: it is worth a hash."""
        ...


KINDS: dict[int, Kind] = {
    FULL: full_attention,
    SLIDING_WINDOW: sliding_window,
    CHUNKED_LOCAL: chunked_local,
}


def by_kind(engine: Engine, g: Int, of: Callable[[Kind], Any]) -> Any:
    """`of` the kind of attention of group g."""
    number = engine.groups.kind(g)
    if isinstance(number, int):
        return of(KINDS[number])
    chosen = of(full_attention)
    for kind in (kind for kind in engine.groups.kinds if kind != FULL):
        chosen = ite(number == kind, of(KINDS[kind]), chosen)
    return chosen
