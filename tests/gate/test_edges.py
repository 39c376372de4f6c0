"""A precondition's edge is where one token more is outside the contract."""

from __future__ import annotations

import pytest

from slotproof.impl.protocol import AddRequest, Allocate, CacheBlocks, Call, Complete, Config
from slotproof.model.running import ContractError, Running
from slotproof.proofs.campaign.calls import call_fields, model_config
from slotproof.proofs.gate.edges import EDGES, at_edge

ENGINE = Config(num_blocks=9, block_size=2, max_model_len=8, max_in_flight_tokens=6)
WAITS = (AddRequest(0, (1, 2, 3, 4, 5)),)
RUNS = (*WAITS, Allocate(0, 4))
DECODES = (*WAITS, Allocate(0, 5), Complete(0, 5, sampled=(6,)))
DRAFTS = (*DECODES, Allocate(0, 2))
"""One token and one draft are in flight."""

CASES: list[tuple[str, tuple[Call, ...], Call, Call]] = [
    ("prompt-fits-the-model", (), AddRequest(0, (1,) * 8), AddRequest(0, (1,) * 9)),
    ("a-load-leaves-a-token", WAITS, Allocate(0, 1, external=4), Allocate(0, 1, external=5)),
    ("prefill-stays-in-the-prompt", WAITS, Allocate(0, 5), Allocate(0, 6)),
    ("within-max-model-len", DECODES, Allocate(0, 3), Allocate(0, 4)),
    ("in-flight-is-bounded", RUNS, Allocate(0, 2), Allocate(0, 3)),
    ("processed-was-in-flight", RUNS, Complete(0, 4), Complete(0, 5)),
    ("only-drafts-are-rejected", DRAFTS, Complete(0, 2, rejected=1), Complete(0, 2, rejected=2)),
    ("sampled-follows-processed", DRAFTS, Complete(0, 2, sampled=(7, 8)), Complete(0, 2, sampled=(7, 8, 9))),
    ("published-tokens-have-run", DECODES, CacheBlocks(0, tokens=5), CacheBlocks(0, tokens=6)),
]


def test_every_edge_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(EDGES)


@pytest.mark.parametrize(("name", "before", "inside", "outside"), CASES, ids=[case[0] for case in CASES])
def test_one_more_is_outside(name: str, before: tuple[Call, ...], inside: Call, outside: Call) -> None:
    running = Running(**model_config(ENGINE))
    for call in before:
        called, fields = call_fields(call)
        running.step(called, **fields)
    s = running.state
    called, fields = call_fields(outside)
    with pytest.raises(ContractError) as refused:
        running.step(called, **fields)
    assert name in refused.value.broken
    called, fields = call_fields(inside)
    answer = running.step(called, **fields).answer
    assert name in set(at_edge(s, inside, answer.total if answer else 0))
