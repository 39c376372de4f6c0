"""Where nothing is compared with the model: each statement by itself finds who breaks it, and nobody else."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from slotproof.impl.adapter import Hit
from slotproof.impl.ledger import Entry
from slotproof.impl.protocol import Allocate, Call, Config, Finish, Preempt, Result, Snapshot
from slotproof.model.language.rules import Rules
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.gate import Report, Verdict, campaign
from slotproof.proofs.gate.isolation import Isolated
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.proofs.gate.replay import retell, run_again
from slotproof.proofs.traces.trace import read_trace, write_trace


def gated(factory: Any, calls: int = 4000, seed: int = 1) -> Report:
    with closing(Isolated(lambda: factory, 5.0)) as implementation:
        return campaign(implementation, calls=calls, seed=seed, strictness=Strictness.INVARIANTS)


def without(rule: str) -> Any:
    return partial(ModelAllocator, rules=Rules().without(rule))


class BlockOne:
    """Gives every request block 1 under one key, and keeps its books in order."""

    def __init__(self, config: Config) -> None:
        self.num_blocks = config.num_blocks
        self.holders: set[int] = set()

    def step(self, call: Call) -> Result:
        if isinstance(call, Allocate):
            self.holders.add(call.request)
            return Result(new_blocks=(1,))
        if isinstance(call, Finish | Preempt):
            self.holders.discard(call.request)
        return Result()

    def snapshot(self) -> Snapshot:
        free = tuple(range(2 if self.holders else 1, self.num_blocks))
        rest = (0,) * (self.num_blocks - 2)
        return Snapshot(
            free_queue=free,
            ref_cnt=(0, len(self.holders), *rest),
            hashes=(None, b"key" if self.holders else None, *(None for _ in rest)),
            tables=dict.fromkeys(self.holders, (1,)),
            usage=1 - len(free) / (self.num_blocks - 1),
        )


class Forgets(ModelAllocator):
    """Touches a hit that others hold without a reference, and shows nothing of its references."""

    lacks = ("ref_cnt",)

    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        s = self._running.state
        held = [b for b in hit.blocks if b and s.ref_cnt(b) > 0]
        new_blocks = super().allocate(entry, call, hit)
        if new_blocks is not None and held:
            s = self._running.state
            self._running.take(s.replace(ref_cnt=lambda b: s.ref_cnt(b) - (1 if b == held[0] else 0)))
        return new_blocks


@pytest.mark.parametrize("factory", [BlockOne, Forgets])
def test_an_adapter_that_makes_things_up_is_found_soon(factory: Any) -> None:
    start = time.process_time()
    report = gated(factory)
    assert report.verdict is Verdict.DISAGREES
    assert report.failure is not None
    assert all(difference.statement for difference in report.failure.differences)
    assert len(report.failure.story) <= 12
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("rule", "statement"),
    [
        ("touch_references", "ref-count"),
        ("hash_final_tokens_only", "drafts-never-hashed"),
        ("key_covers_prefix", "hash-soundness"),
        ("key_covers_salt", "salt-isolation"),
        ("key_tags_kinds", "salt-isolation"),
        ("key_covers_lora_path", "salt-isolation"),
        ("lookup_leaves_a_token", "hash-soundness"),
        ("free_unreferenced_only", "free-count"),
        ("null_block_set_aside", "null-block"),
        ("check_before_commit", "refusal-leaves-no-trace"),
        ("lookahead_gets_slots", "enough-slots"),
        ("delay_cache_blocks", "published-is-written"),
        ("release_processed_only", "window-kept"),
        ("slots_end_at_max_model_len", "enough-slots"),
        ("popping_evicts", "drafts-never-hashed"),
    ],
)
def test_without_a_rule_the_statement_falls(rule: str, statement: str) -> None:
    report = gated(without(rule), 12_000)
    assert report.failure is not None
    assert report.failure.fault is not None or statement in {
        d.statement for d in report.failure.differences
    }, report.failure.differences


@pytest.mark.parametrize("rule", ["watermark_on_admission", "new_from_front", "keep_reserved"])
def test_what_breaks_no_statement_of_one_call_is_consistent(rule: str) -> None:
    assert gated(without(rule), 4000, seed=2).verdict is Verdict.CONSISTENT


def test_who_refuses_everything_is_consistent_and_covers_nothing() -> None:
    class Refuses(ModelAllocator):
        def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> None:
            return None

    report = gated(Refuses, 1000)
    assert report.verdict is Verdict.UNCOVERED
    assert {"granted: waiting", "call: complete", "a hit"} <= set(report.uncovered)


def test_a_followed_story_is_replayed_on_the_implementation(tmp_path: Any) -> None:
    report = gated(Forgets)
    assert report.failure is not None
    path = tmp_path / "trace.json"
    write_trace(report.failure.trace(report.asked), path)
    trace = read_trace(path)
    assert trace.followed
    assert retell(trace, path).differences == []
    with closing(Isolated(lambda: Forgets)) as implementation:
        assert run_again(implementation, trace, Strictness.EXACT).differences == report.failure.differences
    with closing(Isolated(lambda: ModelAllocator)) as implementation:
        assert run_again(implementation, trace, Strictness.EXACT).differences == []
