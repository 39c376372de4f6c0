"""The gate: the model and an implementation take the same calls, and are compared after every one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

import hypothesis
import msgspec
from hypothesis import strategies

from slotproof.impl.protocol import Allocate, Call, Config, EvictBlocks, Result
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, configurations, decode, model_config
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    difference,
    expected_snapshot,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.coverage import reached, rows
from slotproof.proofs.gate.isolation import Fault, Isolated, Kind
from slotproof.proofs.gate.oracle import Expectation, expect, trace_of
from slotproof.proofs.output.words import counted
from slotproof.proofs.traces.trace import Trace

SEQUENCE = 100
"""Calls of one sequence, from a fresh allocator."""
SEQUENCES = 4
"""Sequences for one configuration before the next has its turn."""
SHRINK_TRIES = 1000
"""How often Hypothesis may try a simpler sequence once one has failed."""
SHRINK_SECONDS = 20.0
"""How long these tries may take, and again leaving out calls after them."""


class Verdict(Enum):
    """How a gate ends."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOTHING = "nothing"
    """Nothing was compared: no call was made."""
    INTERRUPTED = "interrupted"
    """No difference so far, and it was stopped."""
    UNCOVERED = "uncovered"
    """No difference, but something worth having seen was never reached."""
    KNOWN = "known"
    """No difference, but a statement was broken as KNOWN.md tells."""


@dataclass(frozen=True)
class Failure:
    """A sequence whose last call the implementation answered otherwise than the model."""

    config: Config
    story: list[Expectation]
    differences: list[Difference]
    fault: Kind | None = None
    """How the implementation failed to answer, if it did not."""

    @property
    def call(self) -> Call | None:
        """The call that differed; None if a fresh allocator does already."""
        return self.story[-1].call if self.story else None

    def trace(self, description: str = "") -> Trace:
        """The story as the model tells it, with the first difference for a description."""
        return trace_of(self.config, self.story, description or self.differences[0].line)


@dataclass
class Report:
    """What a gate has done and found."""

    required: Sequence[str]
    """Rows of coverage that must be reached."""
    calls: int = 0
    sequences: int = 0
    seconds: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None
    known: Counter[str] = field(default_factory=Counter)
    """How often a statement was broken as KNOWN.md tells, by its section."""
    known_is_accepted: bool = False
    interrupted: bool = False
    """It was stopped: this is what was known by then."""

    @property
    def extent(self) -> str:
        """How much has been done."""
        return f"{counted(self.calls, 'call')} in {counted(self.sequences, 'sequence')}"

    @property
    def uncovered(self) -> list[str]:
        """The required rows that were never reached."""
        return [row for row in self.required if not self.coverage[row]]

    @property
    def verdict(self) -> Verdict:
        if self.failure is not None:
            return Verdict.DISAGREES
        if self.interrupted:
            return Verdict.INTERRUPTED
        if not self.calls:
            return Verdict.NOTHING
        if self.known and not self.known_is_accepted:
            return Verdict.KNOWN
        return Verdict.UNCOVERED if self.uncovered else Verdict.AGREES


Progress = Callable[[Report], None]


def campaign(
    implementation: Isolated,
    *,
    calls: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    strictness: Strictness = Strictness.EXACT,
    configs: Sequence[Config] | None = None,
    progress: Progress = lambda report: None,
) -> Report:
    """Random sequences of calls, drawn by Hypothesis, until `calls` calls or `seconds` seconds have passed.

    The same seed draws the same sequences. The first difference ends the campaign, with its sequence
    made simpler.

    Args:
        configs: the configurations to take turns; `configurations(seed)` if not given.
        progress: sees the report after every sequence.

    Raises:
        CannotStart: there is no implementation to drive.
    """
    configs = configurations(seed) if configs is None else configs
    report = Report(required=required_rows(configs, strictness))
    start = time.monotonic()

    def left() -> int:
        if seconds is not None and time.monotonic() - start >= seconds:
            return 0
        return SEQUENCE if calls is None else min(SEQUENCE, calls - report.calls)

    with interruptible(report):
        implementation.start()
        start = time.monotonic()
        turn = 0
        while left() and report.failure is None:
            config = configs[turn % len(configs)]
            search = _Search(implementation, config, strictness, report, left, progress)
            search.run(seed * 1_000_003 + turn)
            turn += 1
    report.seconds = time.monotonic() - start
    return report


