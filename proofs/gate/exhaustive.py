"""The bounded-exhaustive gate: every sequence of calls up to a depth, on tiny engines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.model.language.state import UNKNOWN
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.campaign.fit import fit_call, fit_configs
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.gate import Progress, Report, interruptible
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.oracle import Expectation, expect
from slotproof.proofs.gate.trial import Asked, compare

TINY = (
    Config(num_blocks=4, block_size=2, max_model_len=6, watermark_blocks=1),
    Config(num_blocks=5, block_size=1, max_model_len=6, sliding_window=2, max_in_flight_tokens=2),
    Config(num_blocks=4, block_size=2, max_model_len=6, enable_caching=False),
)
"""Engines so small that a few calls fill them."""
PROMPTS = ((1, 1, 1), (1, 1, 1, 2))
"""The prompts of the first request, the second, and so on: no more arrive."""


def exhaust(
    implementation: Isolated,
    depth: int,
    *,
    strictness: Strictness = Strictness.EXACT,
    ignore: frozenset[str] = frozenset(),
    configs: Sequence[Config] = TINY,
    progress: Progress = lambda report: None,
) -> Report:
    """Every sequence of `depth` calls (those of `options`), each from a fresh allocator.

    Shorter sequences are prefixes of these. The first difference ends it: shallow ones come first, so
    its sequence has no call to spare. No row of coverage is required.

    Raises:
        CannotStart: there is no implementation to drive.
    """
    report = Report()
    start = time.monotonic()
    with interruptible(report, implementation):
        implementation.start()
        start = time.monotonic()
        asked = Asked.of(implementation.about, strictness, ignore)
        report.begin(asked)
        for config, story in _all(depth, fit_configs(configs, asked.lacks, asked.behaviours), asked.lacks):
            trial = compare(implementation, config, story, asked)
            report.failure = trial.failure
            report.add(trial)
            progress(report)
            if report.failure is not None:
                break
    report.seconds = time.monotonic() - start
    return report


def _all(
    depth: int, configs: Sequence[Config], lacks: frozenset[str]
) -> Iterator[tuple[Config, list[Expectation]]]:
    for reach in range(1, depth + 1):
        for config in configs:
            for story in stories(config, reach, lacks):
                yield config, story


def stories(config: Config, depth: int, lacks: frozenset[str] = frozenset()) -> Iterator[list[Expectation]]:
    """The model's story of every sequence of `depth` calls, of those that nothing is lacking for."""
    return _stories(Running(**model_config(config)), [], depth, lacks)


def _stories(
    running: Running, before: list[Expectation], depth: int, lacks: frozenset[str]
) -> Iterator[list[Expectation]]:
    if depth == 0:
        yield before
        return
    state, texts = running.state, dict(running.read.texts)
    for option in options(running):
        running.state, running.read.texts = state, dict(texts)
        if fit_call(option, lacks) != option:
            continue
        try:
            now = expect(running, option)
        except ContractError:
            continue
        yield from _stories(running, [*before, now], depth - 1, lacks)


def options(running: Running) -> Iterator[Call]:
    """The calls to try in the model's present state; not all of them are legal."""
    s = running.state
    if len(running.requests) < len(PROMPTS):
        yield AddRequest(request=len(running.requests), tokens=PROMPTS[len(running.requests)])
    for r in running.requests:
        if s.status(r) == UNKNOWN:
            continue
        left = s.num_tokens(r) - s.computed(r)
        for new in sorted({1, max(1, left)}):
            yield Allocate(request=r, new=new)
            yield Allocate(request=r, new=new, lookahead=2, must_fit=True, reserved=1)
        yield Allocate(request=r, new=0, external=2, delay_cache=True, has_scheduled=False)
        yield CacheBlocks(request=r)
        yield CacheBlocks(request=r, tokens=1)
        for rejected in (0, 1):
            for sampled in ((), (1,), (1, 1)):
                yield Complete(request=r, processed=s.in_flight(r), rejected=rejected, sampled=sampled)
        yield RemoveSkipped(request=r)
        yield Preempt(request=r)
        yield Finish(request=r)
    yield EvictBlocks(blocks=(1,))
    yield ResetPrefixCache()
    yield TakeNewBlockIds()
