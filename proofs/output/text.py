"""Blocks, calls, answers and configurations as people read them, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Call,
    ResetPrefixCache,
    Result,
    TakeNewBlockIds,
)
from slotproof.proofs.campaign.calls import call_name


def block_names(blocks: Iterable[int], between: str = " ") -> str:
    """Blocks by their numbers, written so that nobody takes them for counts: `b2 b3`, the null block `null`;
    `none` if there are none."""
    return between.join(f"b{block}" if block else "null" for block in blocks) or "none"


def call_line(call: Call) -> str:
    """A call with the fields that are not as by default: `allocate request=1 new=4 must_fit`."""
    return " ".join([call_name(call), *_fields(call)])


def config_line(config: msgspec.Struct) -> str:
    """The fields of a configuration, of an engine or a scheduler, that are not as by default."""
    return " ".join(_fields(config))


def _fields(record: msgspec.Struct) -> list[str]:
    words = []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if value == field.default:
            continue
        if isinstance(value, Enum):
            words.append(f"{field.name}={value.value}")
        elif value is True:
            words.append(field.name)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            words.append(f"{field.name}=" + ",".join(f"({' '.join(_fields(one))})" for one in value))
        elif isinstance(value, tuple):
            listed = block_names(value, ",") if field.name == "blocks" else ",".join(map(str, value)) or "-"
            words.append(f"{field.name}={listed}")
        else:
            words.append(f"{field.name}={value}")
    return words


def result_line(call: Call, result: Result) -> str:
    """What a call answered, in the words that fit the call."""
    if isinstance(call, TakeNewBlockIds):
        return f"to zero: {block_names(result.new_blocks)}"
    if isinstance(call, ResetPrefixCache):
        return "reset" if result.granted else "refused"
    if not isinstance(call, Allocate):
        return "waits" if isinstance(call, AddRequest) else "done"
    hits = f", hits {block_names(result.hits)}" if result.hits else ""
    return (f"new blocks {block_names(result.new_blocks)}" if result.granted else "None") + hits
