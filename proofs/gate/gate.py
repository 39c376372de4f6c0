"""The gate: the model and an implementation take the same calls, and are compared after every one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

import hypothesis
from hypothesis import strategies

from slotproof.impl.protocol import Call, Config
from slotproof.proofs.campaign.calls import NUMBER_BYTES, configurations
from slotproof.proofs.campaign.corpus import CORPUS, OF_KINDS
from slotproof.proofs.campaign.fit import fit_call, fit_config, fit_configs
from slotproof.proofs.gate.ahead import Nobody, Play, Played, Players, Turn
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.draws import by_the_seed_alone
from slotproof.proofs.gate.explain import Finding, behaving, explain
from slotproof.proofs.gate.isolation import Isolated, Kind
from slotproof.proofs.gate.trial import Asked, Failure, Trial, try_calls, try_numbers
from slotproof.proofs.output.words import counted

SEQUENCE = 100
"""Calls of one sequence, from a fresh allocator."""
SEQUENCES = 4
"""Sequences for one configuration before the next has its turn."""
SHRINK_TRIES = 1000
"""How often Hypothesis may try a simpler sequence once one has failed."""
SHRINK_SECONDS = {Strictness.EXACT: 20.0, Strictness.COUNTS: 20.0, Strictness.INVARIANTS: 2.0}
"""How long these tries may take, and again leaving out calls after them. A sequence that follows the
implementation's own answers takes longer to try, and the second part alone makes it short."""


class Verdict(Enum):
    """How a gate ends."""

    AGREES = "agrees"
    CONSISTENT = "consistent"
    """Nothing was compared with the model: what it answered and showed breaks no statement."""
    DISAGREES = "disagrees"
    NOTHING = "nothing"
    """Nothing was compared: no call was made."""
    INTERRUPTED = "interrupted"
    """No difference so far, and it was stopped."""
    UNCOVERED = "uncovered"
    """No difference, but something worth having seen was never reached."""
    KNOWN = "known"
    """No difference, but a statement was broken as KNOWN.md tells."""


@dataclass
class Report:
    """What a gate has done and found."""

    required: Sequence[str] = ()
    """Rows of coverage that must be reached."""
    calls: int = 0
    sequences: int = 0
    seconds: float = 0.0
    coverage: Counter[str] = field(default_factory=Counter)
    failure: Failure | None = None
    findings: list[Finding] = field(default_factory=list)
    """Differences that a missing rule explains: the campaign went on without the rule."""
    known: Counter[str] = field(default_factory=Counter)
    """How often a statement was broken as KNOWN.md tells, by its section."""
    known_is_accepted: bool = False
    interrupted: bool = False
    """It was stopped: this is what was known by then."""
    hangs: str = ""
    """What was waited for when it was stopped, and for how long, if that was long."""
    asked: Asked = field(default_factory=Asked)
    """What was asked of what was gated, and what it says of itself."""

    engines: Sequence[Config] = ()
    """The configurations that took turns."""

    def begin(self, asked: Asked, required: Sequence[str] = (), engines: Sequence[Config] = ()) -> None:
        """The implementation has started: what it can be asked is known."""
        self.asked, self.required, self.engines = asked, required, engines

    def add(self, trial: Trial) -> None:
        """One more sequence, without its failure."""
        self.count(1, trial.calls, trial.rows)

    def count(self, sequences: int, calls: int, rows: Counter[str]) -> None:
        """Some more sequences."""
        self.sequences += sequences
        self.calls += calls
        self.coverage.update(rows)

    @property
    def extent(self) -> str:
        """How much has been done."""
        return f"{counted(self.calls, 'call')} in {counted(self.sequences, 'sequence')}"

    @property
    def uncovered(self) -> list[str]:
        """The required rows that were never reached."""
        return [row for row in self.required if not self.coverage[row]]

    @property
    def explained(self) -> bool:
        """Missing rules explain every difference that was found."""
        return bool(self.findings) and self.failure is self.findings[0].failure

    @property
    def verdict(self) -> Verdict:
        if self.failure is not None or self.findings:
            return Verdict.DISAGREES
        if self.interrupted:
            return Verdict.INTERRUPTED
        if not self.calls:
            return Verdict.NOTHING
        if self.known and not self.known_is_accepted:
            return Verdict.KNOWN
        if self.uncovered:
            return Verdict.UNCOVERED
        return Verdict.CONSISTENT if self.asked.strictness is Strictness.INVARIANTS else Verdict.AGREES


