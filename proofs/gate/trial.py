"""One sequence against one implementation: by the model's answers, or by the implementation's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from slotproof.impl.protocol import Call, Config, Result, Snapshot
from slotproof.model.language.behaviours import profile
from slotproof.model.running import ContractError, Running, Stuck
from slotproof.proofs.campaign.calls import decode, model_config
from slotproof.proofs.campaign.fit import fit_call
from slotproof.proofs.gate.by_itself.blame import blame
from slotproof.proofs.gate.by_itself.follow import Next, follow, given_calls, numbers_to_calls, required_rows
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
from slotproof.proofs.gate.isolation import About, Fault, Isolated, Kind, Reply
from slotproof.proofs.gate.oracle import Expectation, expect
from slotproof.proofs.output.text import call_line
from slotproof.proofs.traces.trace import Step, Trace


@dataclass(frozen=True)
class Failure:
    """A sequence whose last call the implementation answered otherwise than it should."""

    config: Config
    story: list[Step]
    """As the model tells it; of a followed sequence, what the implementation answered."""
    differences: list[Difference]
    fault: Kind | None = None
    """How the implementation failed to answer, if it did not."""
    traceback: str = ""
    """Where it raised, if it did."""
    followed: Snapshot | None = None
    """The first state, of a sequence that followed the implementation's own answers."""
    history: str = ""
    """Of the request at fault, for a scheduler: what became of it, in a line."""

    @property
    def where(self) -> str:
        """When it differed, in words."""
        return "when it is fresh" if self.call is None else f"at: {call_line(self.call)}"

    @property
    def call(self) -> Call | None:
        """The call that differed; None if a fresh allocator does already."""
        return self.story[-1].call if self.story else None

    def trace(self, asked: Asked | None = None) -> Trace:
        """The story, with the first difference for a description."""
        asked = asked or Asked()
        initial = self.followed or expected_snapshot(Running(**model_config(self.config)))
        return Trace(
            self.config,
            initial,
            tuple(self.story),
            self.differences[0].line,
            installed=asked.installed,
            followed=self.followed is not None,
            hidden=tuple(sorted(asked.lacks)) if self.followed is not None else (),
        )


@dataclass(frozen=True)
class Asked:
    """What an implementation is asked, and how its answers are compared."""

    strictness: Strictness = Strictness.EXACT
    lacks: frozenset[str] = frozenset()
    """What is not drawn, and what is not compared."""
    ignored: frozenset[str] = frozenset()
    """Those of `lacks` that the user named, and not the implementation."""
    installed: str = ""
    """What is gated, with its release, as it says of itself."""
    release: str = ""
    """The release of vLLM that it is, or does as."""
    behaviours: tuple[str, ...] = ()
    """Where the model does as that release (`model/language/behaviours.py`)."""
    has_groups: bool = False
    """Engines with several attention groups are drawn too."""
    has_more: bool = False
    """Of these, some with chunks, draft heads or sparse retention."""
    scheduler: str = ""
    """What is gated, if it is a whole scheduler, as it was named."""

    @classmethod
    def of(cls, about: About, strictness: Strictness, ignore: frozenset[str] = frozenset()) -> Asked:
        """Where blocks may have other numbers, naming blocks is unfair; whose list of blocks to zero is not
        compared, is not asked for it; whose hits are not seen, cannot be followed through a lookup."""
        lacks = about.lacks | ignore
        if strictness is Strictness.COUNTS:
            lacks |= {"evict_blocks"}
        if strictness is Strictness.INVARIANTS and "hits" in lacks:
            lacks |= {"prefix_caching"}
        if "to_zero" in lacks:
            lacks |= {"take_new_block_ids"}
        # Without the model's own answers, a call of several groups cannot be followed yet.
        has_groups = about.has_groups and strictness is not Strictness.INVARIANTS
        return cls(
            strictness,
            lacks,
            ignore,
            about.installed,
            about.release,
            profile(about.release),
            has_groups,
            has_groups and about.has_more,
        )

    def rows(self, configs: Sequence[Config]) -> list[str]:
        """The rows of coverage that a campaign on these configurations has to reach."""
        if self.strictness is Strictness.INVARIANTS:
            return required_rows(self.lacks)
        return rows(configs, self.lacks)

    def result_differences(self, expected: Result, got: Result) -> list[Difference]:
        return result_differences(self.strictness, expected, got, self.lacks)

    def snapshot_differences(self, expected: Snapshot, got: Snapshot, keys: KeyMatch) -> list[Difference]:
        return snapshot_differences(self.strictness, expected, got, keys, self.lacks)


