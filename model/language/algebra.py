"""The algebra that every rule is written in: integers and truth values, or Z3 terms.

Each operator takes Python values or Z3 terms and answers in kind, so that one text of a rule can be
run, proved, and searched. Comparison and `+ - *` are Python's own operators on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

Int: TypeAlias = Any
"""A Python int or a Z3 integer term."""
Bool: TypeAlias = Any
"""A Python bool or a Z3 Boolean term."""
Function: TypeAlias = Callable[..., Any]
"""A state field: integers in, an integer or truth value out."""


_number: ContextVar[Callable[[int], Any] | None] = ContextVar("number", default=None)


@contextmanager
def numbers(make: Callable[[int], Any]) -> Iterator[None]:
    """Inside, a choice between two Python ints is of the sort that `make` gives, not of Z3's integers."""
    token = _number.set(make)
    try:
        yield
    finally:
        _number.reset(token)


def ite(condition: Bool, then: Any, otherwise: Any) -> Any:
    """`then` if the condition holds, else `otherwise`."""
    if condition is True or then is otherwise:
        return then
    if condition is False:
        return otherwise
    import z3

    make = _number.get()
    if make is not None and type(then) is int and type(otherwise) is int:
        then = make(then)
    return z3.If(condition, then, otherwise)


def both(*conditions: Bool) -> Bool:
    """All of the conditions."""
    symbolic = []
    for condition in conditions:
        if condition is False:
            return False
        if condition is not True:
            symbolic.append(condition)
    if not symbolic:
        return True
    if len(symbolic) == 1:
        return symbolic[0]
    import z3

    return z3.And(symbolic)


def either(*conditions: Bool) -> Bool:
    """At least one of the conditions."""
    symbolic = []
    for condition in conditions:
        if condition is True:
            return True
        if condition is not False:
            symbolic.append(condition)
    if not symbolic:
        return False
    if len(symbolic) == 1:
        return symbolic[0]
    import z3

    return z3.Or(symbolic)


def negate(condition: Bool) -> Bool:
    """The condition does not hold."""
    if condition is True or condition is False:
        return not condition
    import z3

    return z3.Not(condition)


def implies(condition: Bool, consequence: Bool) -> Bool:
    """If the condition holds, so does the consequence."""
    return either(negate(condition), consequence)


def iff(left: Bool, right: Bool) -> Bool:
    """Both conditions hold or neither does."""
    return left == right


def minimum(left: Int, right: Int) -> Int:
    """The smaller of two."""
    return ite(left <= right, left, right)


def maximum(left: Int, right: Int) -> Int:
    """The larger of two."""
    return ite(left >= right, left, right)


def within(low: Int, value: Int, high: Int) -> Bool:
    """`low <= value < high`."""
    return both(low <= value, value < high)