Progress = Callable[[Report], None]
MakePlayers = Callable[[Play], AbstractContextManager[Players]]
"""Makes those who play turns ahead, of what plays one."""


def campaign(
    implementation: Isolated,
    *,
    calls: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    strictness: Strictness = Strictness.EXACT,
    ignore: frozenset[str] = frozenset(),
    configs: Sequence[Config] | None = None,
    progress: Progress = lambda report: None,
    others: MakePlayers | None = None,
) -> Report:
    """Random sequences of calls, drawn by Hypothesis, until `calls` calls or `seconds` seconds have passed.

    The same seed draws the same sequences. The first difference ends the campaign, with its sequence
    made simpler.

    Args:
        ignore: fields of an answer or a state that are not compared, beside those that it does not show.
        configs: the configurations to take turns; `configurations(seed)` if not given.
        progress: sees the report after every sequence.
        others: makes those who play turns ahead; what is found is the same without them.

    Raises:
        CannotStart: there is no implementation to drive.
    """
    report = Report()
    start = time.monotonic()

    def left() -> int:
        if seconds is not None and time.monotonic() - start >= seconds:
            return 0
        return SEQUENCE if calls is None else min(SEQUENCE, calls - report.calls)

    with interruptible(report, implementation), ExitStack() as stack:
        implementation.start()
        start = time.monotonic()
        asked = Asked.of(implementation.about, strictness, ignore)
        first = _played_first(asked) if configs is None else ()
        drawn = configurations(seed, asked.has_groups, asked.has_more) if configs is None else configs
        configs = fit_configs(drawn, asked.lacks, asked.behaviours)
        report.begin(asked, asked.rows(configs), configs)
        missing: tuple[str, ...] = ()

        def seeded(turn: int) -> tuple[Config, int]:
            return configs[turn % len(configs)], seed * 1_000_003 + turn

        def play(another: Isolated, turn: Turn) -> Played:
            config, number = seeded(turn.number)
            alone = Report()
            search = _Search(
                another, behaving(config, turn.missing), asked, alone, lambda: SEQUENCE, lambda _: None
            )
            search.run(number, simpler=False)
            failed = alone.failure is not None
            return Played(turn, failed, alone.calls, alone.sequences, dict(alone.coverage))

        players = stack.enter_context(others(play)) if others is not None else Nobody()
        for turn in count(-len(first)):
            if not left() or report.failure is not None:
                break
            if turn < 0:
                config, known = first[turn]
                trial = try_calls(implementation, behaving(config, missing), list(known[: left()]), asked)
                report.add(trial)
                report.failure = trial.failure
                if trial.failure is not None:
                    report.failure = _made_short(implementation, trial.failure, asked)
            else:
                ahead = players.take(Turn(turn, missing))
                budget = calls is None or (ahead is not None and ahead.calls < calls - report.calls)
                if ahead is not None and not ahead.failed and budget:
                    report.count(ahead.sequences, ahead.calls, ahead.rows)
                    progress(report)
                    continue
                config, number = seeded(turn)
                search = _Search(implementation, behaving(config, missing), asked, report, left, progress)
                search.run(number)
            if report.failure is not None and asked.release:
                found = explain(implementation, report.failure, asked)
                if found is not None:
                    report.findings.append(found)
                    report.failure = None
                    missing += found.names
    if report.findings and report.failure is None and not report.interrupted:
        report.failure = report.findings[0].failure
    report.seconds = time.monotonic() - start
    return report


