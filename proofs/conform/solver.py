"""Z3 without quantifiers: division by the block size as linear arithmetic, at the places that matter.

A product with a size is linear in its other factor: `(2 * x + 1) * size` is `2 * (x * size) + size`, with an
unknown for `x * size`. A quotient is an unknown too, between the products around it. What is left of the
multiplication is said of differences of these unknowns, two at a time: from the k-th block on, they hold at
least k sizes. It is said where an answer of the solver breaks it, and nowhere else: most are never needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import z3

from slotproof.proofs.prove import arithmetic

NEAR = (0, 1, -1, 2, -2)
"""The numbers k for which a difference of k blocks is compared with k sizes."""


@dataclass(frozen=True)
class _Point:
    """A number of blocks, and the tokens that they hold."""

    number: int
    blocks: z3.ArithRef
    tokens: z3.ArithRef
    size: z3.ArithRef


_FUNCTIONS = {function.name() for function in (arithmetic.floor, arithmetic.ceil, arithmetic.times)}
_ORIGIN = _Point(0, z3.IntVal(0), z3.IntVal(0), z3.IntVal(0))


@dataclass(frozen=True)
class _Division:
    """A quotient or product, and what is known of it."""

    function: z3.FuncDeclRef
    of: z3.ArithRef
    unknown: z3.ArithRef
    """What stands for it."""
    point: _Point
    facts: tuple[z3.BoolRef, ...]
    factors: tuple[z3.ArithRef, ...]
    """The unknowns whose products with the size are in it."""


class Solver:
    """A Z3 solver with scopes, for formulas with the proofs' arithmetic."""

    def __init__(self) -> None:
        self._solver = z3.SimpleSolver()
        self._solver.set("auto_config", False)
        self._solver.set("timeout", 20_000)
        self._division_of: dict[int, _Division] = {}
        self._read: dict[int, tuple[Any, Any, tuple[_Division, ...]]] = {}
        """By the id of a term: the term, so that its id stays its own; it without divisions; these."""
        self._products: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """By the ids of an unknown and a size: these, and the unknown for their product."""
        self._learnt: dict[tuple[int, int], Any] = {}
        """What an answer has broken, by the numbers of the two points."""
        self._points: dict[int, _Point] = {}
        """Of the divisions whose facts are asserted, by number, in order."""
        self._names = 0
        self.found: Any = None
        """The numbers of the last answer that was `sat`."""
        self._mind: Any = None

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is added inside is forgotten afterwards."""
        known = len(self._points)
        self._solver.push()
        try:
            yield
        finally:
            self._solver.pop()
            while len(self._points) > known:
                self._points.popitem()

    def add(self, *terms: z3.BoolRef) -> None:
        """Assert the terms."""
        for term in terms:
            self._solver.add(self._linear(term))

    def named(self, term: z3.BoolRef) -> z3.BoolRef:
        """The term by a name."""
        self._names += 1
        name = z3.Bool(f"name~{self._names}")
        self.add(name == term)
        return name

    def check(self, term: z3.BoolRef, limit: int) -> z3.CheckSatResult:
        """Whether the term is satisfiable too, within a resource limit."""
        outer = len(self._points)
        broken: list[tuple[Any, int]] = []
        with self.scope():
            self.add(term)
            self._solver.set("rlimit", limit)
            while (answer := self._solver.check()) == z3.sat:
                self.found = self._solver.model()
                new = list(self._broken(self.found))
                if not new:
                    break
                self._solver.add(*(fact for fact, _ in new))
                broken += new
        self._solver.add(*(fact for fact, place in broken if place < outer))
        return answer

    # Numbers in mind.

    def think(self, numbers: z3.ModelRef | None) -> bool:
        """Have these numbers in mind from here on; whether there are any."""
        self._mind = None if numbers is None else copy(numbers)
        return numbers is not None

    def think_of(self, unknown: Any, value: Any) -> None:
        """The unknown is what the term is with the numbers in mind."""
        if self._mind is not None:
            value = self._mind.eval(self._linear(value), model_completion=True)
            self._mind.update_value(unknown, value)

    def fits(self, term: z3.BoolRef, numbers: Any = None) -> bool:
        """Whether the term is true with the numbers, or those in mind; true if there are none."""
        numbers = self._mind if numbers is None else numbers
        return numbers is None or z3.is_true(numbers.eval(self._linear(term), model_completion=True))

    def _broken(self, model: z3.ModelRef) -> Iterator[tuple[Any, int]]:
        """Facts about two points that the model breaks, and the place of the later point."""

        found: list[tuple[int, int, _Point]] = [(0, 0, _ORIGIN)]
        for place, point in enumerate(self._points.values()):
            blocks, tokens, size = (_value(model, of) for of in (point.blocks, point.tokens, point.size))
            for other_blocks, other_tokens, other in found:
                if other is _ORIGIN or other.size.eq(point.size):
                    more, held = blocks - other_blocks, tokens - other_tokens
                    for k in NEAR:
                        if (more >= k and held < k * size) or (more <= k and held > k * size):
                            yield self._between(point, other), place
                            break
            found.append((blocks, tokens, point))

    def _linear(self, term: Any) -> Any:
        """The term without divisions; what is known of those in it is asserted."""
        linear, divisions = self._without(term)
        for division in divisions:
            if division.point.number not in self._points:
                self._learn(division)
        return linear

    def _without(self, term: Any) -> tuple[Any, tuple[_Division, ...]]:
        """The term without divisions, and those in it, inner ones first."""
        number = term.get_id()
        if number not in self._read:
            outermost = list(_divisions(term))
            inner: dict[int, _Division] = {}
            for one in outermost:
                for division in (*self._without(one.arg(0))[1], self._division(one)):
                    inner[division.point.number] = division
            pairs = [(one, self._division(one).unknown) for one in outermost]
            linear = z3.substitute(term, *pairs) if pairs else term
            self._read[number] = term, linear, tuple(inner.values())
        return self._read[number][1:]

    def _division(self, term: Any) -> _Division:
        number = term.get_id()
        if number not in self._division_of:
            self._division_of[number] = self._made(term)
        return self._division_of[number]

    def _made(self, term: Any) -> _Division:
        function, size, number = term.decl(), term.arg(1), len(self._division_of) + 1
        of = self._without(term.arg(0))[0]
        if function.eq(arithmetic.times):
            tokens, factors = self._times(of, size)
            return _Division(function, of, tokens, _Point(number, of, tokens, size), (), factors)
        blocks = z3.Int(f"{function.name()}@{number}")
        tokens, factors = self._times(blocks, size)
        if function.eq(arithmetic.floor):
            facts = tokens <= of, of < tokens + size
        else:
            facts = tokens - size < of, of <= tokens
        return _Division(function, of, blocks, _Point(number, blocks, tokens, size), facts, factors)

    def _learn(self, division: _Division) -> None:
        """What is known of it is asserted, with what was learnt of it and of others that are known."""
        point = division.point
        known = (self._learnt.get(_pair(point.number, other)) for other in (0, *self._points))
        self._solver.add(*division.facts, *(fact for fact in known if fact is not None))
        self._points[point.number] = point
        if self._mind is not None:
            self._think_of_division(division)

    def _think_of_division(self, division: _Division) -> None:
        size = _value(self._mind, division.point.size)
        if not division.function.eq(arithmetic.times):
            tokens, size = _value(self._mind, division.of), max(size, 1)
            blocks = tokens // size if division.function.eq(arithmetic.floor) else -(-tokens // size)
            self._mind.update_value(division.unknown, z3.IntVal(blocks))
        for factor in division.factors:
            product = self._product(factor, division.point.size)
            self._mind.update_value(product, z3.IntVal(_value(self._mind, factor) * size))

    def _times(self, blocks: Any, size: Any) -> tuple[Any, tuple[Any, ...]]:
        """blocks * size, linear in the unknowns that the number is a sum of; and these unknowns."""
        parts = list(_parts(blocks))
        tokens = z3.Sum([factor * self._product(unknown, size) for factor, unknown in parts])
        if z3.is_int_value(size):
            return tokens, ()
        return tokens, tuple(unknown for _, unknown in parts if unknown is not None)

    def _product(self, unknown: Any, size: Any) -> Any:
        if unknown is None:
            return size
        if z3.is_int_value(size):
            return unknown * size
        key = unknown.get_id(), size.get_id()
        if key not in self._products:
            product = z3.Int(f"times@{len(self._products)}")
            self._products[key] = unknown, size, product  # the terms are kept, so that their ids stay theirs
        return self._products[key][2]

    def _between(self, point: _Point, other: _Point) -> Any:
        key = _pair(point.number, other.number)
        if key not in self._learnt:
            more, held = point.blocks - other.blocks, point.tokens - other.tokens
            self._learnt[key] = z3.And(_compared(z3.simplify(more), z3.simplify(held), point.size))
        return self._learnt[key]


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)


def _value(numbers: z3.ModelRef, term: Any) -> int:
    return int(numbers.eval(term, model_completion=True).as_long())


def _divisions(term: Any) -> Iterator[Any]:
    """The outermost quotients and products in the term, each once."""
    seen, stack = set[int](), [term]
    while stack:
        one = stack.pop()
        if one.get_id() in seen:
            continue
        seen.add(one.get_id())
        if _is_arithmetic(one):
            yield one
        elif z3.is_app(one):
            stack += reversed(one.children())


def _is_arithmetic(term: Any) -> bool:
    return z3.is_app(term) and term.num_args() == 2 and term.decl().name() in _FUNCTIONS


def _parts(number: Any) -> Iterator[tuple[int, Any]]:
    """(factor, unknown) of a sum; None stands for 1."""
    term = z3.simplify(number, som=True)
    for part in term.children() if z3.is_add(term) else [term]:
        if z3.is_int_value(part):
            yield part.as_long(), None
        elif z3.is_mul(part) and z3.is_int_value(part.arg(0)) and part.num_args() == 2:
            yield part.arg(0).as_long(), part.arg(1)
        else:
            yield 1, part


def _compared(blocks: Any, tokens: Any, size: Any) -> list[z3.BoolRef]:
    facts = []
    for k in NEAR:
        facts += [z3.Implies(blocks >= k, tokens >= k * size), z3.Implies(blocks <= k, tokens <= k * size)]
    return facts
