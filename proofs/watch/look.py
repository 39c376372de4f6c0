"""How a manager's state is looked at beside the model's: live, or as far as it was written down."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeAlias

from msgspec import structs

from slotproof.impl.protocol import Snapshot
from slotproof.model.running import Running
from slotproof.proofs.gate.compare import Difference, expected_snapshot


class Look(Protocol):
    """Compares one manager's state with the model's."""

    def after_call(self) -> list[Difference]:
        """Where they differ, after a call of both."""
        ...

    def is_as_before(self) -> bool:
        """Before a call: nothing was written since the last."""
        ...

    def whole(self) -> list[Difference]:
        """Where they differ anywhere, if it can be said now."""
        ...

    def snapshot(self) -> Snapshot | None:
        """What the manager shows now, if it can be said."""
        ...

    def keys_in_use(self) -> frozenset[int]:
        """The keys of the model's blocks; of all others it is forgotten which of the manager's they are."""
        ...


MakeLook: TypeAlias = Callable[[Running, dict[int, str], bool], Look]
"""Makes it, of the model, the requests' ids by the model's numbers, and whether the blocks to zero are
compared."""


def expected(running: Running, known: Collection[int]) -> Snapshot:
    """What a manager should show: of the requests in `known`, for one whose blocks were taken out to be freed
    later has no table."""
    shown, owner = expected_snapshot(running), running.engine.owner
    return structs.replace(shown, tables={row: t for row, t in shown.tables.items() if owner(row) in known})