def _played_first(asked: Asked) -> list[tuple[Config, tuple[Call, ...]]]:
    """What the corpus has that the implementation can be asked, on its release's engines."""
    can = [
        (config, calls)
        for config, calls in (*CORPUS, *OF_KINDS)
        if (asked.has_groups or not config.groups)
        and (asked.has_more or not (config.attention_chunk_size or config.is_eagle))
        and fit_config(config, asked.lacks) == config
        and all(fit_call(call, asked.lacks) == call for call in calls)
    ]
    return [(behaving(config, asked.behaviours), calls) for config, calls in can]


@contextmanager
def interruptible(report: Report, implementation: Isolated | None = None) -> Iterator[None]:
    """An interrupt of the body ends it, and the report says so, and what the implementation was at."""
    try:
        yield
    except KeyboardInterrupt:
        report.interrupted = True
        report.hangs = "" if implementation is None else implementation.hangs


class _Search:
    """One turn: a few sequences for one configuration; if one fails, simpler ones that fail too."""

    def __init__(
        self,
        implementation: Isolated,
        config: Config,
        asked: Asked,
        report: Report,
        left: Callable[[], int],
        progress: Progress,
    ) -> None:
        self.implementation = implementation
        self.config = config
        self.asked = asked
        self.report = report
        self.left = left
        self.progress = progress
        self.failure: Failure | None = None
        self.shrink_tries = 0
        self.shrink_until = 0.0

    def run(self, seed: int, simpler: bool = True) -> None:
        """Play; a failure is made simpler, if that is asked for."""
        phases = (hypothesis.Phase.generate, hypothesis.Phase.shrink)
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
            phases=phases if simpler else phases[:1],
            suppress_health_check=list(hypothesis.HealthCheck),
            report_multiple_bugs=False,
            verbosity=hypothesis.Verbosity.quiet,
        )
        try:
            with by_the_seed_alone(often=SEQUENCE):
                settings(hypothesis.seed(seed)(hypothesis.given(numbers)(self._attempt)))()
        except (_Disagreement, _Enough, hypothesis.errors.Flaky):
            assert self.failure is not None
        finally:  # an interrupt leaves what was found
            self.report.failure = self.failure
        if simpler and self.failure is not None:
            self.report.failure = _made_short(self.implementation, self.failure, self.asked)

    def _attempt(self, numbers: list[bytes]) -> None:
        shrinking = self.failure is not None
        limit = SEQUENCE if shrinking else self.left()
        if shrinking:
            self.shrink_tries += 1
            if self.shrink_tries > SHRINK_TRIES or time.monotonic() > self.shrink_until:
                raise _Enough
        if not limit:
            return
        drawn = [int.from_bytes(number, "little") for number in numbers]
        trial = try_numbers(self.implementation, self.config, drawn, limit, self.asked)
        failure = trial.failure
        if not shrinking:
            self.report.add(trial)
            self.progress(self.report)
        if failure is None:
            return
        if not shrinking and failure.fault not in (Kind.HUNG, Kind.DIED):
            self.shrink_until = time.monotonic() + SHRINK_SECONDS[self.asked.strictness]
        if self.failure is None or len(failure.story) <= len(self.failure.story):
            self.failure = failure
        raise _Disagreement


class _Disagreement(Exception):
    """Tells Hypothesis that a sequence fails."""


class _Enough(BaseException):
    """Hypothesis takes this for no failure, and stops."""


def _made_short(implementation: Isolated, failure: Failure, asked: Asked) -> Failure:
    """The failure, without the calls that it does not need: first many at once are left out, at last one."""
    if failure.fault is Kind.HUNG:  # each try would hang as long
        return failure
    until = time.monotonic() + SHRINK_SECONDS[asked.strictness]
    size = max(1, len(failure.story) // 2)
    start = 0
    while time.monotonic() < until:
        end = min(start + size, len(failure.story) - 1)
        if start >= end:
            if size == 1:
                break
            start, size = 0, size // 2
            continue
        calls = [step.call for step in failure.story]
        shorter = try_calls(implementation, failure.config, calls[:start] + calls[end:], asked).failure
        if shorter is None:
            start = end
        else:
            failure = shorter
    return failure
