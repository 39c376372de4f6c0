"""The reading that works out what changed, beside the one that works out everything."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from slotproof.impl.protocol import Config, Group, Snapshot
from slotproof.model.integers.dense import Dense
from slotproof.model.integers.sparse import Sparse
from slotproof.model.language.algebra import Function
from slotproof.model.language.changes import Change
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, GHOSTS, State
from slotproof.model.running import Running
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, configurations, decode, model_config
from slotproof.proofs.gate.compare import KeyMatch, expected_snapshot
from slotproof.proofs.gate.oracle import expect

CONFIGS = configurations(3, has_groups=True)


def values(running: Running, s: State) -> dict[str, Any]:
    """All that a state says, wherever it means something."""
    read = running.read
    return {
        field: dict(read._values(s, field, getattr(s, field))) if field in FUNCTIONS else getattr(s, field)
        for field in FIELDS
        if field not in GHOSTS
    }


def pair(config: Config) -> tuple[Running, Running]:
    sparse, dense = Running(**model_config(config)), Running(**model_config(config), ghosts=True)
    assert type(sparse.read) is Sparse
    assert type(dense.read) is Dense
    return sparse, dense


@pytest.mark.parametrize("index", range(0, len(CONFIGS), 4))
def test_both_say_the_same_of_every_state(index: int) -> None:
    (sparse, dense), random = pair(CONFIGS[index]), Random(index)
    earlier: list[tuple[State, Snapshot]] = []
    keys = KeyMatch()
    for _ in range(120):
        call = decode(sparse, random.getrandbits(8 * NUMBER_BYTES))
        s, d = expect(sparse, call), expect(dense, call)
        assert s.result == d.result
        ours, theirs = values(sparse, sparse.state), values(dense, dense.state)
        hashes = (tuple(key or None for key in v.pop("block_hash").values()) for v in (ours, theirs))
        assert keys.differences(*hashes) == []  # the numbers of keys are each reading's own
        assert ours == theirs
        earlier.append((sparse.state, s.snapshot))
    now = sparse.state
    for state, snapshot in reversed(earlier):  # older states keep their view
        sparse.state = state
        assert expected_snapshot(sparse).free_queue == snapshot.free_queue
        assert expected_snapshot(sparse).hashes == snapshot.hashes
    sparse.state = now
    assert expected_snapshot(sparse) == earlier[-1][1]


class _Places(Dense):
    """Looks at each change: elsewhere than at its places, the field is as it was."""

    seen = 0

    def function(self, field: str, definition: Function) -> Function:
        if isinstance(definition, Change) and field not in GHOSTS and field not in ("table", "to_zero"):
            places, base = set(), definition
            while isinstance(base, Change):
                places |= set(base.where.places())
                base = base.base  # type: ignore[assignment]
            for x in range(-1, self.num_blocks + 3):
                if x not in places:
                    assert definition(x) == base(x), (field, x)
            _Places.seen += 1
        return super().function(field, definition)


def test_a_change_names_every_place_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproof.model.running.Dense", _Places)
    for config in CONFIGS[:6]:
        running, random = Running(**model_config(config), ghosts=True), Random(1)
        for _ in range(60):
            name, fields = call_fields(decode(running, random.getrandbits(8 * NUMBER_BYTES)))
            running.step(name, **fields)
    assert _Places.seen > 1000


def test_what_changed_is_told() -> None:
    running = Running(num_blocks=1000, block_size=2, max_model_len=100)
    running.step("add_request", request=0, tokens=(1, 2, 3))
    assert isinstance(running.read, Sparse)
    running.read.changed.clear()
    running.step("allocate", request=0, new=3)
    changed = running.read.changed
    assert changed["at"] == changed["ref_cnt"] == {1, 2}
    assert changed["table"] == {(0, 0), (0, 1)}


def test_with_a_rule_off_or_ghosts_the_model_runs_densely() -> None:
    tiny: dict[str, Any] = {"num_blocks": 4, "block_size": 1, "max_model_len": 3}
    assert type(Running(**tiny, rules=Rules().without("touch_leaves_queue")).read) is Dense
    assert type(Running(**tiny, ghosts=True).read) is Dense


def test_a_long_prompt_is_looked_up_once_a_block() -> None:
    """Half of it is found: a lookup that began anew for each length would ask 4,000,000 times."""
    groups = (Group(block_size=2, sliding_window=9),)
    config = Config(num_blocks=9000, block_size=1, max_model_len=8000, groups=groups)
    running = Running(**model_config(config))
    tokens = tuple(range(4000))
    running.step("add_request", request=0, tokens=tokens)
    running.step("allocate", request=0, new=2000)
    running.step("add_request", request=1, tokens=tokens)
    asked = 0
    earliest = running.read.earliest

    def counted(state: State, key: int) -> int:
        nonlocal asked
        asked += 1
        return earliest(state, key)

    running.read.earliest = counted  # type: ignore[method-assign]
    assert running.hits(1).tokens == 2000
    assert asked < 10_000
