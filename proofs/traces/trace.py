"""A trace: a configuration, then calls, each with its result and the state after it; and its file.

Everything that finds a story writes one, everything that replays reads one. The file is JSON in
Apalache's ITF layout: state 0 has the configuration, and each later one the `call` that led to it
and the `result`. What a state holds is what a `Snapshot` shows, with `hashes` as a map of the hashed
blocks alone, and without the usage, which is 1 - free / (blocks - 1).
"""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from slotproof.impl.group_checks import check_groups
from slotproof.impl.protocol import Call, Config, EvictBlocks, Result, Snapshot
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.files import write_json
from slotproof.proofs.traces.itf import from_itf, itf_map, to_itf
from slotproof.proofs.traces.script import Script

MAX_BLOCKS = 1 << 20
"""Blocks of a trace's pool, at most: what a model that runs can hold."""


class Step(Struct, frozen=True):
    """A call, what it answered, and the state after it."""

    call: Call
    result: Result
    state: Snapshot


class Trace(Struct, frozen=True):
    """A story: from an idle pool, call by call."""

    config: Config
    initial: Snapshot
    steps: tuple[Step, ...]
    description: str = ""
    """What it shows, for people."""
    installed: str = ""
    """What was gated when it was found, such as `vLLM 0.32.0`."""
    followed: bool = False
    """It follows the implementation's own answers, and results and states are those that it gave."""
    hidden: tuple[str, ...] = ()
    """Of a followed one: what the implementation lacked (`impl/capabilities.py`)."""
    script: Script | None = None
    """What the scheduler was put through that made these calls, if one did."""


class TraceError(UserError):
    """A file is no trace. The message names the place in it."""


Natural = Annotated[int, Meta(ge=0)]
Blocks = tuple[Natural, ...]


class _Meta(Struct, forbid_unknown_fields=True):
    index: int


class _Header(Struct, forbid_unknown_fields=True):
    format: str
    description: str = ""
    installed: str = ""
    followed: bool = False
    hidden: tuple[str, ...] = ()
    script: Script | None = None


class _State(Struct, forbid_unknown_fields=True, kw_only=True):
    meta: _Meta = field(name="#meta")
    config: Config | UnsetType = UNSET
    call: Call | UnsetType = UNSET
    result: Result | UnsetType = UNSET
    free_queue: Blocks
    ref_cnt: Blocks
    hashes: dict[Natural, int]
    tables: dict[Natural, Blocks]
    to_zero: Blocks


class _File(Struct, forbid_unknown_fields=True, kw_only=True):
    meta: _Header = field(name="#meta")
    params: list[str]
    vars: list[str]
    states: Annotated[list[_State], Meta(min_length=1)]


_FORMAT = "slotproof-trace-1"
_PARAMS = ["config"]
_VARS = ["call", "result", "free_queue", "ref_cnt", "hashes", "tables", "to_zero"]


def check_config(config: Config) -> None:
    """Raises ValueError, one line that names the field, for a configuration no engine can have."""
    least = {
        "num_blocks": 2,
        "block_size": 1,
        "max_model_len": 1,
        "sliding_window": 1,
        "watermark_blocks": 0,
        "max_in_flight_tokens": 1,
    }
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise ValueError(f"{name} is {value}: it must be at least {low}")
    check_groups(config)
    if config.num_blocks > MAX_BLOCKS:
        raise ValueError(f"num_blocks is {config.num_blocks}: it must be at most {MAX_BLOCKS}")


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace. Raises UserError if the file cannot be written."""
    write_json(path, to_itf(_to_file(trace)))


def read_trace(path: Path) -> Trace:
    """Read a trace, strictly.

    Raises:
        TraceError: the file cannot be read or is no trace; the message names the place in it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TraceError(
            f"{path}: not a trace: it starts with a byte-order mark: save it as UTF-8 without one"
        )
    try:
        return _from_file(msgspec.convert(from_itf(msgspec.json.decode(data)), _File))
    except RecursionError:
        raise TraceError(f"{path}: nested too deep to be a trace") from None
    except (ValueError, msgspec.MsgspecError) as error:  # UnicodeDecodeError is a ValueError
        reason = " ".join(str(error).split())
        raise TraceError(f"{path}: not a trace: {reason}") from None


