"""Traces survive their file, and no other file passes for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slotproof.impl.protocol import AddRequest, Allocate, Call, Complete, Config, Execute, Snapshot
from slotproof.proofs.campaign.calls import configurations
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.implementations import loader
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.oracle import expect_all, trace_of
from slotproof.proofs.gate.replay import retell, run_again
from slotproof.proofs.gate.trial import Asked, tell
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.traces.itf import from_itf, to_itf
from slotproof.proofs.traces.trace import Trace, TraceError, check_config, read_trace, write_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    config = configurations(1)[1]
    numbers = [7919**9 * k for k in range(1, 40)]
    return trace_of(config, tell(config, numbers, 30, Asked()), "a story")


@pytest.fixture
def file(trace: Trace, tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    write_trace(trace, path)
    return path


def without_copies(trace: Trace) -> Trace:
    """What a file has of it: which blocks have a key, it tells by the blocks."""

    def of(state: Snapshot) -> Snapshot:
        return msgspec.structs.replace(state, copies=None)

    steps = [msgspec.structs.replace(step, state=of(step.state)) for step in trace.steps]
    return msgspec.structs.replace(trace, initial=of(trace.initial), steps=tuple(steps))


def test_what_is_written_is_read(trace: Trace, file: Path) -> None:
    assert len(trace.steps) == 30
    assert read_trace(file) == without_copies(trace)
    assert [path.name for path in file.parent.iterdir()] == ["trace.json"]


def test_a_trace_may_have_the_worker_in_it(tmp_path: Path) -> None:
    config = Config(num_blocks=4, block_size=2, max_model_len=8)
    calls: list[Call] = [AddRequest(0, (1, 2, 3)), Allocate(0, 3), Execute(), Complete(0, 3)]
    trace, path = trace_of(config, expect_all(config, calls)), tmp_path / "trace.json"
    write_trace(trace, path)
    assert read_trace(path) == without_copies(trace)
    assert trace.steps[1].state == trace.steps[2].state
    assert retell(trace, path).differences == []
    with closing(Isolated(loader("torch", "cpu"))) as torch:
        assert run_again(torch, trace, Strictness.EXACT) == (4, [], False, False)


def test_the_layout_is_itf(file: Path) -> None:
    written = json.loads(file.read_text())
    assert set(written) == {"#meta", "params", "vars", "states"}
    assert [state["#meta"]["index"] for state in written["states"]] == list(range(31))
    assert all(set(state["tables"]) == {"#map"} for state in written["states"])


def test_every_integer_may_be_a_bigint(trace: Trace, file: Path) -> None:
    """As Apalache writes them."""

    def big(value: Any) -> Any:
        if isinstance(value, list):
            return [big(item) for item in value]
        if isinstance(value, dict):
            return {key: item if key == "#meta" else big(item) for key, item in value.items()}
        return {"#bigint": str(value)} if isinstance(value, int) and not isinstance(value, bool) else value

    file.write_text(json.dumps(big(json.loads(file.read_text()))))
    assert read_trace(file) == without_copies(trace)


@pytest.mark.parametrize(
    "value", [0, 1 << 52, 1 << 70, -(1 << 70), True, "x", [1, [1 << 60]], {"a": 1 << 60}]
)
def test_itf_values_survive(value: Any) -> None:
    assert from_itf(json.loads(json.dumps(to_itf(value)))) == value


GARBLED_TEXT = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no states": b'{"#meta": {"format": "slotproof-trace-1"}, "params": [], "vars": [], "states": []}',
}


@pytest.mark.parametrize("data", GARBLED_TEXT.values(), ids=GARBLED_TEXT)
def test_garbled_text(data: bytes, file: Path) -> None:
    file.write_bytes(data)
    refused(file)


def put(*path: Any) -> Callable[[Any], None]:
    """Replace what is at a path of keys by its last element."""
    *keys, last, value = path

    def change(file: Any) -> None:
        for key in keys:
            file = file[key]
        file[last] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    *keys, last = path

    def change(file: Any) -> None:
        for key in keys:
            file = file[key]
        del file[last]

    return change


GARBLED: dict[str, tuple[Callable[[Any], None], str]] = {
    "another format": (put("#meta", "format", "tla"), "format is 'tla'"),
    "other vars": (put("vars", ["x"]), "params and vars"),
    "an unknown field": (put("more", 1), "unknown field `more`"),
    "no config": (drop("states", 0, "config"), "config is missing"),
    "an empty pool": (put("states", 0, "config", "num_blocks", 1), "num_blocks is 1"),
    "a huge pool": (put("states", 0, "config", "num_blocks", 1 << 40), "num_blocks is 1099511627776"),
    "a config with a word": (put("states", 0, "config", "block_size", "four"), "config.block_size"),
    "an unknown setting": (put("states", 0, "config", "colour", 1), "unknown field `colour`"),
    "a state left out": (drop("states", 3), "states[3]: its index is 4"),
    "a call at the start": (put("states", 0, "call", {"call": "take_new_block_ids"}), "states[0]"),
    "no call": (drop("states", 2, "call"), "states[2]"),
    "no result": (drop("states", 2, "result"), "states[2]"),
    "an unknown call": (put("states", 2, "call", {"call": "defragment"}), "defragment"),
    "a call of no kind": (put("states", 2, "call", {}), "states[2].call"),
    "a field no call has": (put("states", 2, "call", {"call": "take_new_block_ids", "x": 1}), "`x`"),
    "half a token": (
        put("states", 2, "call", {"call": "add_request", "request": 9, "tokens": [1.5]}),
        "tokens[0]",
    ),
    "a block out of range": (put("states", 2, "free_queue", [1, 10_000]), "block 10000"),
    "evicting a block out of range": (
        put("states", 2, "call", {"call": "evict_blocks", "blocks": [-1]}),
        "block -1",
    ),
    "a negative count": (put("states", 2, "ref_cnt", [-1]), "ref_cnt[0]"),
    "too few blocks": (put("states", 2, "ref_cnt", [0, 0]), "ref_cnt: 2 blocks"),
    "a table of words": (put("states", 2, "tables", {"#map": [[0, ["a"]]]}), "states[2].tables"),
    "a map that is none": (put("states", 2, "tables", {"#map": [1]}), "#map holds a list of [key, value]"),
    "a key twice": (put("states", 2, "tables", {"#map": [[0, [1]], [0, [2]]]}), "key 0 comes twice"),
    "a key that is a list": (put("states", 2, "tables", {"#map": [[[0], [1]]]}), "a key is"),
    "a bigint of letters": (put("states", 2, "to_zero", [{"#bigint": "1e9"}]), "#bigint holds an integer"),
    "an endless bigint": (put("states", 2, "to_zero", [{"#bigint": "9" * 5000}]), "#bigint"),
    "a form beside a field": (put("states", 2, "to_zero", [{"#bigint": "1", "x": 1}]), "stands alone"),
    "an unknown form": (put("states", 2, "to_zero", {"#fun": []}), "#fun is no form"),
}


@pytest.mark.parametrize(("change", "reason"), GARBLED.values(), ids=GARBLED)
def test_garbled_traces(change: Callable[[Any], None], reason: str, file: Path) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    assert reason in refused(file)


def refused(file: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{file}: not a trace: ") or line.startswith(f"{file}: nested")
    return line


def test_files_that_are_not_there(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.json: cannot be read: No such file"):
        read_trace(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match="cannot be written"):
        write_trace(trace, tmp_path / "no" / "folder.json")


@pytest.mark.parametrize(
    ("name", "value"), [("num_blocks", 0), ("block_size", 0), ("sliding_window", 0), ("watermark_blocks", -1)]
)
def test_a_configuration_no_engine_has(name: str, value: int) -> None:
    fields: dict[str, Any] = {"num_blocks": 4, "block_size": 2, "max_model_len": 8, name: value}
    with pytest.raises(ValueError, match=name):
        check_config(Config(**fields))
