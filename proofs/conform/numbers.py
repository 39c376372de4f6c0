"""Integers and truth values that are Z3 terms: what the code under test computes with."""

from __future__ import annotations

from typing import Any

import z3

from slotproof.proofs.conform.ends import Unsupported
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import as_term

BLOCK_SIZE = z3.Int("block_size")
"""Tokens in a block of the one group, as the proofs name it."""


def is_symbolic(value: object) -> bool:
    """Whether the value is one of ours."""
    return isinstance(value, Number | Truth)


def number(value: Any) -> z3.ArithRef:
    """An integer of the code as a term.

    Raises:
        Unsupported: it is none.
    """
    if isinstance(value, Number):
        return value.term
    if isinstance(value, Truth):
        return z3.If(value.term, z3.IntVal(1), z3.IntVal(0))
    if isinstance(value, int):
        return z3.IntVal(int(value))
    raise Unsupported(f"an integer is computed with a {type(value).__name__}")


class Truth:
    """A truth value; the run forks where the code asks for it."""

    __slots__ = ("term",)

    def __init__(self, term: Any) -> None:
        self.term = as_term(term)

    def __bool__(self) -> bool:
        return Path.current().decide(self.term)

    def __and__(self, other: Any) -> Truth:
        return Truth(z3.And(self.term, _truth(other)))

    def __or__(self, other: Any) -> Truth:
        return Truth(z3.Or(self.term, _truth(other)))

    __rand__, __ror__ = __and__, __or__

    def __eq__(self, other: object) -> Any:
        if isinstance(other, bool | Truth):
            return Truth(self.term == _truth(other))
        return Number(number(self)) == other

    def __add__(self, other: Any) -> Number:
        return Number(number(self) + number(other))

    __radd__ = __add__
    __hash__ = None  # type: ignore[assignment]

    def like(self, term: z3.ExprRef) -> Truth:
        """Another one (as an element of a list, by the number 0 or 1)."""
        return Truth(term != 0)


def _truth(value: Any) -> z3.BoolRef:
    return value.term if isinstance(value, Truth) else z3.BoolVal(bool(value))


class Number:
    """An integer. Comparisons answer `Truth`; division is by a known number or by the block size."""

    __slots__ = ("negated", "term")

    def __init__(self, term: Any, negated: z3.ArithRef | None = None) -> None:
        self.term: z3.ArithRef = z3.IntVal(term) if isinstance(term, int) else term
        self.negated = negated
        """What this is minus of, if it was made so: `-(-a // b)` rounds up."""

    def like(self, term: z3.ExprRef) -> Number:
        """Another one."""
        return Number(term)

    def __repr__(self) -> str:
        return "<any>"  # messages of errors on impossible paths are made too: a term takes seconds to print

    def __add__(self, other: Any) -> Any:
        return Number(self.term + number(other)) if _is_integer(other) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return Number(self.term - number(other)) if _is_integer(other) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return Number(number(other) - self.term) if _is_integer(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return Number(product(self.term, number(other))) if _is_integer(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, list | tuple):
            from slotproof.proofs.conform.sequences import repeated

            return repeated(list(other), self)
        return self * other

    __radd__ = __add__

    def __neg__(self) -> Number:
        return Number(z3.simplify(-self.term), self.term)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Number:
        return Number(z3.If(self.term >= 0, self.term, -self.term))

    def __floordiv__(self, other: Any) -> Any:
        return Number(quotient(self, number(other))) if _is_integer(other) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return Number(quotient(Number(number(other)), self.term)) if _is_integer(other) else NotImplemented

    def __mod__(self, other: Any) -> Any:
        if not _is_integer(other):
            return NotImplemented
        divisor = number(other)
        return Number(self.term - product(quotient(self, divisor), divisor))

    def __rmod__(self, other: Any) -> Any:
        return Number(number(other)) % self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __lt__(self, other: Any) -> Any:
        return Truth(self.term < number(other)) if _is_integer(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return Truth(self.term <= number(other)) if _is_integer(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return Truth(self.term > number(other)) if _is_integer(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return Truth(self.term >= number(other)) if _is_integer(other) else NotImplemented

    def __eq__(self, other: object) -> Any:
        return Truth(self.term == number(other)) if _is_integer(other) else False

    def __ne__(self, other: object) -> Any:
        return Truth(self.term != number(other)) if _is_integer(other) else True

    def __bool__(self) -> bool:
        return Path.current().decide(self.term != 0)

    def __index__(self) -> int:
        value = z3.simplify(self.term)
        if z3.is_int_value(value):
            return int(value.as_long())
        raise Unsupported(
            "an integer that is any is needed as one (C code, or a built-in that is not replaced)"
        )

    def __hash__(self) -> int:
        return self.__index__().__hash__()

    def __float__(self) -> float:
        raise Unsupported("a float is made of an integer")

    __int__ = __index__

    def __truediv__(self, other: Any) -> Any:
        raise Unsupported("a division makes a float of an integer")

    __rtruediv__ = __truediv__


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        raise Unsupported("an integer is computed with a float")
    return isinstance(value, int | Number | Truth)


def product(a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    """a * b, in the proofs' arithmetic."""
    a, b = z3.simplify(a), z3.simplify(b)
    if z3.is_int_value(a) or z3.is_int_value(b):
        return a * b
    for one, other in ((a, b), (b, a)):
        if other.eq(BLOCK_SIZE):
            return arithmetic.times(Path.current().named(one), BLOCK_SIZE)
    return a * b


def quotient(a: Number, divisor: z3.ArithRef) -> z3.ArithRef:
    """a // divisor, in the proofs' arithmetic."""
    path, divisor = Path.current(), z3.simplify(divisor)
    if z3.is_int_value(divisor) and divisor.as_long() > 0:
        return a.term / divisor
    if divisor.eq(BLOCK_SIZE):
        if a.term.eq(divisor):
            return z3.IntVal(1)
        if a.term.eq(z3.IntVal(0)):
            return a.term
        if a.negated is not None:
            return -_whole(path, arithmetic.ceil, a.negated)
        return _whole(path, arithmetic.floor, a.term)
    if z3.simplify(-divisor).eq(BLOCK_SIZE):  # `-(a // -b)` rounds up too
        return -_whole(path, arithmetic.ceil, a.term)
    if path.decide(divisor == 0):
        raise ZeroDivisionError("integer division or modulo by zero")
    raise Unsupported("a division by an unknown that is not the block size")


def _whole(path: Path, divide: z3.FuncDeclRef, a: z3.ArithRef) -> z3.ArithRef:
    """A quotient, and what the next block above and below it holds."""
    value = divide(path.named(a), BLOCK_SIZE)
    path.assume(*(arithmetic.next_block(n, BLOCK_SIZE).body() for n in (value, value - 1)))
    return value
