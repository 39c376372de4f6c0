"""The trace of the lesson ("Allocating Slots: One Call, Traced"), from the model.

The lesson counts in a pool of 100 blocks, 40 of them free, and in eight cached blocks, two of them held
by another request. The model cannot be put into a state, only brought there by calls: a request computes
the 128 cached tokens and ends, and another takes up what the lesson finds taken. The null block is one of the
100, as it is in the lesson's formula for usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from slotproof.model.language.rules import Rules
from slotproof.model.language.state import PREEMPTED, WAITING
from slotproof.model.running import Running
from slotproof.model.system.allocate_slots import Ask, num_blocks_to_allocate

BLOCK_SIZE = 16
TOTAL, FREE, WATERMARK = 100, 40, 5
CACHED, HELD_HITS = 128, 2
PROMPT, FIRST_CHUNK, SECOND_PROMPT, BUDGET = 300, 100, 600, 100
LOOKAHEAD = 16
MAX_MODEL_LEN = 1024

CACHER, OTHER, FIRST, SECOND = range(4)
"""The requests: one that fills the cache and ends, one that runs beside, and the lesson's two."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One `allocate_slots`: what was asked, and how it was decided. Counts are blocks."""

    name: str
    call: str
    granted: bool
    stage: int
    """The stage that decided: 0 (the whole prompt) or 2 (this step's count)."""
    need: int
    """What that stage counted; with `watermark` it is granted if it is at most `available`."""
    watermark: int
    available: int
    new_blocks: int
    taken: int
    """By how much the free count fell."""
    free: int
    table: int
    """The length of the request's block table."""

    @property
    def arithmetic(self) -> str:
        """The comparison that decided, such as `13 + 5 <= 40`."""
        margin = f" + {self.watermark}" if self.watermark else ""
        return f"{self.need}{margin} {'<=' if self.granted else '>'} {self.available}"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the first request finds. Counts are blocks."""

    total: int
    """The null block included."""
    free: int
    held: int
    """By the other request; all but the null block that are not free."""
    hits: int
    idle_hits: int
    usage: float


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A question of the lesson, its answer, and the calls that gave it."""

    question: str
    answer: str
    lines: tuple[Line, ...] = ()


class Told(NamedTuple):
    """What the lesson says of a line."""

    granted: bool
    need: int
    watermark: int
    new_blocks: int
    taken: int
    free: int


