"""Z3 without quantifiers: division by the block size as linear arithmetic, at the places that matter.

A product with a size is linear in its other factor: `(2 * x + 1) * size` is `2 * (x * size) + size`, with an
unknown for `x * size`. A quotient is an unknown too, between the products around it. What is left of the
multiplication is said of differences of these unknowns, two at a time: from the k-th block on, they hold at
least k sizes. It is said where an answer of the solver breaks it, and nowhere else: most are never needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import z3

from slotproof.proofs.prove import arithmetic

NEAR = (0, 1, -1, 2, -2)
"""The numbers k for which a difference of k blocks is compared with k sizes."""
_ZERO = (0, 0, 0)


@dataclass(frozen=True)
class _Point:
    """A number of blocks, and the tokens that they hold."""

    blocks: z3.ArithRef
    tokens: z3.ArithRef
    size: z3.ArithRef


class Solver:
    """A Z3 solver with scopes, for formulas with the proofs' arithmetic."""

    def __init__(self) -> None:
        self._solver = z3.SimpleSolver()
        self._solver.set("auto_config", False)
        self._solver.set("timeout", 20_000)
        self._replaced: dict[int, tuple[Any, Any]] = {}
        """By the id of a term with divisions: the term, and what stands for it."""
        self._inside: dict[int, tuple[Any, tuple[Any, ...]]] = {}
        """By the id of a term: the term, and the outermost divisions and products in it."""
        self._known: dict[int, Any] = {}
        """The terms whose properties are asserted, by id, in order."""
        self._compared: dict[tuple[int, ...], tuple[_Point, _Point, Any]] = {}
        self._products: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """By the ids of an unknown and a size: these, and the unknown for their product."""
        self._points: list[_Point] = []
        self.names = 0
        """Names that were made up for it."""
        self._marks: list[tuple[int, int]] = []

    def push(self) -> None:
        """Open a scope."""
        self._marks.append((len(self._known), len(self._points)))
        self._solver.push()

    def pop(self, scopes: int = 1) -> None:
        """Forget what was added in the last scopes."""
        if not scopes:
            return
        self._solver.pop(scopes)
        known, points = self._marks[-scopes]
        del self._marks[-scopes:]
        while len(self._known) > known:
            self._known.popitem()
        del self._points[points:]

    def num_scopes(self) -> int:
        """Scopes that are open."""
        return len(self._marks)

    def add(self, *terms: z3.BoolRef) -> None:
        """Assert the terms."""
        for term in terms:
            self._solver.add(self._linear(term))

    def check(self, term: z3.BoolRef, limit: int) -> z3.CheckSatResult:
        """Whether the term is satisfiable too, within a resource limit."""
        outer = len(self._points)
        learnt: list[Any] = []
        self.push()
        try:
            self.add(term)
            self._solver.set("rlimit", limit)
            while (answer := self._solver.check()) == z3.sat:
                broken = list(self._broken(self._solver.model()))
                if not broken:
                    break
                self._solver.add(*(fact for fact, _ in broken))
                learnt += (fact for fact, place in broken if place < outer)
            return answer
        finally:
            self.pop()
            self._solver.add(*learnt)

    def _broken(self, model: z3.ModelRef) -> Iterator[tuple[Any, int]]:
        """Facts about two points that the model breaks, and the place of the later point."""

        def value(term: Any) -> int:
            return int(model.eval(term, model_completion=True).as_long())

        found: list[tuple[tuple[int, int, int], _Point]] = []
        for place, point in enumerate(self._points):
            mine = value(point.blocks), value(point.tokens), value(point.size)
            pairs: list[tuple[tuple[int, int, int], _Point | None]] = [(_ZERO, None), *found]
            for (blocks, tokens, _), other in pairs:
                if other is None or other.size.eq(point.size):
                    more, held = mine[0] - blocks, mine[1] - tokens
                    for k in NEAR:
                        if (more >= k and held < k * mine[2]) or (more <= k and held > k * mine[2]):
                            yield self._between(point, other), place
                            break
            found.append((mine, point))

    def _linear(self, term: Any) -> Any:
        """The term without divisions; what is known of the unknowns in their place is asserted."""
        inside = self._divisions(term)
        if not inside:
            return term
        pairs = [(one, self._replacement(one)) for one in inside]
        return z3.substitute(term, *pairs)

    def _divisions(self, term: Any) -> tuple[Any, ...]:
        number = term.get_id()
        if number not in self._inside:
            found: dict[int, Any] = {}
            if _is_arithmetic(term):
                found[number] = term
            elif z3.is_app(term):
                for child in term.children():
                    found |= {one.get_id(): one for one in self._divisions(child)}
            self._inside[number] = term, tuple(found.values())
        return self._inside[number][1]

    def _replacement(self, term: Any) -> Any:
        number = term.get_id()
        size = term.arg(1)
        of = self._linear(term.arg(0))  # for what is known of it, in any case
        if number not in self._replaced:
            if term.decl().eq(arithmetic.times):
                self._replaced[number] = term, self._times(of, size)
            else:
                self._replaced[number] = term, z3.Int(f"{term.decl().name()}@{number}")
        made = self._replaced[number][1]
        if number not in self._known:
            self._known[number] = term
            if term.decl().eq(arithmetic.times):
                self._points.append(_Point(of, made, size))
            else:
                tokens = self._times(made, size)
                if term.decl().eq(arithmetic.floor):
                    self._solver.add(tokens <= of, of < tokens + size)
                else:
                    self._solver.add(tokens - size < of, of <= tokens)
                self._points.append(_Point(made, tokens, size))
        return made

    def _times(self, blocks: Any, size: Any) -> Any:
        """blocks * size, linear in the unknowns that the number is a sum of."""
        return z3.Sum([factor * self._product(unknown, size) for factor, unknown in _parts(blocks)])

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

    def _between(self, point: _Point, other: _Point | None) -> Any:
        other = other or _Point(z3.IntVal(0), z3.IntVal(0), point.size)
        key = point.blocks.get_id(), point.tokens.get_id(), other.blocks.get_id(), other.tokens.get_id()
        if key not in self._compared:
            more, held = point.blocks - other.blocks, point.tokens - other.tokens
            fact = z3.And(_compared(z3.simplify(more), z3.simplify(held), point.size))
            self._compared[key] = point, other, fact
        return self._compared[key][2]


def _is_arithmetic(term: Any) -> bool:
    if not z3.is_app(term) or term.num_args() != 2:
        return False
    decl = term.decl()
    return any(decl.eq(function) for function in (arithmetic.floor, arithmetic.ceil, arithmetic.times))


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
