"""What was followed of some managers, what not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from slotproof.proofs.output.words import counted


@dataclass
class Summary:
    """Counts, over any number of managers."""

    managers: int = 0
    """All that were seen."""
    followed: int = 0
    """Of these, those that were followed from their first call on,"""
    stopped: int = 0
    """and of these, those that were not followed to the end."""
    several_groups: int = 0
    """Of those that were followed, those with several attention groups."""
    calls: int = 0
    """Calls that were followed and agree."""
    lookups: int = 0
    """Of these, lookups."""
    not_followed: Counter[str] = field(default_factory=Counter)
    """Calls that were not followed, by why."""
    never: Counter[str] = field(default_factory=Counter)
    """Managers of which no call was followed, by why."""
    unseen: Counter[str] = field(default_factory=Counter)
    """What was not compared, by how many managers."""
    outside: Counter[str] = field(default_factory=Counter)
    """Calls outside the caller's contract, by the precondition; they were followed all the same."""
    violations: int = 0

    def add(self, other: Summary) -> None:
        """Count another summary in."""
        for name in ("managers", "followed", "stopped", "several_groups", "calls", "lookups", "violations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("not_followed", "never", "unseen", "outside"):
            getattr(self, name).update(getattr(other, name))

    @property
    def lines(self) -> Iterator[str]:
        """For people."""
        of = f" of {self.managers}" if self.followed < self.managers else ""
        more = [f"{self.several_groups} with several groups"] if self.several_groups else []
        if self.stopped:
            more.append(f"{self.followed - self.stopped} to the end")
        yield (
            f"followed {counted(self.calls, 'call')} of {counted(self.followed, 'manager')}{of}"
            f"{' (' + ', '.join(more) + ')' if more else ''}: "
            + (counted(self.violations, "violation") if self.violations else "none in disagreement")
        )
        if self.not_followed:
            yield f"not followed: {counted(self.not_followed.total(), 'call')}"
        for why, calls in self.not_followed.most_common():
            yield f"  {counted(calls, 'call')}: {why}"
        for why, managers in self.never.most_common():
            yield f"  {counted(managers, 'manager')} not followed at all: {why}"
        for what, calls in self.outside.most_common():
            yield f"  outside the caller's contract, and followed: {what} ({counted(calls, 'call')})"
        for what, managers in self.unseen.most_common():
            yield f"  not compared of {counted(managers, 'manager')}: {what}"
