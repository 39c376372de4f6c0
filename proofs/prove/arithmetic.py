"""Division by block sizes, for every block size.

Z3 decides linear arithmetic; dividing by an unknown is not linear. So the proofs see `tokens // size`,
`ceil(tokens / size)` and `blocks * size` as three unknown functions with the properties below, and each
property is itself an obligation, proved once from the definitions.
"""

from __future__ import annotations

from typing import Any

import z3

from slotproof.model.language.algebra import both, either, iff, implies, ite, negate, within
from slotproof.proofs.prove.claims import Claim, as_term

floor = z3.Function("floor_div", *[z3.IntSort()] * 3)
ceil = z3.Function("ceil_div", *[z3.IntSort()] * 3)
times = z3.Function("times", *[z3.IntSort()] * 3)

STATEMENT = "arithmetic"


def _property(name: str, arity: int, body: Any, *triggers: Any) -> Claim:
    return Claim(name, STATEMENT, arity, body, triggers)


def _pair(f: Any, g: Any) -> Any:
    return lambda a, b, size: (f(a, size), g(b, size))


def _monotone(f: Any) -> Any:
    return lambda a, b, size: implies(both(size >= 1, a <= b), f(a, size) <= f(b, size))


def _of_product(n: Any, size: Any) -> Any:
    product = times(n, size)
    return implies(size >= 1, both(floor(product, size) == n, ceil(product, size) == n))


def _floor_is_adjoint(a: Any, n: Any, size: Any) -> Any:
    return implies(size >= 1, iff(n <= floor(a, size), times(n, size) <= a))


def _ceil_is_adjoint(a: Any, n: Any, size: Any) -> Any:
    return implies(size >= 1, iff(ceil(a, size) <= n, a <= times(n, size)))


def _near(a: Any, size: Any) -> Any:
    low, high = floor(a, size), ceil(a, size)
    return implies(size >= 1, both(low <= high, high <= low + 1))


def _signs(a: Any, size: Any) -> Any:
    signs = both(implies(a >= 0, floor(a, size) >= 0), iff(a > 0, ceil(a, size) > 0))
    return implies(size >= 1, signs)


def _products(n: Any, m: Any, size: Any) -> Any:
    return implies(both(size >= 1, n < m), times(n, size) + size <= times(m, size))


def _zero(size: Any) -> Any:
    return implies(size >= 1, both(floor(0, size) == 0, ceil(0, size) == 0, times(0, size) == 0))


MONOTONE = (
    _property("floor-is-monotone", 3, _monotone(floor), _pair(floor, floor)),
    _property("ceil-is-monotone", 3, _monotone(ceil), _pair(ceil, ceil)),
)
"""They follow from the adjoints, and help where quantities are compared; but Z3 instantiates them at every
pair of terms."""

LEAN = (
    _property("floor-of-product", 2, _of_product, times),
    _property("floor-is-adjoint", 3, _floor_is_adjoint, _pair(floor, times)),
    _property("ceil-is-adjoint", 3, _ceil_is_adjoint, _pair(ceil, times)),
    _property("ceil-near-floor", 2, _near, ceil),
    _property("product-is-monotone", 3, _products, _pair(times, times)),
    _property("signs", 2, _signs, floor, ceil),
)
"""What a proof about contents, which compares few quantities, is quicker with."""

PROPERTIES = (*LEAN, *MONOTONE)
"""Properties that every proof may use."""


def at_zero(size: Any) -> Claim:
    """No tokens are no blocks."""
    return _property("zero", 0, lambda: _zero(size))


def next_block(n: Any, size: Any) -> Claim:
    """One more block holds `size` more tokens."""
    return _property("next-block", 0, lambda: implies(size >= 1, times(n + 1, size) == times(n, size) + size))


def sum_of_parts(a: Any, b: Any, size: Any) -> Claim:
    """A range of tokens that starts inside a block needs at most one block more."""

    def bounded() -> Any:
        return implies(size >= 1, ceil(a + b, size) <= floor(a, size) + ceil(b, size) + 1)

    return _property("sum-of-parts", 0, bounded)


def blocks_before(n: Any, a: Any, size: Any) -> Claim:
    """The whole blocks that are left of n when its last `a` tokens are taken away."""

    def left() -> Any:
        return implies(size >= 1, floor(times(n, size) - a, size) == n - ceil(a, size))

    return _property("blocks-before", 0, left)