@contextmanager
def interruptible(report: Report) -> Iterator[None]:
    """An interrupt of the body ends it, and the report says so."""
    try:
        yield
    except KeyboardInterrupt:
        report.interrupted = True


_NEVER_DRAWN = {
    Strictness.EXACT: (),
    Strictness.COUNTS: ("call: evict_blocks", "evict_blocks: an idle block", "evict_blocks: a held block"),
    Strictness.INVARIANTS: (
        "external: on top of a hit",
        "stage 2: an idle hit outside the window is not counted",
    ),
}


def required_rows(configs: Sequence[Config], strictness: Strictness) -> list[str]:
    """The rows that a campaign must reach: those that its calls (see `fair`) can reach."""
    return [row for row in rows(configs) if row not in _NEVER_DRAWN[strictness]]


class _Search:
    """One turn: a few sequences for one configuration; if one fails, simpler ones that fail too."""

    def __init__(
        self,
        implementation: Isolated,
        config: Config,
        strictness: Strictness,
        report: Report,
        left: Callable[[], int],
        progress: Progress,
    ) -> None:
        self.implementation = implementation
        self.config = config
        self.strictness = strictness
        self.report = report
        self.left = left
        self.progress = progress
        self.failure: Failure | None = None
        self.shrink_tries = 0
        self.shrink_until = 0.0

    def run(self, seed: int) -> None:
        number = strategies.binary(min_size=NUMBER_BYTES, max_size=NUMBER_BYTES)
        # A length drawn first is soon shrunk, and what is past the difference is not tried again.
        numbers = strategies.integers(1, SEQUENCE).flatmap(
            lambda length: strategies.lists(number, min_size=length, max_size=length)
        )
        settings = hypothesis.settings(
            max_examples=SEQUENCES,
            database=None,
            derandomize=False,
            deadline=None,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            suppress_health_check=list(hypothesis.HealthCheck),
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        try:
            settings(hypothesis.seed(seed)(hypothesis.given(numbers)(self._attempt)))()
        except (_Disagreement, _Enough, hypothesis.errors.Flaky):
            assert self.failure is not None
        finally:  # an interrupt leaves what was found
            self.report.failure = self.failure
        if self.failure is not None and self.failure.fault is not Kind.HUNG:  # each try would hang as long
            until = time.monotonic() + SHRINK_SECONDS
            self.report.failure = _without_needless_calls(
                self.implementation, self.failure, self.strictness, until
            )

    def _attempt(self, numbers: list[bytes]) -> None:
        shrinking = self.failure is not None
        limit = SEQUENCE if shrinking else self.left()
        if shrinking:
            self.shrink_tries += 1
            if self.shrink_tries > SHRINK_TRIES or time.monotonic() > self.shrink_until:
                raise _Enough
        if not limit:
            return
        story = tell(
            self.config, [int.from_bytes(number, "little") for number in numbers], limit, self.strictness
        )
        compared, failure = compare_story(self.implementation, self.config, story, self.strictness)
        if not shrinking:
            self.report.sequences += 1
            count(self.report, self.config, story[:compared])
            self.progress(self.report)
        if failure is None:
            return
        if not shrinking and failure.fault not in (Kind.HUNG, Kind.DIED):
            self.shrink_until = time.monotonic() + SHRINK_SECONDS
        if self.failure is None or len(failure.story) <= len(self.failure.story):
            self.failure = failure
        raise _Disagreement


class _Disagreement(Exception):
    """Tells Hypothesis that a sequence fails."""


class _Enough(BaseException):
    """Hypothesis takes this for no failure, and stops."""


def tell(config: Config, numbers: list[int], limit: int, strictness: Strictness) -> list[Expectation]:
    """The model's story of the calls that numbers stand for, `limit` calls at most; 0 makes no call."""
    running = Running(**model_config(config))
    story: list[Expectation] = []
    for number in numbers:
        if number == 0:
            continue
        if len(story) == limit:
            break
        call = fair(decode(running, number), strictness)
        if call is not None:
            story.append(expect(running, call))
    return story


def fair(call: Call, strictness: Strictness) -> Call | None:
    """A call that means the same to every implementation that the strictness lets pass; None for none.

    Where blocks may have other numbers, naming blocks is unfair. Where a lookup may find another hit, so
    is asking for more tokens than any hit leaves to compute.
    """
    if strictness is Strictness.COUNTS and isinstance(call, EvictBlocks):
        return None
    if strictness is Strictness.INVARIANTS and isinstance(call, Allocate) and not call.skip_cache:
        if call.external:
            return msgspec.structs.replace(call, skip_cache=True)
        return msgspec.structs.replace(call, new=1)
    return call


def compare_story(
    implementation: Isolated,
    config: Config,
    story: list[Expectation],
    strictness: Strictness,
    agreed: Callable[[int], None] = lambda calls: None,
) -> tuple[int, Failure | None]:
    """Drive a fresh allocator through a story: how many calls were compared, and the first difference.

    `agreed` is told, call by call, how many calls agree.
    """
    keys = KeyMatch()
    with closing(implementation.run(config, [e.call for e in story])) as replies:
        for index, reply in enumerate(replies):
            fault = None
            if isinstance(reply, Fault):
                fault = reply.kind
                found = [difference("answer", "one", f"none: {reply.text}")]
            elif index == 0:
                fresh = expected_snapshot(Running(**model_config(config)))
                found = snapshot_differences(strictness, fresh, reply.state, keys)
            else:
                e = story[index - 1]
                found = result_differences(strictness, e.result, reply.result)
                found += snapshot_differences(strictness, e.snapshot, reply.state, keys)
                if not found and _ledgers_part(e.result, reply.result):
                    return index, None
            if found:
                return index, Failure(config, story[:index], found, fault)
            agreed(index)
    return len(story), None


def _ledgers_part(expected: Result, got: Result) -> bool:
    """From here on the story's calls may be none that the caller of this implementation would make.

    Only where nothing of the model is asked of the implementation.
    """
    return (expected.granted, len(expected.hits)) != (got.granted, len(got.hits))


def count(report: Report, config: Config, story: list[Expectation]) -> None:
    """Add a compared story to the report."""
    report.calls += len(story)
    for e in story:
        report.coverage.update(reached(config, e))


def _without_needless_calls(
    implementation: Isolated, failure: Failure, strictness: Strictness, until: float
) -> Failure:
    """The failure, without the calls that it does not need: first many at once are left out, at last one."""
    size = max(1, len(failure.story) // 2)
    start = 0
    while time.monotonic() < until:
        end = min(start + size, len(failure.story) - 1)
        if start >= end:
            if size == 1:
                break
            start, size = 0, size // 2
            continue
        calls = [e.call for e in failure.story]
        story = legal_story(failure.config, calls[:start] + calls[end:])
        shorter = compare_story(implementation, failure.config, story, strictness)[1]
        if shorter is None:
            start = end
        else:
            failure = shorter
    return failure


def legal_story(config: Config, calls: list[Call]) -> list[Expectation]:
    """The model's story of calls, those left out that the caller's contract forbids."""
    running = Running(**model_config(config))
    story = []
    for call in calls:
        with suppress(ContractError):
            story.append(expect(running, call))
    return story
