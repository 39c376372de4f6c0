"""A story on a terminal or in a pipe: one block of lines for each call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slotproof.proofs.output.text import block_names
from slotproof.proofs.stories.told import Block, Change, Entry, Request, Shown, Step, Told, in_blocks
from slotproof.proofs.stories.why.decisions import Line
from slotproof.proofs.stories.why.unwritten import NOBODY

_EMPTY = Text()
_NARROW = 40
"""Columns up to which a value goes under its name."""
_KINDS = {"null": "dim", "free": "green", "cached": "cyan", "held": "blue"}


def print_story(console: Console, told: Told, full: bool = False) -> None:
    """Print a story: what each call was, what decided it, and what it changed; in the end what broke.

    A terminal is wrapped at words, at any width; a pipe gets plain lines, one for each fact.

    Args:
        full: whole states in place of what changed.
    """
    show = _Printer(console)
    show.line(Text(told.title, "bold"))
    for rule in told.off:
        show.fact("rule off", Text(f"{rule.name} ({rule.stage}): {rule.text}"))
    if told.allowed:
        show.fact("allowed", Text(told.allowed))
    show.fact("engine", Text(told.engine))
    if full:
        show.whole(told.initial)
    for step in told.steps:
        show.call(step)
        if full:
            show.whole(step.state)
        else:
            show.changes(step.changes)
    show.line()
    if told.broken is None:
        show.line(Text(f"{told.reached} is reached", "bold green"))
    else:
        show.line(Text(f"{told.broken.statement} falls", "bold red"))
        show.fact("promise", Text(told.broken.text))
        show.fact("broken", Text(told.broken.reason, "bold"))
        show.fact("by", Text(f"{told.broken.claim} ({told.broken.stage})"))
    if told.keys:
        show.line()
        show.line(Text("keys", "bold"))
    for key in told.keys:
        show.fact(key.label, Text(key.tokens))


class _Printer:
    """Names on the left, facts on the right; on a narrow terminal under their names."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wraps = console.is_terminal
        self._narrow = self._wraps and console.width <= _NARROW

    def line(self, text: Text = _EMPTY) -> None:
        self._console.print(text, highlight=False, soft_wrap=not self._wraps)

    def fact(self, name: str, text: Text, style: str = "dim") -> None:
        if self._narrow:
            self.line(Text(f"  {name}", style))
            self._console.print(Padding(text, (0, 0, 0, 4), expand=False), highlight=False)
        elif self._wraps:
            grid = Table.grid(padding=(0, 2, 0, 0))
            grid.add_column(width=11, style=style, no_wrap=True)
            grid.add_column()
            grid.add_row(name, text)
            self._console.print(Padding(grid, (0, 0, 0, 2), expand=False), highlight=False)
        else:
            self.line(Text(f"  {name:11}  ").append_text(text))

    def call(self, step: Step) -> None:
        self.line()
        self.line(Text(f"{step.number}. {step.call}", "bold"))
        refused = step.result.startswith(("None", "refused", "fails"))
        self.fact("answer", Text(step.result, "yellow" if refused else ""))
        for line in step.lines:
            self.fact(line.stage, Text(line.text, _line_style(line)))

    def changes(self, changes: tuple[Change, ...]) -> None:
        for subject, group in groupby(changes, key=lambda change: change.subject):
            fields = list(group)
            if subject == "pool":
                for change in fields:
                    self.fact(change.field, Text(f"{change.before} → {change.after}"))
            else:
                self.fact(subject, Text(", ".join(f"{c.field} {c.before} → {c.after}" for c in fields)))

    def whole(self, state: Shown) -> None:
        self.fact("free queue", Text(block_names(state.free_queue)))
        self.fact("usage", Text(f"{state.usage:.0%}"))
        for text, alike in groupby(state.blocks, key=_block):
            numbers = [block.block for block in alike]
            last = f"-{numbers[-1]}" if len(numbers) > 1 else ""
            self.fact(f"block {numbers[0]}{last}", text)
        for request in state.requests:
            for line in _request(request):
                self.fact(f"request {request.request}", line)
        self.fact("to zero", Text(block_names(state.to_zero)))


def _line_style(line: Line) -> str:
    return "bold red" if line.fails else "bold" if line.decides else ""


def _block(block: Block) -> Text:
    text = Text(block.kind, _KINDS[block.kind])
    if block.kind != "null":
        text.append(f", ref_cnt {block.ref_cnt}", "")
    if block.key:
        text.append(f", key {block.key} ({block.holds})", "")
    if block.written is not None:
        text.append(", written ", "")
        text.append(block.filling, "bold red" if block.filled_by == NOBODY else "")
    return text


def _request(request: Request) -> Iterator[Text]:
    counts = f"prompt {request.prompt}, output {request.output}, computed {request.computed}"
    yield Text(f"{request.status}: {counts}, in flight {request.in_flight}, drafts {request.drafts}")
    tags = "".join(f", {tag} {n}" for tag, n in (("salt", request.salt), ("lora", request.lora)) if n)
    yield Text(f"tokens {in_blocks(request.tokens, request.tables[0].block_size)}{tags}")
    for table in request.tables:
        if table.entries:
            entries = Text(", ").join(_entry(entry) for entry in table.entries)
            yield Text(f"{table.name} ").append_text(entries)


def _entry(entry: Entry) -> Text:
    name = block_names((entry.block,))
    if entry.kind in ("null", "held"):
        return Text(name, "dim" if entry.kind == "null" else "")
    return Text(f"{name} {entry.kind}", "bold")
