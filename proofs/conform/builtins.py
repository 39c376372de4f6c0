"""Built-in functions that answer with terms, put where the code under test looks names up first.

Python looks a name up in a module's globals before its built-ins, so that not a line of the code changes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

import z3

from slotproof.proofs.conform.elements import Run, pieces
from slotproof.proofs.conform.ends import Branches, Unsupported
from slotproof.proofs.conform.loops import Loop
from slotproof.proofs.conform.numbers import Number, Truth, is_symbolic, number
from slotproof.proofs.conform.sequences import Items, Range, Total

_MISSING: Any = object()


def _len(value: Any) -> Any:
    if type(value) is builtins.list and any(isinstance(piece, Run) for piece in pieces(value)):
        value = Items.of(value)
    if not isinstance(value, Items):
        return len(value)
    known = z3.simplify(value.length)
    return int(known.as_long()) if z3.is_int_value(known) else Number(known)


def _extreme(original: Any, values: tuple[Any, ...], options: dict[str, Any], first_wins: Any) -> Any:
    if len(values) == 1:
        values = tuple(values[0])
    if options or not any(map(is_symbolic, values)):
        return original(values, **options)
    found = number(values[0])
    for value in map(number, values[1:]):
        found = z3.If(first_wins(found, value), found, value)
    return Number(found)


def _min(*values: Any, **options: Any) -> Any:
    return _extreme(min, values, options, lambda a, b: a <= b)


def _max(*values: Any, **options: Any) -> Any:
    return _extreme(max, values, options, lambda a, b: a >= b)


def _sum(values: Iterable[Any], start: Any = 0) -> Any:
    total = Total(start)
    for value in values:
        total.add(value)
    return total.value()


def _any(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110 (the loop is what is followed)
        if value:
            return True
    return False


def _all(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110
        if not value:
            return False
    return True


def _next(values: Iterator[Any], default: Any = _MISSING) -> Any:
    for value in values:
        return value
    if default is _MISSING:
        raise StopIteration
    return default


def _range(*bounds: Any) -> Any:
    if not any(map(is_symbolic, bounds)):
        return range(*bounds)
    return Range(*(bounds if len(bounds) > 1 else (0, *bounds)))


def _map(function: Any, *values: Any) -> Any:
    if not any(isinstance(value, Items | Range | Loop) for value in values):
        return map(function, *values)
    if len(values) == 1:
        return _Mapped(function, values[0])
    return (function(*together) for together in _zip(*values))


class _Mapped:
    """`map` over a list of ours, not gone through yet."""

    def __init__(self, function: Any, values: Any) -> None:
        self.function, self.values = function, values

    def __iter__(self) -> Iterator[Any]:
        return (self.function(value) for value in self.values)


def _zip(*values: Any, strict: bool = False) -> Any:
    lists = [value for value in values if isinstance(value, Items)]
    if not lists:
        return zip(*values, strict=strict)
    together = [Items.of(value) for value in values]
    shortest = _min(*(Number(one.length) for one in together))
    return Loop(
        z3.IntVal(0),
        number(shortest),
        lambda i: tuple(one.element(one.at(i)) for one in together),
        over=None,
    )


def _enumerate(values: Any, start: int = 0) -> Any:
    if not isinstance(values, Items):
        return enumerate(values, start)
    return Loop(
        z3.IntVal(0), values.length, lambda i: (Number(i + start), values.element(values.at(i))), over=values
    )


def _isinstance(value: Any, kinds: Any) -> bool:
    """Numbers are integers, and lists of ours lists, to whoever asks."""
    known = kinds if isinstance(kinds, tuple) else (kinds,)
    known = tuple(list if kind is _List else kind for kind in known)
    stands_for = {Number: int, Truth: bool, Items: list}.get(type(value))
    return isinstance(value, known) if stands_for is None else issubclass(stands_for, known)


class _List:
    """`list`, of any length. It is no type: `isinstance` is replaced as well."""

    def __new__(cls, values: Iterable[Any] = ()) -> Any:
        if isinstance(values, Items):
            return values.copy()
        if isinstance(values, _Mapped) and isinstance(values.values, Items):
            with suppress(Branches):
                return values.values.mapped(values.function)
        made = Items.empty()
        kept = []
        for value in values:
            kept.append(value)
            if is_symbolic(value) or hasattr(value, "term"):
                made.append(value)
        return made if made.kind is not None else kept


def _print(*_: Any, **__: Any) -> None:
    raise Unsupported("it leads out of the program: print")


REPLACED = {
    "print": _print,
    "len": _len,
    "min": _min,
    "max": _max,
    "sum": _sum,
    "any": _any,
    "all": _all,
    "next": _next,
    "range": _range,
    "map": _map,
    "zip": _zip,
    "enumerate": _enumerate,
    "isinstance": _isinstance,
    "list": _List,
}
"""Built-in functions by name."""


@contextmanager
def installed(modules: Iterable[ModuleType]) -> Iterator[None]:
    """The modules' code uses ours while the context lasts."""
    modules = builtins.list(modules)
    own = [{name: vars(module)[name] for name in REPLACED if name in vars(module)} for module in modules]
    for module in modules:
        vars(module).update(REPLACED)
    try:
        yield
    finally:
        for module, before in zip(modules, own, strict=True):
            for name in REPLACED:
                del vars(module)[name]
            vars(module).update(before)
