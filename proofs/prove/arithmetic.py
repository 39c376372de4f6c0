"""Division by the block size, for every block size.

Z3 decides linear arithmetic; dividing by an unknown is not linear. So the proofs see `tokens // block_size`,
`ceil(tokens / block_size)` and `blocks * block_size` as three unknown functions with the properties below,
and each property is itself an obligation, proved once from the definitions.
"""

from __future__ import annotations

from typing import Any

import z3

from slotproof.model.language.algebra import both, either, iff, implies, ite, negate, within
from slotproof.proofs.prove.claims import Claim, as_term

floor = z3.Function("floor_div", z3.IntSort(), z3.IntSort())
ceil = z3.Function("ceil_div", z3.IntSort(), z3.IntSort())
times = z3.Function("times", z3.IntSort(), z3.IntSort())
block_size = z3.Int("block_size")

STATEMENT = "arithmetic"


def _property(name: str, arity: int, body: Any, *triggers: Any) -> Claim:
    return Claim(name, STATEMENT, arity, body, triggers)


def _pair(f: Any, g: Any) -> Any:
    return lambda a, b: (f(a), g(b))


def _monotone(f: Any) -> Any:
    return lambda a, b: implies(a <= b, f(a) <= f(b))


def _signs(a: Any) -> Any:
    return both(implies(a >= 0, floor(a) >= 0), iff(a > 0, ceil(a) > 0))


def _products(n: Any, m: Any) -> Any:
    return implies(n < m, times(n) + block_size <= times(m))


MONOTONE = (
    _property("floor-is-monotone", 2, _monotone(floor), _pair(floor, floor)),
    _property("ceil-is-monotone", 2, _monotone(ceil), _pair(ceil, ceil)),
)
"""They follow from the adjoints, and help where quantities are compared; but Z3 instantiates them at every
pair of terms."""

LEAN = (
    _property("floor-of-product", 1, lambda n: both(floor(times(n)) == n, ceil(times(n)) == n), times),
    _property("floor-is-adjoint", 2, lambda a, n: iff(n <= floor(a), times(n) <= a), _pair(floor, times)),
    _property("ceil-is-adjoint", 2, lambda a, n: iff(ceil(a) <= n, a <= times(n)), _pair(ceil, times)),
    _property("ceil-near-floor", 1, lambda a: both(floor(a) <= ceil(a), ceil(a) <= floor(a) + 1), ceil),
    _property("product-is-monotone", 2, _products, _pair(times, times)),
    _property("signs", 1, _signs, floor, ceil),
)
"""What a proof about contents, which compares few quantities, is quicker with."""

PROPERTIES = (*LEAN, *MONOTONE)
"""Properties that every proof may use."""

AT_ZERO = _property("zero", 0, lambda: both(floor(0) == 0, ceil(0) == 0, times(0) == 0))


def next_block(n: Any) -> Claim:
    """One more block holds `block_size` more tokens."""
    return _property("next-block", 0, lambda: times(n + 1) == times(n) + block_size)


def sum_of_parts(a: Any, b: Any) -> Claim:
    """A range of tokens that starts inside a block needs at most one block more."""
    return _property("sum-of-parts", 0, lambda: ceil(a + b) <= floor(a) + ceil(b) + 1)


def blocks_before(n: Any, a: Any) -> Claim:
    """The whole blocks that are left of n when its last `a` tokens are taken away."""
    return _property("blocks-before", 0, lambda: floor(times(n) - a) == n - ceil(a))


def pigeons(where: str) -> tuple[z3.ArithRef, z3.ArithRef]:
    """The two that share a hole, by the name of the argument they are used in."""
    return z3.Int(f"{where}!a"), z3.Int(f"{where}!b")


def pigeonhole(where: str, n: Any, m: Any, f: Any) -> Claim:
    """Of more than m numbers f(0) .. f(n - 1), one is not below m or two are alike: `pigeons(where)`. One
    argument uses a name once: other numbers have other pigeons."""
    a, b = pigeons(where)

    def crowded() -> Any:
        clash = either(negate(within(0, f(a), m)), both(a != b, f(a) == f(b)))
        return implies(both(m >= 0, n > m), both(within(0, a, n), within(0, b, n), clash))

    return _property("pigeonhole", 0, crowded)


def pigeonhole_by_induction() -> tuple[Claim, Claim]:
    """Why: with m = 0 there is no room; and what breaks the rule for g below breaks it for f, where g has one
    number less to take, and puts the last of f where m was taken."""
    f, n, m = z3.Function("f", z3.IntSort(), z3.IntSort()), z3.Int("n"), z3.Int("m")
    a, b = pigeons("pigeon")
    last = n - 1

    def start() -> Any:
        return implies(n > 0, negate(within(0, f(0), 0)))

    def step() -> Any:
        fewer = pigeonhole("pigeon", n - 1, m, lambda j: ite(f(j) == m, f(last), f(j))).body()
        places = ((x, y) for x in (a, b, last) for y in (a, b, last))
        outside = (both(within(0, x, n), negate(within(0, f(x), m + 1))) for x in (a, b, last))
        alike = (both(within(0, x, n), within(0, y, n), x != y, f(x) == f(y)) for x, y in places)
        return implies(both(m >= 0, n > m + 1, fewer), either(*outside, *alike))

    return _property("pigeonhole-starts", 0, start), _property("pigeonhole", 0, step)


def keeps_sign(d: Any) -> Claim:
    """A product with the block size has the sign of its other factor."""
    return _property("product-keeps-sign", 0, lambda: implies(d >= 0, d * block_size >= 0))


def compared(name: str, x: Any, y: Any) -> tuple[Any, ...]:
    """The differences whose products a lemma about x and y compares: nonlinear facts that not every solver
    finds by itself, each an instance of `keeps_sign`."""
    if name == "ceil-is-adjoint":
        return y - ceil(x), ceil(x) - 1 - y
    if name == "sum-of-parts":
        return (ceil(x + y) - 1 - (floor(x) + ceil(y) + 1),)
    if name == "blocks-before":
        gap = floor(times(x) - y) - (x - ceil(y))
        return gap - 1, -gap - 1
    return ()


def definitions(term: Any) -> list[z3.BoolRef]:
    """What defines the three functions, at every place where they occur in a term."""
    facts, seen, stack = [block_size >= 1], set(), [as_term(term)]
    while stack:
        t = stack.pop()
        if t.get_id() in seen:
            continue
        seen.add(t.get_id())
        stack.extend(t.children())
        if not z3.is_app(t) or t.num_args() != 1:
            continue
        x, size = t.arg(0), block_size
        if t.decl().eq(floor):
            facts.append(both(t * size <= x, x < t * size + size))
        elif t.decl().eq(ceil):
            facts.append(both(t * size - size < x, x <= t * size))
        elif t.decl().eq(times):
            facts.append(t == x * size)
    return facts
