"""A situation in numbers as a story: calls from an idle pool that lead to it, and the call in question.

The story is made on the model and on the real object: only if they disagree is a difference told.
"""

from __future__ import annotations

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Allocator,
    CacheBlocks,
    Call,
    Complete,
    Config,
    Finish,
)
from slotproof.model.language.state import WAITING
from slotproof.model.running import ContractError
from slotproof.proofs.conform.situation import Case
from slotproof.proofs.conform.targets.target import Target
from slotproof.proofs.conform.values import Values
from slotproof.proofs.gate.compare import (
    Difference,
    KeyMatch,
    Strictness,
    difference,
    result_differences,
    snapshot_differences,
)
from slotproof.proofs.gate.oracle import expect_all
from slotproof.proofs.gate.trial import Failure

REQUEST, WRITER, HOLDER = 0, 1, 2


def story(case: Case, values: Values) -> tuple[Config, list[Call]]:
    """The configuration and the calls."""
    of = values.number
    before = _running(of) if case.holds else _cached(of, values.held_hits)
    held = of["length"] if case.holds else _held(of, values.held_hits)
    config = Config(
        num_blocks=1 + of["num_free"] + held,
        block_size=of["block_size"],
        max_model_len=of["max_model_len"],
        sliding_window=of.get("window"),
        enable_caching=case.caching,
        watermark_blocks=of["watermark"],
        max_in_flight_tokens=of["max_in_flight"],
    )
    last = Allocate(
        REQUEST,
        of["new"],
        of["lookahead"],
        of["external"],
        skip_cache=of["hits"] == 0,
        delay_cache=bool(of["delay_cache"]),
        must_fit=bool(of["must_fit"]),
        reserved=of["reserved"],
        has_scheduled=bool(of["has_scheduled"]),
        skip_zeroing=bool(of["skip_zeroing"]),
    )
    return config, [*before, last]


def _running(of: dict[str, int]) -> list[Call]:
    """The request runs: it has been admitted, has perhaps been given drafts, and some of it has run. Or it
    waits again, after a load."""
    computed, tokens, size = of["computed"], of["tokens"], of["block_size"]
    spare = max(0, of["length"] * size - computed) if of["length"] > -(-computed // size) else 0
    calls: list[Call] = [AddRequest(REQUEST, (1,) * tokens)]
    if of["status"] == WAITING:
        load = Allocate(REQUEST, 0, spare, computed, delay_cache=True, has_scheduled=False)
        return [*calls, load, CacheBlocks(REQUEST)]
    first = min(computed, tokens)
    calls.append(Allocate(REQUEST, first, spare if computed == first else 0, has_scheduled=False))
    if computed > first:
        calls.append(Allocate(REQUEST, computed - first, spare, has_scheduled=False))
    if computed > of["in_flight"]:
        calls.append(Complete(REQUEST, computed - of["in_flight"]))
    return calls


def _held(of: dict[str, int], held_hits: int) -> int:
    return held_hits if held_hits in (0, of["hits"]) else held_hits + 1


def _cached(of: dict[str, int], held_hits: int) -> list[Call]:
    """The request waits; its hits were written by another, and the first of them are held."""
    hits, size = of["hits"], of["block_size"]
    calls: list[Call] = []
    if hits:
        calls += [
            AddRequest(WRITER, (1,) * (hits * size)),
            Allocate(WRITER, hits * size, has_scheduled=False),
            Complete(WRITER, hits * size),
        ]
    if 0 < held_hits < hits:
        calls += [
            AddRequest(HOLDER, (*(1,) * (held_hits * size), 3)),
            Allocate(HOLDER, 1, has_scheduled=False),
        ]
    if hits and held_hits < hits:
        calls.append(Finish(WRITER))
    shared = (1,) * (hits * size)
    return [*calls, AddRequest(REQUEST, (*shared, *(2,) * (of["tokens"] - len(shared))))]


def disagreement(target: Target, config: Config, calls: list[Call]) -> Failure | None:
    """The first call of the story that the real object answers otherwise than the model; None if there is
    none, or the story is none that a caller may make."""
    try:
        expected = expect_all(config, calls)
    except (ContractError, ValueError):
        return None
    keys = KeyMatch()
    try:
        allocator: Allocator = target.allocator(config)
    except ValueError:
        return None
    for n, e in enumerate(expected, 1):
        found: list[Difference]
        try:
            result = allocator.step(e.call)
            found = result_differences(Strictness.EXACT, e.result, result)
            found += snapshot_differences(Strictness.EXACT, e.snapshot, allocator.snapshot(), keys)
        except Exception as error:
            found = [difference("answer", "one", f"none: {type(error).__name__}: {error}")]
        if found:
            return Failure(config, [e.step for e in expected[:n]], found)
    return None