Pigeons = tuple[z3.ArithRef, z3.ArithRef]
PIGEONS: Pigeons = (z3.Int("one_pigeon"), z3.Int("other_pigeon"))
"""Those of the proof by induction."""


def pigeonhole(pigeons: Pigeons, n: Any, m: Any, f: Any) -> Claim:
    """Of more than m numbers f(0) .. f(n - 1), one is not below m or two are alike: the pigeons, of which
    nothing else may be known. So each argument makes fresh ones."""
    a, b = pigeons

    def crowded() -> Any:
        clash = either(negate(within(0, f(a), m)), both(a != b, f(a) == f(b)))
        return implies(both(m >= 0, n > m), both(within(0, a, n), within(0, b, n), clash))

    return _property("pigeonhole", 0, crowded)


def pigeonhole_by_induction() -> tuple[Claim, Claim]:
    """Why: with m = 0 there is no room; and what breaks the rule for g below breaks it for f, where g has one
    number less to take, and puts the last of f where m was taken."""
    f, n, m = z3.Function("f", z3.IntSort(), z3.IntSort()), z3.Int("n"), z3.Int("m")
    a, b = PIGEONS
    last = n - 1

    def start() -> Any:
        return implies(n > 0, negate(within(0, f(0), 0)))

    def step() -> Any:
        fewer = pigeonhole(PIGEONS, n - 1, m, lambda j: ite(f(j) == m, f(last), f(j))).body()
        places = ((x, y) for x in (a, b, last) for y in (a, b, last))
        outside = (both(within(0, x, n), negate(within(0, f(x), m + 1))) for x in (a, b, last))
        alike = (both(within(0, x, n), within(0, y, n), x != y, f(x) == f(y)) for x, y in places)
        return implies(both(m >= 0, n > m + 1, fewer), either(*outside, *alike))

    return _property("pigeonhole-starts", 0, start), _property("pigeonhole", 0, step)


def keeps_sign(d: Any, size: Any) -> Claim:
    """A product with a block size has the sign of its other factor."""
    return _property("product-keeps-sign", 0, lambda: implies(both(size >= 1, d >= 0), d * size >= 0))


def compared(name: str, x: Any, y: Any, size: Any) -> tuple[Any, ...]:
    """The differences whose products a lemma about x and y compares: nonlinear facts that not every solver
    finds by itself, each an instance of `keeps_sign`."""
    if name == "ceil-is-adjoint":
        return y - ceil(x, size), ceil(x, size) - 1 - y
    if name == "sum-of-parts":
        return (ceil(x + y, size) - 1 - (floor(x, size) + ceil(y, size) + 1),)
    if name == "blocks-before":
        gap = floor(times(x, size) - y, size) - (x - ceil(y, size))
        return gap - 1, -gap - 1
    return ()


def sums_are_monotone() -> Claim:
    """Why what is at most in each is at most in sum: with one more it still is."""
    smaller, larger, less, more = z3.Ints("smaller larger less more")

    def step() -> Any:
        return implies(both(smaller <= larger, less <= more), smaller + less <= larger + more)

    return _property("sums-are-monotone", 0, step)


def counts_are_congruent() -> Claim:
    """Why predicates that agree count the same: with one more they still do."""
    one, other = z3.Ints("one other")
    this, that = z3.Bools("this that")

    def step() -> Any:
        return implies(both(one == other, this == that), one + ite(this, 1, 0) == other + ite(that, 1, 0))

    return _property("counts-are-congruent", 0, step)


def definitions(term: Any) -> list[z3.BoolRef]:
    """What defines the three functions, at every place where they occur in a term."""
    facts, seen, stack = [], set(), [as_term(term)]
    while stack:
        t = stack.pop()
        if t.get_id() in seen:
            continue
        seen.add(t.get_id())
        stack.extend(t.children())
        if not z3.is_app(t) or t.num_args() != 2:
            continue
        x, size = t.arg(0), t.arg(1)
        if t.decl().eq(floor):
            facts.append(both(t * size <= x, x < t * size + size))
        elif t.decl().eq(ceil):
            facts.append(both(t * size - size < x, x <= t * size))
        elif t.decl().eq(times):
            facts.append(t == x * size)
    return facts
