"""A pool's methods against the model's, on any contents of pools up to a size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import z3

from slotproof.proofs.conform.ends import Exhausted, Unsupported
from slotproof.proofs.conform.numbers import Number, number
from slotproof.proofs.conform.paths import Budget, Exploration, Path
from slotproof.proofs.conform.pools import (
    REFUSED,
    Contents,
    PoolCall,
    Seen,
    calls,
    contents,
    expected,
    references,
)

CONFORMS, DIFFERS, UNSUPPORTED, UNKNOWN = "conforms", "differs", "unsupported", "unknown"
METHODS = (
    "get_new_blocks",
    "touch",
    "free_blocks",
    "evict_blocks",
    "reset_prefix_cache",
    "cache_full_blocks",
)


class PoolTarget(Protocol):
    """How an implementation keeps what a pool holds."""

    @property
    def name(self) -> str:
        """The class."""
        ...

    @property
    def bounds(self) -> str:
        """What more is bounded than the number of blocks, if anything is."""
        ...

    def pools(self, held: Contents, references: Mapping[int, Any]) -> Iterator[Any]:
        """The implementation's pools that hold this: it may keep one thing in several ways."""
        ...

    def call(self, pool: Any, call: PoolCall) -> Any:
        """The result; raises what the implementation raises."""
        ...

    def seen(self, pool: Any, result: Any) -> Seen:
        """What the pool holds now."""
        ...


@dataclass(frozen=True)
class PoolFinding:
    """The answer about one method. `seconds` are of computing time."""

    method: str
    verdict: str
    num_blocks: int
    """Pools of up to so many blocks were looked at, the null block aside."""
    pools: int
    """How many, and ways to keep them."""
    paths: int
    seconds: float
    what: str = ""


def conform_method(target: PoolTarget, method: str, num_blocks: int, seconds: float) -> PoolFinding:
    """Follow one method through every call on every pool."""
    start = time.process_time()
    pools = paths = 0
    verdict, what = CONFORMS, ""
    try:
        for size in range(num_blocks + 1):
            for held in contents(size):
                asked = [call for call in calls(held) if call.name == method]
                terms = references(held)
                for way, _ in enumerate(target.pools(held, {b: Number(t) for b, t in terms.items()})):
                    pools += 1
                    for call in asked:
                        left = seconds - (time.process_time() - start)
                        if left <= 0:
                            raise Exhausted(f"{seconds:g} seconds")
                        found, followed = _follow(target, held, terms, way, call, Budget(seconds=left))
                        paths += followed
                        if found:
                            verdict, what = _told(target, held, way, call, found)
                            return PoolFinding(
                                method, verdict, num_blocks, pools, paths, time.process_time() - start, what
                            )
    except Unsupported as unsupported:
        verdict, what = UNSUPPORTED, f"{unsupported.where}: {unsupported.what}"
    except Exhausted as exhausted:
        verdict, what = UNKNOWN, f"{exhausted.where}: after {exhausted.what}"
    if verdict == CONFORMS and not paths:
        verdict, what = UNKNOWN, "no path was compared"
    return PoolFinding(method, verdict, num_blocks, pools, paths, time.process_time() - start, what)


def _follow(
    target: PoolTarget, held: Contents, terms: Mapping[int, Any], way: int, call: PoolCall, budget: Budget
) -> tuple[dict[int, int] | None, int]:
    """References for which the implementation may do otherwise, if there are any; and the paths."""
    found: list[dict[int, int]] = []

    def run(path: Path) -> None:
        claim = _agree(target, held, {b: Number(t) for b, t in terms.items()}, terms, way, call)
        if not path.entails(claim):
            solver = z3.Solver()
            solver.add(*path.facts, *path.conditions, *(term >= 1 for term in terms.values()), z3.Not(claim))
            if solver.check() != z3.unsat:
                model = solver.model()
                found.append({b: model.eval(t, model_completion=True).as_long() for b, t in terms.items()})

    count = 0
    for _ in Exploration([term >= 1 for term in terms.values()], budget).runs(run):
        count += 1
        if found:
            return found[0], count
    return None, count


def _agree(
    target: PoolTarget,
    held: Contents,
    own: Mapping[int, Any],
    terms: Mapping[int, Any],
    way: int,
    call: PoolCall,
) -> z3.BoolRef:
    pool = next(pool for n, pool in enumerate(target.pools(held, own)) if n == way)
    try:
        result = target.call(pool, call)
    except Exception:
        result = REFUSED
    now, then = target.seen(pool, result), expected(held, terms, call)
    if (now.result, now.queue, now.keys, now.lists) != (then.result, then.queue, then.keys, then.lists):
        return z3.BoolVal(False)
    return z3.And(
        [z3.BoolVal(True), *(_same(now.references[b], then.references[b]) for b in then.references)]
    )


def _same(a: Any, b: Any) -> z3.BoolRef:
    return (number(a) if isinstance(a, Number | int) else a) == (z3.IntVal(b) if isinstance(b, int) else b)


def _told(
    target: PoolTarget, held: Contents, way: int, call: PoolCall, references: Mapping[int, int]
) -> tuple[str, str]:
    """The difference in numbers, made on the real object and on the model before it is told."""
    told = f"{held}, references {dict(references)}: {call}"

    def run(path: Path) -> None:
        terms = {b: z3.IntVal(n) for b, n in references.items()}
        differs.append(not path.entails(_agree(target, held, references, terms, way, call)))

    differs: list[bool] = []
    for _ in Exploration([]).runs(run):
        pass
    if any(differs):
        return DIFFERS, told
    return UNKNOWN, f"{told}: not shown to agree, and no numbers show a difference"
