"""Exploring: what breaks without a rule, and whether a state can be reached, by the shortest story.

A story is looked for call by call, over a few small engines that differ in what they make scarce; the
shortest of theirs is told, made small, and confirmed by the running reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from slotproof.impl.protocol import Call, Config
from slotproof.model.claims.wordings import Allowance
from slotproof.model.language.algebra import Bool
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.language.state import State
from slotproof.model.running import ContractError, Running, Stuck
from slotproof.proofs.campaign.calls import call_fields, model_config
from slotproof.proofs.campaign.kinds import FULL, HYBRID, KINDS, kind_of
from slotproof.proofs.campaign.shrink import made_small, simplified
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.explore.bounded import Bounds, Goal, breaks, reaches, search
from slotproof.proofs.explore.known import GROUP_ENGINES, KNOWN
from slotproof.proofs.output.words import counted, verb

ENGINES = (
    Config(num_blocks=5, block_size=1, max_model_len=5, watermark_blocks=1),
    Config(num_blocks=5, block_size=2, max_model_len=3, watermark_blocks=1),
    Config(num_blocks=5, block_size=1, max_model_len=5, sliding_window=2, max_in_flight_tokens=1),
    Config(num_blocks=6, block_size=2, max_model_len=8, sliding_window=4, max_in_flight_tokens=3),
    *GROUP_ENGINES,
)
"""Roomy requests; a model shorter than the pool, and blocks that are not full; a narrow window; a window
that ends inside a block; and engines of several groups."""


WAIVABLE = (
    "a-step-has-work",
    "external-tokens-are-for-admission",
    "a-load-leaves-a-token",
    "prefill-stays-in-the-prompt",
    "in-flight-is-bounded",
    "processed-was-in-flight",
    "only-drafts-are-rejected",
    "sampled-follows-processed",
    "published-tokens-have-run",
)
"""The preconditions that are looked at, one at a time, where the contract forbids what is asked."""


@dataclass(frozen=True)
class Answer:
    """What exploring came to."""

    config: Config | None
    calls: tuple[Call, ...]
    """The shortest calls; none if nothing was found."""
    story: Story | None
    """The story, where a statement falls."""
    searched: str
    """How far the search looked, in words."""
    complete: bool
    """The search was not cut short: what was found is shortest within the bounds, or there is nothing."""
    interrupted: bool = False
    """It was stopped: there is nothing as far as was looked by then."""
    forbidden: tuple[str, ...] = ()
    """Nothing was found, and calls that break one of these preconditions of the contract lead there."""
    beyond: int = 0
    """So many calls."""


def engines(kind: str | None, **set_: int) -> tuple[Config, ...]:
    """The engines to look at: of a kind, or of all that have one group, with some settings fixed."""
    wanted = [e for e in ENGINES if (kind_of(e) == kind if kind else kind_of(e) != HYBRID)]
    changed = [msgspec.structs.replace(e, **set_) for e in wanted]
    return tuple(dict.fromkeys(changed))


def explore_faults(
    rules: Rules,
    statements: Iterable[str],
    configs: tuple[Config, ...],
    bounds: Bounds,
    allowed: Allowance | None = None,
) -> Answer:
    """The shortest story by which one of the statements falls under the rules, or, with something allowed,
    the statement as it would be without its needs."""
    wanted, more = tuple(statements), () if allowed is None else (allowed.check,)
    kinds = {RULES[rule]["kind"] or FULL for rule in RULES if not getattr(rules, rule)}
    about = max(kinds, key=KINDS.index, default=FULL)
    if allowed is not None:
        about = allowed.kind or FULL
    # A rule that is about nothing special shows in the simplest engines.
    configs = tuple(c for c in configs if kind_of(c) == about) or configs

    goal, known = breaks(wanted, more), _known(rules, wanted, configs, bounds) if not more else None
    if known is not None:  # is there a shorter one?
        look = replace(bounds, calls=len(known.calls) - 1, seconds=bounds.seconds / 3)
        answer = _shortest(configs, rules, goal, look)
        if answer.config is None:
            return replace(answer, config=known.config, calls=known.calls, story=known)
    else:
        answer = _shortest(configs, rules, goal, bounds)
    if answer.config is None:
        return answer
    for past_others in (False, True):  # rather a story in which nothing else falls before
        for statement in wanted:
            story = tell(answer.config, answer.calls, rules, statement, more, past_others)
            if story is not None:
                small = made_small(story, rules, more, past_others)
                return replace(answer, calls=small.calls, story=small)
    raise AssertionError("the running reading does not confirm what the search found")


def _known(
    rules: Rules, statements: tuple[str, ...], configs: tuple[Config, ...], bounds: Bounds
) -> Story | None:
    """The shortest known story of one of these engines within the bounds."""
    found: list[Story] = []
    for config, calls in KNOWN:
        if config in configs:
            told = (tell(config, calls, rules, statement) for statement in statements)
            found += [story for story in told if story is not None and len(story.calls) <= bounds.calls]
    return min(found, key=lambda story: len(story.calls), default=None)


def explore_state(
    rules: Rules,
    expression: Callable[[State], Bool],
    configs: tuple[Config, ...],
    bounds: Bounds,
) -> Answer:
    """The shortest calls to a state of which the expression holds."""
    begun = time.monotonic()
    answer = _shortest(configs, rules, reaches(expression), bounds)
    config = answer.config
    if config is None:
        left = bounds.seconds - (time.monotonic() - begun)
        return _beyond(answer, rules, expression, configs, replace(bounds, seconds=left))

    def kept(calls: tuple[Call, ...]) -> tuple[Call, ...] | None:
        return calls if _holds(config, calls, rules, expression) else None

    if kept(answer.calls) is None:
        raise AssertionError("the running reading does not confirm what the search found")
    return replace(answer, calls=simplified(answer.calls, kept))


def _beyond(
    answer: Answer,
    rules: Rules,
    expression: Callable[[State], Bool],
    configs: tuple[Config, ...],
    bounds: Bounds,
) -> Answer:
    """Nothing was found within the contract: it may be the contract that forbids it. Preconditions that keep
    a call within what a search can hold are not broken for it."""
    deadline, open_ = time.monotonic() + bounds.seconds, list(WAIVABLE)
    while answer.complete and (left := deadline - time.monotonic()) > 0:
        found = search(
            configs, rules, reaches(expression), replace(bounds, seconds=left, waivable=tuple(open_))
        )
        if found.config is None or found.calls is None or not found.waived:
            break
        open_.remove(found.waived)
        if _holds(found.config, found.calls, rules, expression, found.waived):
            answer = replace(answer, forbidden=(*answer.forbidden, found.waived), beyond=found.depth)
            bounds = replace(bounds, calls=found.depth)
    return answer


def _holds(
    config: Config,
    calls: tuple[Call, ...],
    rules: Rules,
    expression: Callable[[State], Bool],
    waived: str = "",
) -> bool:
    running = Running(**model_config(config), rules=rules, ghosts=True)
    running.waived = frozenset((waived,))
    for call in calls:
        name, fields = call_fields(call)
        try:
            running.step(name, **fields)
        except (ContractError, KeyError, Stuck):  # KeyError: a call about a request that did not arrive
            return False
    return bool(expression(running.state))


def _shortest(configs: tuple[Config, ...], rules: Rules, goal: Goal, bounds: Bounds) -> Answer:
    found = search(configs, rules, goal, bounds)
    blocks = ", ".join(str(config.num_blocks - 1) for config in configs)
    most = f"{counted(bounds.requests, 'request')}, {counted(found.depth, 'call')}"
    searched = f"{most}, {verb(len(configs), 'an engine', 'engines')} of {blocks} usable blocks"
    return Answer(
        found.config, found.calls or (), None, searched, not found.out_of_time, interrupted=found.interrupted
    )
