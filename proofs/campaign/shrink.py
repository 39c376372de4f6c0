"""Fewer and simpler calls that still do what was seen of more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from slotproof.impl.protocol import Call
from slotproof.model.claims.check import Check
from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.story import Story, tell


def made_small(story: Story, rules: Rules, more: tuple[Check, ...] = (), past_others: bool = False) -> Story:
    """The story without calls that it does not need, and each call as simple as it can be. `more` and
    `past_others` are as in `tell`."""

    def confirmed(calls: tuple[Call, ...]) -> Story | None:
        return tell(story.config, calls, rules, story.violation.statement, more, past_others)

    def told(calls: tuple[Call, ...]) -> tuple[Call, ...] | None:
        found = confirmed(calls)
        return None if found is None else found.calls

    return confirmed(simplified(story.calls, told)) or story


def simplified(
    calls: tuple[Call, ...], kept: Callable[[tuple[Call, ...]], tuple[Call, ...] | None]
) -> tuple[Call, ...]:
    """Fewer and simpler calls that still do it. `kept` answers the part of them that does, or None."""
    index = 0
    while index < len(calls):
        shorter = kept(calls[:index] + calls[index + 1 :])
        if shorter is None:
            index += 1
        else:
            calls = shorter
    for index, call in enumerate(calls):
        for field in msgspec.structs.fields(call):
            for value in _smaller_values(field.name, getattr(calls[index], field.name), field.default):
                simple = msgspec.structs.replace(calls[index], **{field.name: value})
                told = kept((*calls[:index], simple, *calls[index + 1 :]))
                if told is not None and len(told) == len(calls):
                    calls = told
                    break
    return calls


def _smaller_values(name: str, value: Any, default: Any) -> list[Any]:
    if name == "request" or value == default:
        return []
    values = [] if default is msgspec.NODEFAULT else [default]
    if isinstance(value, tuple):
        return [*values, *(value[:n] for n in range(1, len(value))), (1,) * len(value)]
    return values if isinstance(value, bool) else [*values, *range(value)]
