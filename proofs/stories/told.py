"""A story ready to be shown: plain records for a terminal and for a page, with no state of the model left."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slotproof.impl.protocol import Config
from slotproof.proofs.stories.why.decisions import Line


class Rule(Struct, frozen=True):
    """A rule that is switched off."""

    name: str
    stage: str
    text: str


class Key(Struct, frozen=True):
    """A key of the prefix cache: its letter, and the tokens that it was first given for."""

    label: str
    tokens: str


class Block(Struct, frozen=True):
    """A block of the pool."""

    block: int
    kind: str
    """`null`, `free`, `cached` (free, and found by a lookup) or `held`."""
    ref_cnt: int
    position: int | None
    """Its place in the free queue, 0 the next to be taken."""
    key: str | None
    """The letter of its key."""
    holds: str
    """The tokens that its slots are for, if it has a key."""
    written: int | None = None
    """Its slots that hold KV; None in a story that is not about what is written, and for a block that is
    neither held nor cached."""
    filled_by: str = ""
    """Who writes the rest, if it has a key and lacks something: `this step`, the one that is being made up;
    `a load`; or `nobody`."""

    slots: int = 0
    """Of the group that it was taken for."""

    @property
    def filling(self) -> str:
        """`1/2`, and who writes the rest."""
        rest = f" ({self.filled_by} writes the rest)" if self.filled_by else ""
        return f"{self.written}/{self.slots}{rest}"


class Entry(Struct, frozen=True):
    """An entry of a block table."""

    block: int
    kind: str
    """`null`; `hit`, `external`, `new` or `lookahead` if this call added it, for what; else `held`."""


class Span(Struct, frozen=True):
    """Slots and tokens `start` .. `end - 1` of a request, all alike."""

    start: int
    end: int
    kind: str
    """`hit`, `external` or `new` tokens of this call; `computed` ones; those `in flight` since an earlier
    call; `lookahead` slots of this call; `spare` slots; final tokens still to be computed, `todo`."""
    draft: bool
    """Not final: past the request's tokens, and may be rejected."""


class Table(Struct, frozen=True):
    """A request's block table in one group, and what its slots are for."""

    name: str
    """`table`, or `table of group 1` if there are several."""
    block_size: int
    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]


class Request(Struct, frozen=True):
    """A request. Counts are tokens."""

    request: int
    status: str
    tokens: tuple[int, ...]
    """The final ones."""
    salt: int
    lora: int
    """Cache salt and LoRA, 0 for none."""
    prompt: int
    output: int
    computed: int
    """Drafts and tokens in flight included."""
    in_flight: int
    drafts: int
    """Computed tokens that are not final."""
    tables: tuple[Table, ...]
    """By group."""


class Shown(Struct, frozen=True):
    """A whole state."""

    free_queue: tuple[int, ...]
    blocks: tuple[Block, ...]
    requests: tuple[Request, ...]
    to_zero: tuple[int, ...]
    usage: float


class Change(Struct, frozen=True):
    """A field that a call changed, as text before and after."""

    subject: str
    """`pool`, `block 3` or `request 0`."""
    field: str
    before: str
    after: str


class Step(Struct, frozen=True):
    """One call of the story."""

    number: int
    """From 1."""
    name: str
    call: str
    result: str
    lines: tuple[Line, ...]
    """The arithmetic, stage by stage."""
    changes: tuple[Change, ...]
    state: Shown
    """After the call; where it failed, if it failed half way."""

    @property
    def decided(self) -> Line:
        """The line that decided the call."""
        return next((line for line in self.lines if line.decides), self.lines[-1])


class Broken(Struct, frozen=True):
    """The statement that the last call broke."""

    statement: str
    text: str
    """What it promises."""
    claim: str
    """The part of it that does not hold."""
    stage: str
    reason: str
    """The values that broke it, in words."""
    blocks: tuple[int, ...]
    requests: tuple[int, ...]
    """What the reason is about."""


class Told(Struct, frozen=True):
    """A story, ready to be shown."""

    config: Config
    engine: str
    """The configuration on one line."""
    off: tuple[Rule, ...]
    keys: tuple[Key, ...]
    initial: Shown
    steps: tuple[Step, ...]
    broken: Broken | None
    """What the last call broke; None where the story ends in a state that was asked for."""
    allowed: str = ""
    """What the caller is allowed beyond what the statement needs, in words."""
    reached: str = ""
    """What holds in that state."""
    about: str = ""
    """What an engine does that lacks these rules, and what comes of it; empty where no fault is just that."""
    issues: tuple[int, ...] = ()
    """Numbers of vLLM's public issues and pull requests about it."""

    @property
    def title(self) -> str:
        """Which statement falls, or what is reached, without which rules."""
        without = " and ".join(rule.name for rule in self.off)
        ending = f"{self.broken.statement} falls" if self.broken else f"{self.reached} is reached"
        return f"{f'without {without}, ' if without else ''}{ending}"

    @property
    def kinds(self) -> list[str]:
        """The kind of attention of each group, in words."""
        windows = [group.sliding_window for group in self.config.all_groups]
        return [f"sliding window {window}" if window else "full attention" for window in windows]

    def before(self, step: Step) -> Shown:
        """The state in which a step was taken."""
        return self.steps[step.number - 2].state if step.number > 1 else self.initial


def in_blocks(tokens: Sequence[int | str], block_size: int) -> str:
    """Tokens, the blocks that they fill apart: `1 2 · 3`."""
    parts = [tokens[i : i + block_size] for i in range(0, len(tokens), block_size)]
    return " · ".join(" ".join(map(str, part)) for part in parts)
