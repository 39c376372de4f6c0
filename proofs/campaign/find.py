"""Stories are looked for: campaigns on the running reading, on tiny engines, until statements fall."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import msgspec

from slotproof.impl.protocol import Config, Group
from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.rules import Rules
from slotproof.model.running import ContractError
from slotproof.proofs.campaign.calls import NUMBER_BYTES, decode
from slotproof.proofs.campaign.corpus import CORPUS
from slotproof.proofs.campaign.kinds import FULL, HYBRID, SLIDING_WINDOW, kind_of
from slotproof.proofs.campaign.monitor import Monitor
from slotproof.proofs.campaign.shrink import made_small
from slotproof.proofs.campaign.story import Story, tell

CALLS_A_RUN = 30
ENOUGH_CALLS = {FULL: 2_000, SLIDING_WINDOW: 2_000, HYBRID: 400}
"""Calls after which a campaign that found a story ends, by kind; of several groups each takes longer."""
MAX_CALLS = 60_000
"""Calls after which it ends without one."""
TRIES = 3
"""How many of a statement's stories are made small, so that the shortest of these is told."""


def tiny_configurations(random: Random, kind: str | None = None) -> Iterator[Config]:
    """Pools of a few blocks, without end; of one kind, or with one group of either."""
    while True:
        if kind == HYBRID:
            yield _tiny_hybrid(random)
            continue
        block_size = random.choice((1, 1, 2, 2, 3))
        num_blocks = random.choice((4, 5, 6, 7, 8))
        sliding = random.random() < 0.5 if kind is None else kind == SLIDING_WINDOW
        yield Config(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=random.choice((1, 2, 4)) * num_blocks * block_size // 2,
            sliding_window=random.choice((2, 3, 4, 5)) if sliding else None,
            watermark_blocks=random.choice((0, 1)),
            max_in_flight_tokens=random.choice((1, 2, 3, 1 << 30)),
        )


def _tiny_hybrid(random: Random) -> Config:
    """Two groups or three, mostly one of full attention and one with a window, of small blocks: so that hits
    are found on which all agree."""
    size = random.choice((1, 1, 1, 2))
    plain = random.random() < 0.6
    groups = [
        Group(
            block_size=size if plain else size * random.choice((1, 1, 2, 3)),
            sliding_window=random.choice((None, 2, 3, 4)) if n else random.choice((None, None, 3)),
        )
        for n in range(2 if plain else random.choice((2, 3)))
    ]
    num_blocks = random.choice((6, 7, 8, 9))
    config = Config(
        num_blocks=num_blocks,
        block_size=groups[0].block_size,
        sliding_window=groups[0].sliding_window,
        groups=tuple(groups[1:]),
        max_model_len=num_blocks * size * random.choice((2, 2, 4)) // 4,
        watermark_blocks=random.choice((0, 0, 1)),
        max_in_flight_tokens=random.choice((1, 2, 3, 1 << 30)),
    )
    return _with_more(Random(random.getrandbits(32)), config)


def _with_more(random: Random, config: Config) -> Config:
    """One in three has a draft head, keeps few blocks of its windows, or has chunks in its last group."""
    groups, kind = config.all_groups, random.randrange(9)
    unit = config.scheduler_block_size
    if kind == 0 and any(group.sliding_window is not None for group in groups):
        return msgspec.structs.replace(config, retention_interval=random.choice((0, 0, 2 * unit)))
    if kind == 1:
        return msgspec.structs.replace(config, is_eagle=True, num_prefill_lookahead=random.choice((0, 0, 1)))
    if kind == 2 and groups[-1].block_size == unit:
        chunks = Group(block_size=unit, attention_chunk_size=unit * random.choice((1, 2)))
        return msgspec.structs.replace(config, groups=(*config.groups[:-1], chunks))
    return config


def find(rules: Rules, kind: str | None = None, seed: int = 0) -> dict[str, Story]:
    """The statements that fall first in some run of a campaign, each with a short story.

    `kind` is as in `tiny_configurations`.
    """
    random, stories, calls = Random(seed), dict[str, list[Story]](), 0
    for config, known in CORPUS:
        if kind in (None, kind_of(config)):
            for statement in STATEMENTS:
                story = tell(config, known, rules, statement)
                if story is not None:
                    stories.setdefault(statement, []).append(story)
    for config in tiny_configurations(random, kind):
        monitor, made = Monitor(config, rules), []
        for _ in range(CALLS_A_RUN):
            call = decode(monitor.running, random.getrandbits(8 * NUMBER_BYTES))
            try:
                violations = monitor.step(call)
            except ContractError:  # a rule that is off may leave a request that cannot be asked for
                continue
            made.append(call)
            calls += 1
            for violation in violations:
                stories.setdefault(violation.statement, []).append(Story(config, tuple(made), violation))
            if violations:
                break
        if calls >= (ENOUGH_CALLS[kind or FULL] if stories else MAX_CALLS):
            break
    return {statement: _shortest(told, rules) for statement, told in sorted(stories.items())}


def _shortest(stories: list[Story], rules: Rules) -> Story:
    """The shortest, of the few that are short already, once they are made small; the first of two alike."""
    few = sorted(stories, key=lambda story: len(story.calls))[:TRIES]
    return min((made_small(story, rules) for story in few), key=lambda story: len(story.calls))