LESSON_START = {"total": TOTAL, "free": FREE, "hits": CACHED // BLOCK_SIZE, "idle_hits": 6}
LESSON_TRACE = {
    "admission": Told(True, 13, WATERMARK, 7, 13, 27),
    "second chunk": Told(True, 4, 0, 4, 4, 23),
    **{f"token {n}": Told(True, 0, 0, 0, 0, 23) for n in range(301, 305)},
    "token 305": Told(True, 1, 0, 1, 1, 22),
    "token 306": Told(True, 0, 0, 0, 0, 22),
    "lookahead": Told(True, 1, 0, 1, 1, 21),
    "second request": Told(False, 38, WATERMARK, 0, 0, 21),
}
"""The lesson's own figures, which the model has to arrive at."""


@dataclass
class Pool:
    """The model with the lesson's pool, and every call that was asked of it."""

    running: Running
    lines: list[Line]

    def arrive(self, request: int, num_tokens: int, shared: int = 0) -> None:
        """A request whose first `shared` tokens are the cached ones, and the rest its own."""
        own = range((request + 1) * MAX_MODEL_LEN, (request + 1) * MAX_MODEL_LEN + num_tokens - shared)
        self.running.step("add_request", request=request, tokens=(*range(shared), *own))

    def ask(self, name: str, request: int, new: int, *, lookahead: int = 0, alone: bool = False) -> Line:
        """`allocate_slots` as a scheduler calls it: an admission must fit as a whole."""
        s, engine = self.running.state, self.running.engine
        admission = s.status(request) in (WAITING, PREEMPTED)
        outcome = self.running.step(
            "allocate",
            request=request,
            new=new,
            lookahead=lookahead,
            must_fit=admission,
            has_scheduled=not alone,
        )
        answer, t = outcome.answer, outcome.state
        assert answer is not None
        stage, need, available = 2, answer.need, answer.released.num_free
        if not answer.fits:
            ask, whole = Ask(new=new, hits=outcome.hits), min(s.num_tokens(request), engine.max_model_len)
            capped = engine.rules.whole_prompt_caps_window
            stage, available = 0, s.num_free
            need = num_blocks_to_allocate(s, request, ask, whole, answer.total, capped=capped)
        hit = f", hit={outcome.hits.tokens}" if outcome.hits.tokens else ""
        ahead = f", lookahead={lookahead}" if lookahead else ""
        line = Line(
            name=name,
            call=f"allocate_slots(new={new}{hit}{ahead})",
            granted=outcome.granted,
            stage=stage,
            need=need,
            watermark=answer.watermark,
            available=available,
            new_blocks=answer.new_high(0) - answer.new_low(0) if outcome.granted else 0,
            taken=s.num_free - t.num_free,
            free=t.num_free,
            table=t.length(request),
        )
        self.lines.append(line)
        return line

    def settle(self, request: int, *, samples: bool, rejected: int = 0) -> None:
        """The step has run, and a token was sampled if the prompt was at its end."""
        in_flight = self.running.state.in_flight(request)
        sampled = (request,) if samples else ()
        self.running.step(
            "complete", request=request, processed=in_flight, rejected=rejected, sampled=sampled
        )

    def decode(self, request: int, *, lookahead: int = 0) -> Line:
        """One token of a running request; settled if it is granted."""
        token = self.running.state.num_tokens(request)
        line = self.ask(f"token {token}", request, 1, lookahead=lookahead)
        if line.granted:
            self.settle(request, samples=True)
        return line


def start(
    *, watermark: int = WATERMARK, held_hits: int = HELD_HITS, rules: Rules | None = None
) -> tuple[Pool, Start]:
    """The lesson's pool as its first request finds it; `held_hits` of the eight cached blocks are held.

    Raises:
        ContractError, Stuck: the model, if it is changed, does not allow the calls that lead there.
    """
    running = Running(
        num_blocks=TOTAL,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        watermark_blocks=watermark,
        rules=rules,
    )
    pool = Pool(running, [])
    pool.arrive(CACHER, CACHED + 1, shared=CACHED)
    pool.ask("cached tokens", CACHER, CACHED + 1, alone=True)
    pool.settle(CACHER, samples=True)
    running.step("finish", request=CACHER)

    shared, length = held_hits * BLOCK_SIZE, (TOTAL - 1 - FREE) * BLOCK_SIZE
    pool.arrive(OTHER, length, shared=shared)
    pool.ask("another request", OTHER, length - shared, alone=True)
    pool.settle(OTHER, samples=True)

    pool.arrive(FIRST, PROMPT, shared=CACHED)
    s, hits = running.state, running.hits(FIRST)
    idle = sum(s.ref_cnt(hits.at(0, i)) == 0 for i in range(hits.num(0)))
    usage = s.num_held / (TOTAL - 1)
    pool.lines.clear()
    return pool, Start(
        total=TOTAL, free=s.num_free, held=s.num_held, hits=hits.num(0), idle_hits=idle, usage=usage
    )


def admit_first(pool: Pool) -> Line:
    """The first request's admission, with the budget's first chunk."""
    line = pool.ask("admission", FIRST, FIRST_CHUNK)
    if line.granted:
        pool.settle(FIRST, samples=False)
    return line


def prefill_first(pool: Pool) -> None:
    """The first request, up to its first sampled token."""
    if not admit_first(pool).granted:
        return
    rest = PROMPT - pool.running.state.computed(FIRST)
    if pool.ask("second chunk", FIRST, rest).granted:
        pool.settle(FIRST, samples=True)


def first_request(pool: Pool) -> None:
    """All that the lesson shows of its first request."""
    prefill_first(pool)
    for _ in range(6):
        pool.decode(FIRST)
    pool.ask("lookahead", FIRST, 1, lookahead=LOOKAHEAD)
    pool.settle(FIRST, samples=True)


def trace(pool: Pool) -> tuple[Line, ...]:
    """The lesson's trace, line by line, in a pool as `start` leaves it."""
    first_request(pool)
    pool.arrive(SECOND, SECOND_PROMPT)
    pool.ask("second request", SECOND, BUDGET)
    return tuple(pool.lines)


def differences(found: Start, lines: tuple[Line, ...]) -> list[str]:
    """Where the model does not arrive at the lesson's figures, each naming its line."""
    wrong = [
        f"start: the lesson says {field} {told}, the model {getattr(found, field)}"
        for field, told in LESSON_START.items()
        if getattr(found, field) != told
    ]
    by_name = {line.name: line for line in lines}
    for name, told in LESSON_TRACE.items():
        line = by_name.get(name)
        if line is None:
            wrong.append(f"{name}: the model has no such line")
            continue
        wrong += [
            f"{name}: the lesson says {field} {value}, the model {getattr(line, field)}"
            for field, value in told._asdict().items()
            if getattr(line, field) != value
        ]
    return wrong
