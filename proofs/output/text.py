"""Calls, answers and configurations as people read them, one line each."""

from __future__ import annotations

import msgspec

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Call,
    Config,
    ResetPrefixCache,
    Result,
    TakeNewBlockIds,
)
from slotproof.proofs.campaign.calls import call_name


def call_line(call: Call) -> str:
    """A call with the fields that are not as by default: `allocate request=1 new=4 must_fit`."""
    return " ".join([call_name(call), *_fields(call)])


def config_line(config: Config) -> str:
    """A configuration's fields that are not as by default."""
    return " ".join(_fields(config))


def _fields(record: msgspec.Struct) -> list[str]:
    words = []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if value == field.default:
            continue
        if value is True:
            words.append(field.name)
        elif isinstance(value, tuple):
            words.append(f"{field.name}={','.join(map(str, value)) or '-'}")
        else:
            words.append(f"{field.name}={value}")
    return words


def result_line(call: Call, result: Result) -> str:
    """What a call answered, in the words that fit the call."""
    if isinstance(call, TakeNewBlockIds):
        return f"to zero: {_blocks(result.new_blocks)}"
    if isinstance(call, ResetPrefixCache):
        return "reset" if result.granted else "refused"
    if not isinstance(call, Allocate):
        return "waits" if isinstance(call, AddRequest) else "done"
    hits = f", hits {_blocks(result.hits)}" if result.hits else ""
    return (f"new blocks {_blocks(result.new_blocks)}" if result.granted else "None") + hits


def _blocks(blocks: tuple[int, ...]) -> str:
    return ",".join(map(str, blocks)) or "none"
