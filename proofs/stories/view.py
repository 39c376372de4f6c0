"""What a page shows of a story, part by part: the start and every call, each with its state, and what stands
out in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from slotproof.proofs.output.words import counted
from slotproof.proofs.stories.told import Change, Entry, Key, Request, Shown, Step, Table, Told

COUNTS = ("prompt", "output", "computed", "in flight", "drafts", "salt", "lora")
"""What is said of a request beside its name, where it is not 0 or has just changed."""


@dataclass(frozen=True)
class Slot:
    """A token of a request, or a slot without one."""

    kind: str
    """As a span's."""
    draft: bool
    text: str
    """The token, `?` for a draft, nothing for an empty slot."""
    title: str


@dataclass(frozen=True)
class Cell:
    """A block's slots over its entry of the block table; an entry still to come is None."""

    slots: tuple[Slot, ...]
    entry: Entry | None


@dataclass(frozen=True)
class View:
    """The start, or a call and the state after it."""

    number: int
    """0 for the start."""
    step: Step | None
    state: Shown
    changes: tuple[tuple[str, str], ...]
    """What changed, each with its subject."""
    changed: frozenset[str]
    """The subjects that changed, and their fields: `block 3`, `request 0 computed`."""
    queued: frozenset[int]
    """Blocks that came into the free queue."""
    keys: tuple[Key, ...]
    """The keys that some block has had by now."""
    blamed_blocks: tuple[int, ...]
    blamed_requests: tuple[int, ...]
    """What the broken statement is about, where it breaks."""
    summary: str
    """All of it in one sentence, for those who hear it."""

    @property
    def outcome(self) -> str:
        """How the call went: `granted`, `refused`, `fails` or `done`."""
        result = self.step.result if self.step else ""
        if result.startswith("fails"):
            return "fails"
        if result.startswith("None") or result == "refused":
            return "refused"
        return "granted" if result.startswith("new blocks") or result == "reset" else "done"

    def counts(self, request: Request) -> list[tuple[str, int, bool]]:
        """The counts of a request that are shown, and whether each has just changed."""
        told = []
        for field in COUNTS:
            value = getattr(request, field.replace(" ", "_"))
            moved = f"request {request.request} {field}" in self.changed
            if value or moved:
                told.append((field, value, moved))
        return told


def views(told: Told) -> list[View]:
    """The start of a story, and its calls."""
    shown = [_view(told, 0, None, told.initial, told.initial, set())]
    seen = {block.key for block in told.initial.blocks}
    for step in told.steps:
        seen |= {block.key for block in step.state.blocks}
        shown.append(_view(told, step.number, step, told.before(step), step.state, seen))
    return shown


def _view(
    told: Told, number: int, step: Step | None, before: Shown, state: Shown, seen: set[str | None]
) -> View:
    changes = step.changes if step else ()
    blamed = told.broken if number == len(told.steps) else None
    by_subject = tuple(_by_subject(changes))
    return View(
        number=number,
        step=step,
        state=state,
        changes=by_subject,
        changed=frozenset(s for c in changes for s in (c.subject, f"{c.subject} {c.field}")),
        queued=frozenset(state.free_queue) - frozenset(before.free_queue),
        keys=tuple(key for key in told.keys if key.label in seen),
        blamed_blocks=blamed.blocks if blamed else (),
        blamed_requests=blamed.requests if blamed else (),
        summary=_summary(told, step, by_subject),
    )


def _by_subject(changes: tuple[Change, ...]) -> Iterator[tuple[str, str]]:
    for subject, group in groupby(changes, key=lambda c: c.field if c.subject == "pool" else c.subject):
        fields = [("" if c.subject == "pool" else f"{c.field} ") + f"{c.before} → {c.after}" for c in group]
        yield subject, ", ".join(fields)


def _summary(told: Told, step: Step | None, changes: tuple[tuple[str, str], ...]) -> str:
    if step is None:
        return f"Before the first call: {counted(len(told.initial.free_queue), 'block')} free."
    said = f"Call {step.number} of {len(told.steps)}: {step.call}. {step.result}. "
    said += f"{step.decided.stage}: {step.decided.text}."
    if step is told.steps[-1]:
        broken = told.broken
        said += f" {broken.statement} falls: {broken.reason}." if broken else f" {told.reached} is reached."
    listed = "; ".join(f"{subject}: {text}" for subject, text in changes)
    return f"{said} Changed: {listed}." if listed else said


def ruler(request: Request, table: Table) -> list[Cell]:
    """The tokens and slots of a request in a group, in its blocks, each over its entry of the block table."""
    slots = [
        _slot(request, span.kind, span.draft, i) for span in table.spans for i in range(span.start, span.end)
    ]
    size, entries = table.block_size, table.entries
    num_cells = max(-(-len(slots) // size), len(entries))
    return [
        Cell(tuple(slots[i * size : (i + 1) * size]), entries[i] if i < len(entries) else None)
        for i in range(num_cells)
    ]


def _slot(request: Request, kind: str, draft: bool, i: int) -> Slot:
    token = str(request.tokens[i]) if i < len(request.tokens) else "?"
    text = "" if kind in ("spare", "lookahead") else token
    return Slot(kind, draft, text, f"token {i}, {'draft, ' if draft else ''}{kind}")


MEANINGS = {
    "computed": "computed",
    "in flight": "in flight",
    "hit": "prefix hit",
    "external": "external",
    "new": "new in this call",
    "lookahead": "lookahead slot",
    "spare": "spare slot",
    "todo": "to be computed",
}


def legend(told: Told) -> list[tuple[str, bool, str]]:
    """The kinds of slots in a story, whether a draft, and what each means."""
    states = (told.initial, *(step.state for step in told.steps))
    tables = [table for state in states for request in state.requests for table in request.tables]
    spans = [span for table in tables for span in table.spans]
    kinds = {span.kind for span in spans}
    told_kinds = [(kind, False, meaning) for kind, meaning in MEANINGS.items() if kind in kinds]
    return told_kinds + [("", True, "draft, not final")] * any(span.draft for span in spans)