Agreed: TypeAlias = Callable[[int], None]
"""Is told, call by call, how many calls were found right."""


class Trial(NamedTuple):
    """What came of one sequence."""

    calls: int
    rows: Counter[str]
    failure: Failure | None


def try_numbers(
    implementation: Isolated, config: Config, numbers: list[int], limit: int, asked: Asked
) -> Trial:
    """The calls that numbers stand for, `limit` at most, on a fresh allocator."""
    if asked.strictness is Strictness.INVARIANTS:
        return _followed(implementation, config, numbers_to_calls(numbers, asked.lacks), limit, asked)
    return compare(implementation, config, tell(config, numbers, limit, asked), asked)


def try_calls(
    implementation: Isolated,
    config: Config,
    calls: list[Call],
    asked: Asked,
    agreed: Agreed = lambda calls: None,
) -> Trial:
    """These calls, those left out that the caller's contract forbids."""
    if asked.strictness is Strictness.INVARIANTS:
        return _followed(implementation, config, given_calls(calls), len(calls), asked, agreed)
    return compare(implementation, config, legal_story(config, calls), asked, agreed)


def _followed(
    implementation: Isolated,
    config: Config,
    next_call: Next,
    limit: int,
    asked: Asked,
    agreed: Agreed = lambda calls: None,
) -> Trial:
    found = follow(implementation, config, next_call, limit, asked.lacks, agreed)
    failure = None
    if found.differences:
        failure = Failure(
            config, found.steps, found.differences, found.fault, found.traceback, followed=found.initial
        )
    return Trial(len(found.steps), found.rows, failure)


def compare(
    implementation: Isolated,
    config: Config,
    story: list[Expectation],
    asked: Asked,
    agreed: Agreed = lambda calls: None,
) -> Trial:
    """The calls of the model's story, which are legal as long as the implementation answers as the model."""
    if asked.strictness is Strictness.INVARIANTS:
        return try_calls(implementation, config, [e.call for e in story], asked, agreed)
    compared, failure = compare_story(implementation, config, story, asked, agreed)
    seen: Counter[str] = Counter()
    for e in story[:compared]:
        seen.update(reached(config, e))
    return Trial(compared, seen, failure)


def tell(config: Config, numbers: list[int], limit: int, asked: Asked) -> list[Expectation]:
    """The model's story of the calls that numbers stand for, `limit` calls at most; 0 makes no call."""
    running = Running(**model_config(config))
    story: list[Expectation] = []
    for number in numbers:
        if number == 0:
            continue
        if len(story) == limit:
            break
        call = fit_call(decode(running, number), asked.lacks)
        if call is not None:
            with suppress(Stuck):  # without a rule that a release lacks
                story.append(expect(running, call))
    return story


def compare_story(
    implementation: Isolated,
    config: Config,
    story: list[Expectation],
    asked: Asked,
    agreed: Agreed = lambda calls: None,
) -> tuple[int, Failure | None]:
    """Drive a fresh allocator through a story: how many calls were compared, and the first difference.

    `agreed` is told, call by call, how many calls agree.
    """
    keys = KeyMatch()
    answered: list[Reply] = []
    with closing(implementation.run(config, [e.call for e in story])) as replies:
        for index, reply in enumerate(replies):
            fault, raised = None, ""
            if not isinstance(reply, Fault):
                answered.append(reply)
            if isinstance(reply, Fault):
                fault, raised = reply.kind, reply.traceback
                found = [difference("answer", "one", f"none: {reply.text}")]
            elif index == 0:
                fresh = expected_snapshot(Running(**model_config(config)))
                found = asked.snapshot_differences(fresh, reply.state, keys)
            else:
                e = story[index - 1]
                found = asked.result_differences(e.result, reply.result)
                found += asked.snapshot_differences(e.snapshot, reply.state, keys)
                if found and asked.strictness is Strictness.EXACT:
                    found = [*blame(config, story[:index], answered, asked.lacks), *found]
            if found:
                return index, Failure(config, [e.step for e in story[:index]], found, fault, raised)
            agreed(index)
    return len(story), None


def legal_story(config: Config, calls: list[Call]) -> list[Expectation]:
    """The model's story of calls, those left out that the caller's contract forbids, or half way through
    which a model without some rule fails."""
    running = Running(**model_config(config))
    story = []
    for call in calls:
        with suppress(ContractError, Stuck):
            story.append(expect(running, call))
    return story