def _to_file(trace: Trace) -> dict[str, Any]:
    states = [_state(0, trace.initial) | {"config": _known(msgspec.to_builtins(trace.config))}]
    for index, step in enumerate(trace.steps, 1):
        happened = {"call": msgspec.to_builtins(step.call), "result": msgspec.to_builtins(step.result)}
        states.append(_state(index, step.state) | happened)
    header: dict[str, Any] = {
        "format": _FORMAT,
        "description": trace.description,
        "installed": trace.installed,
    }
    if trace.followed:
        header |= {"followed": True, "hidden": trace.hidden}
    if trace.script is not None:
        header["script"] = _known(msgspec.to_builtins(trace.script))
    return {"#meta": header, "params": _PARAMS, "vars": _VARS, "states": states}


def _known(value: Any) -> Any:
    """ITF has no null: a field that is None is left out."""
    if isinstance(value, dict):
        return {name: _known(field) for name, field in value.items() if field is not None}
    return [_known(item) for item in value] if isinstance(value, list | tuple) else value


def _state(index: int, s: Snapshot) -> dict[str, Any]:
    return {
        "#meta": {"index": index},
        "free_queue": s.free_queue,
        "ref_cnt": s.ref_cnt,
        "hashes": itf_map((block, key) for block, key in enumerate(s.hashes) if key is not None),
        "tables": itf_map(s.tables.items()),
        "to_zero": s.to_zero,
    }


def _from_file(file: _File) -> Trace:
    if file.meta.format != _FORMAT:
        raise ValueError(f"format is {file.meta.format!r}: this version reads {_FORMAT!r}")
    if (file.params, file.vars) != (_PARAMS, _VARS):
        raise ValueError(f"params and vars are not {_PARAMS} and {_VARS}")
    config = file.states[0].config
    if config is UNSET:
        raise ValueError("$.states[0]: config is missing")
    check_config(config)
    steps = []
    for index, state in enumerate(file.states):
        place = f"$.states[{index}]"
        if state.meta.index != index:
            raise ValueError(f"{place}: its index is {state.meta.index}: a state is missing, or out of order")
        snapshot = _snapshot(state, config, place)
        call, result = state.call, state.result
        if index == 0:
            if call is not UNSET or result is not UNSET:
                raise ValueError(f"{place}: the first state follows no call")
            initial = snapshot
        elif call is UNSET or result is UNSET or state.config is not UNSET:
            raise ValueError(f"{place}: a state after the first has a call and a result, and no config")
        else:
            if isinstance(call, EvictBlocks):
                _check_blocks(call.blocks, config, f"{place}.call.blocks")
            steps.append(Step(call, result, snapshot))
    meta = file.meta
    if meta.script is not None and meta.script.setup.config != config:
        raise ValueError("$.#meta.script: its engine is not that of the first state")
    return Trace(
        config,
        initial,
        tuple(steps),
        meta.description,
        meta.installed,
        meta.followed,
        meta.hidden,
        meta.script,
    )


def _snapshot(state: _State, config: Config, place: str) -> Snapshot:
    if len(state.ref_cnt) != config.num_blocks:
        raise ValueError(f"{place}.ref_cnt: {len(state.ref_cnt)} blocks, in a pool of {config.num_blocks}")
    blocks = {"free_queue": state.free_queue, "to_zero": state.to_zero, "hashes": tuple(state.hashes)}
    blocks |= {f"tables[{r}]": table for r, table in state.tables.items()}
    for name, named in blocks.items():
        _check_blocks(named, config, f"{place}.{name}")
    return Snapshot(
        free_queue=state.free_queue,
        ref_cnt=state.ref_cnt,
        hashes=tuple(state.hashes.get(block) for block in range(config.num_blocks)),
        tables=state.tables,
        usage=usage_of(config.num_blocks, len(state.free_queue)),
        to_zero=state.to_zero,
    )


def _check_blocks(blocks: tuple[int, ...], config: Config, place: str) -> None:
    strange = [block for block in blocks if not 0 <= block < config.num_blocks]
    if strange:
        raise ValueError(f"{place}: block {strange[0]} is not in a pool of {config.num_blocks}")


def usage_of(num_blocks: int, num_free: int) -> float:
    """The share of the pool, the null block aside, that is not free."""
    return 1.0 - num_free / (num_blocks - 1) if num_blocks > 1 else 0.0
