"""*batch-in-order* on the running model, and that its proof notices a closed form that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from slotproof.impl.protocol import Config
from slotproof.model.language.algebra import ite
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import FIELDS, FUNCTIONS, RUNNING, State
from slotproof.model.running import Running
from slotproof.model.scheduling.caller import allocate
from slotproof.model.scheduling.decode_step import (
    Batch,
    alike,
    decode_step,
    fills,
    is_full,
    num_taken,
    row_contract,
)
from slotproof.model.system.allocate_slots import Ask
from slotproof.proofs.campaign.calls import NUMBER_BYTES, call_fields, decode, model_config
from slotproof.proofs.campaign.find import tiny_configurations
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.prove import obligation
from slotproof.proofs.prove.obligations import batch as batches
from slotproof.proofs.prove.obligations import batch_basis

BATCHES = 300
Step = Callable[[State, Batch], State]


def batch_of(s: State, requests: list[int]) -> Batch:
    """The requests that a batch may be made of, as one."""

    def rows(chosen: list[int]) -> Batch:
        takers = [j for j, r in enumerate(chosen) if is_full(s, r)]
        return Batch(
            len(chosen),
            lambda j: chosen[j] if 0 <= j < len(chosen) else -1,
            lambda q: chosen.index(q) if q in chosen else -1,
            lambda i: takers[i] if 0 <= i < len(takers) else -1,
        )

    return rows([r for r in requests if s.status(r) == RUNNING and row_contract(s, rows([r]), 0)])


def states(seed: int) -> Iterator[tuple[Config, Running, Batch]]:
    """States that calls lead to, with a batch that the pool has the blocks for."""
    random = Random(seed)
    for config in tiny_configurations(random, FULL):
        running = Running(**model_config(config), ghosts=True)
        for _ in range(40):
            name, fields = call_fields(decode(running, random.getrandbits(8 * NUMBER_BYTES)))
            running.step(name, **fields)
            batch = batch_of(running.state, random.sample(running.requests, len(running.requests)))
            if batch.n and num_taken(running.state, batch) <= running.state.num_free:
                yield config, running, batch


def places(config: Config, running: Running, t: State, field: str) -> list[tuple[int, ...]]:
    """Where a field is looked at."""
    if field not in FUNCTIONS:
        return [()]
    blocks = range(config.num_blocks)
    if field in ("table", "slot"):
        return [(q, i) for q in running.requests for i in range(t.length(q))]
    if field == "to_zero":
        return [(0, j) for j in range(t.num_to_zero(0))]
    if field == "num_to_zero":
        return [(0,)]
    if field.startswith("holder"):
        return [(b, k) for b in blocks for k in range(t.ref_cnt(b))]
    of_requests = (
        "length",
        "first",
        "num_cached",
        "status",
        "num_tokens",
        "computed",
        "in_flight",
        "unwritten",
    )
    return [(x,) for x in (running.requests if field in of_requests else blocks)]


def differing(step: Step) -> tuple[set[str], dict[str, int]]:
    """Fields in which a batch differs from its calls in order, and what the batches were like."""
    found, seen = set[str](), dict.fromkeys(("several rows", "blocks taken", "blocks filled"), 0)
    for count, (config, running, batch) in enumerate(states(seed=5)):
        if count == BATCHES:
            return found, seen
        s = t = running.state
        for j in range(batch.n):
            outcome = allocate(t, batch.request(j), Ask(new=1))
            assert outcome.granted
            t = outcome.state
        u = step(s, batch)
        for field in FIELDS:
            if not all(alike(t, u, field, *place) for place in places(config, running, t, field)):
                found.add(field)
        seen["several rows"] += batch.n > 1
        seen["blocks taken"] += num_taken(s, batch)
        seen["blocks filled"] += sum(fills(s, batch.request(j)) for j in range(batch.n))
    raise AssertionError("there is always another state")


def test_a_batch_is_its_calls_in_order() -> None:
    found, seen = differing(decode_step)
    assert not found
    assert all(count > 30 for count in seen.values()), seen


def queue_stays(s: State, batch: Batch) -> State:
    return decode_step(s, batch).replace(at=s.at)


def taken_keep_their_hash(s: State, batch: Batch) -> State:
    t = decode_step(s, batch)
    return t.replace(block_hash=lambda b: ite(s.is_free(b), s.block_hash(b), t.block_hash(b)))


def hashed_at_once(s: State, batch: Batch) -> State:
    t = decode_step(s, batch)
    return t.replace(stamp=lambda b: ite(t.stamp(b) > s.clock, s.clock, t.stamp(b)))


BENT: list[tuple[Step, str]] = [
    (queue_stays, "at"),
    (taken_keep_their_hash, "block_hash"),
    (hashed_at_once, "stamp"),
]


@pytest.mark.parametrize(("step", "field"), BENT)
def test_a_wrong_batch_is_seen_to_differ(step: Step, field: str) -> None:
    found, _ = differing(step)
    assert found == {field}


@pytest.mark.parametrize(("step", "field"), BENT)
def test_a_wrong_batch_is_not_proved(step: Step, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obligation, "TRIES", obligation.TRIES[:2])

    def bent(s: State, batch: Batch) -> Any:
        whole = batch.n.decl().name() == "+" if hasattr(batch.n, "decl") else False
        return step(s, batch) if whole else decode_step(s, batch)  # k + 1 rows: what is claimed

    monkeypatch.setattr(batches, "decode_step", bent)
    unproved = {
        o.name.rpartition(" ")[2]
        for o in batches.batch(FULL, Rules())
        if o.name.startswith("batch, one row more")
        and o.name.endswith(f": {field}")
        and not obligation.is_proved(o)
    }
    assert unproved == {field}


def unproved_basis() -> set[str]:
    found = batch_basis.batch_basis(FULL, Rules())
    return {o.name.partition(", ")[2] for o in found if not obligation.answer(o, ((500_000, 0),)).unsat}


@pytest.mark.parametrize(
    ("field", "needs_it"), [("rank", "alike: ref_cnt"), ("computed", "alike: rows-of-both")]
)
def test_states_that_differ_in_a_field_do_not_stay_alike(
    field: str, needs_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch's state and that of the calls are alike where a field means something, and it has to be said
    of each field that anything reads."""
    fields = tuple(f for f in FIELDS if f != field)
    monkeypatch.setattr(batch_basis, "FIELDS", fields)
    assert needs_it in unproved_basis()


def test_the_taker_of_another_row_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_basis, "is_full", lambda s, r: is_full(s, r + 1))
    assert "one row more: taker-takes" in unproved_basis()
