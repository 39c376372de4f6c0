"""A call and the states around it: what a sentence about a broken claim can speak of."""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.impl.protocol import Call
from slotproof.model.claims.statements import CHECKS
from slotproof.model.language.state import NULL_BLOCK, State
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import waits
from slotproof.model.system.allocate_slots import Answer
from slotproof.model.system.prefix_cache import Hits, get_computed_blocks
from slotproof.proofs.stories.why.decisions import Label, Line


@dataclass(frozen=True)
class Scene:
    """A call, and the states around it."""

    call: Call
    before: State
    after: State
    answer: Answer | None
    running: Running
    label: Label
    failed: Line | None = None
    """Where the call failed half way, if it did."""

    @property
    def request(self) -> int:
        """The request that the call is about."""
        return int(getattr(self.call, "request", -1))

    @property
    def num_usable(self) -> int:
        """The blocks of the pool, the null block aside."""
        return int(self.after.engine.num_blocks) - 1

    def block(self, b: int) -> str:
        """A block in the state after the call, in words."""
        s = self.after
        if b == NULL_BLOCK:
            return "the null block"
        free = f"at {s.rank(b)} in the free queue" if s.is_free(b) else "not in the free queue"
        key = f"key {self.label(s, b)}" if s.is_hashed(b) else "no hash"
        return f"block {b} (ref_cnt {s.ref_cnt(b)}, {free}, {key})"

    def entry(self, r: int, i: int) -> str:
        """An entry of a block table after the call, in words."""
        return f"entry {i} of request {r}'s table, {self.block(self.after.table(r, i))},"

    def lookup(self, claim: str, values: tuple[int, ...]) -> tuple[int, Hits]:
        """The request whose lookup breaks a check, and what it finds."""
        s = self.after
        check = next(check for check in CHECKS if check.name == claim)
        for r in self.running.requests:
            if waits(s, r) and s.computed(r) == 0:
                hits = get_computed_blocks(s, r)
                if not check.holds(s, r, hits, *values):
                    return r, hits
        raise ValueError(f"{claim} holds after {self.call}")
