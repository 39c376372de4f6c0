"""Expressions about a state: `free == 0 and waiting(r1) and usage > 0.8`.

A small language, parsed here and never handed to Python. An expression reads the state in the model's
algebra, so it can be evaluated on a running state and searched for by Z3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import z3

from slotproof.model.language.algebra import Bool, Int, both, either, ite, negate
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, WAITING, State
from slotproof.model.scheduling.worker import is_written
from slotproof.proofs.output.errors import UserError

MAX_WORDS = 500
"""Names, numbers and signs of an expression, at most."""
MAX_DEPTH = 40
"""Brackets, signs and `not`s within one another, at most: each is some calls deep in Python."""
MAX_DIGITS = 18
"""Digits of a number, at most."""
SHOWN = 80
"""Characters of an expression that a message shows."""


class ExpressionError(UserError):
    """The expression is none; the message points at the character."""

    def __init__(self, text: str, position: int, what: str) -> None:
        start = max(0, position - SHOWN // 2)
        part = text if len(text) <= SHOWN else f"…{text[start : start + SHOWN]}…"
        super().__init__(f"{part!r}, character {position + 1}: {what}")
        self.position = position


@dataclass(frozen=True)
class Number:
    """A rational: `top / bottom`, with a positive bottom."""

    top: Int
    bottom: int = 1


Truth = Callable[[State], Bool]
Quantity = Callable[[State], Number]


def _count(s: State, predicate: Callable[[int], Bool]) -> Int:
    return sum(ite(predicate(b), 1, 0) for b in range(1, s.engine.num_blocks))


NUMBERS: dict[str, tuple[str, Quantity]] = {
    "free": ("free blocks", lambda s: Number(s.num_free)),
    "held": ("blocks held by requests", lambda s: Number(s.num_held)),
    "usage": ("the share of blocks held, 0 to 1", lambda s: Number(s.num_held, s.engine.num_blocks - 1)),
    "cached": ("blocks with a hash", lambda s: Number(_count(s, s.is_hashed))),
    "idle_cached": (
        "free blocks with a hash",
        lambda s: Number(_count(s, lambda b: both(s.is_hashed(b), s.is_free(b)))),
    ),
    "unwritten": (
        "blocks with a hash that do not hold all of its KV",
        lambda s: Number(_count(s, lambda b: both(s.is_hashed(b), negate(is_written(s, b))))),
    ),
    "shared": ("blocks held by several requests", lambda s: Number(_count(s, lambda b: s.ref_cnt(b) > 1))),
}
"""Names of numbers, with what they mean."""

OF_REQUEST: dict[str, tuple[str, Callable[[State, int], Any]]] = {
    "waiting": ("the request waits to be admitted", lambda s, r: s.status(r) == WAITING),
    "loading": ("it waits for an external load", lambda s, r: s.status(r) == LOADING),
    "running": ("it runs", lambda s, r: s.status(r) == RUNNING),
    "preempted": ("it was preempted, and waits", lambda s, r: s.status(r) == PREEMPTED),
    "tokens": ("its final tokens", lambda s, r: Number(s.num_tokens(r))),
    "computed": ("its computed tokens", lambda s, r: Number(s.computed(r))),
    "in_flight": ("its tokens in flight", lambda s, r: Number(s.in_flight(r))),
    "drafts": (
        "its computed tokens that are not final",
        lambda s, r: Number(ite(s.computed(r) > s.num_tokens(r), s.computed(r) - s.num_tokens(r), 0)),
    ),
}
"""What can be asked of a request r0, r1, …, numbered as in stories and traces, with what it means."""

OF_GROUP: dict[str, tuple[str, Callable[[State, int], Int]]] = {
    "blocks": ("blocks that it holds", lambda s, row: s.length(row) - s.first(row)),
    "published": ("table entries hashed or hit", lambda s, row: s.num_cached(row)),
}
"""What can be asked of a request's row in a group g0, g1, …, and of a request in all its groups."""

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|([A-Za-z_]\w*)|(==|!=|<=|>=|[-<>+*(),]))")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class _Part:
    """A parsed part: where it begins, and what it is."""

    position: int
    truth: Truth | None = None
    number: Quantity | None = None


def names_group(text: str) -> bool:
    """Whether the expression asks of a group."""
    return re.search(r"\bg\d", text) is not None


def parse(text: str, requests: int, groups: int = 1) -> Truth:
    """What the expression says of a state.

    Raises:
        ExpressionError: it is none, or names a request or a group past their numbers.
    """
    parser = _Parser(text, requests, groups)
    part = parser.either()
    parser.end()
    return parser.truth(part)


class _Parser:
    def __init__(self, text: str, requests: int, groups: int) -> None:
        self.text = text
        self.requests = requests
        self.groups = groups
        self.tokens: list[tuple[int, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                raise ExpressionError(text, start, f"{text[start]!r} has no meaning here")
            self.tokens.append((match.start(match.lastindex or 0), match.group(match.lastindex or 0)))
            position = match.end()
            if len(self.tokens) > MAX_WORDS:
                at = self.tokens[-1][0]
                raise ExpressionError(
                    text, at, f"too long: {MAX_WORDS} names, numbers and signs are the most"
                )
        self.next = 0
        self.depth = 0

    def error(self, position: int, what: str) -> ExpressionError:
        return ExpressionError(self.text, position, what)

    @contextmanager
    def within(self, position: int) -> Iterator[None]:
        """One bracket, sign or `not` further in."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(position, f"nested too deep: {MAX_DEPTH} within one another are the most")
        yield
        self.depth -= 1

    @property
    def here(self) -> int:
        return self.tokens[self.next][0] if self.next < len(self.tokens) else len(self.text)

    def peek(self) -> str:
        return self.tokens[self.next][1] if self.next < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        """The next token if it is one of these, else nothing."""
        if self.peek() and self.peek() in wanted:
            self.next += 1
            return self.tokens[self.next - 1][1]
        return ""

    def end(self) -> None:
        if self.peek():
            raise self.error(self.here, f"{self.peek()!r} is not expected: put `and` or `or` before it")

    def truth(self, part: _Part) -> Truth:
        if part.truth is None:
            raise self.error(part.position, "a number stands where a condition is needed: compare it")
        return part.truth

    def number(self, part: _Part) -> Quantity:
        if part.number is None:
            raise self.error(part.position, "a condition stands where a number is needed")
        return part.number

    def either(self) -> _Part:
        left = self.all()
        while self.take("or"):
            a, b = self.truth(left), self.truth(self.all())
            left = _Part(left.position, truth=_joined(either, a, b))
        return left

    def all(self) -> _Part:
        left = self.negation()
        while self.take("and"):
            a, b = self.truth(left), self.truth(self.negation())
            left = _Part(left.position, truth=_joined(both, a, b))
        return left

    def negation(self) -> _Part:
        position = self.here
        if self.take("not"):
            with self.within(position):
                a = self.truth(self.negation())
            return _Part(position, truth=lambda s: negate(a(s)))
        return self.comparison()

    def comparison(self) -> _Part:
        left = self.sum()
        operator = self.take(*_COMPARE)
        if not operator:
            return left
        a, b, compare = self.number(left), self.number(self.sum()), _COMPARE[operator]

        def compared(s: State) -> Bool:
            x, y = a(s), b(s)
            left, right = _times(x.top, y.bottom), _times(y.top, x.bottom)
            return compare(*_widened(max(_bits(left), _bits(right)), left, right))

        return _Part(left.position, truth=compared)

    def sum(self) -> _Part:
        left = self.product()
        while sign := self.take("+", "-"):
            a, b = self.number(left), self.number(self.product())
            left = _Part(left.position, number=_added(a, b, 1 if sign == "+" else -1))
        return left

    def product(self) -> _Part:
        left = self.factor()
        while self.take("*"):
            a, b = self.number(left), self.number(self.factor())
            left = _Part(left.position, number=_multiplied(a, b))
        return left

    def factor(self) -> _Part:
        position, token = self.here, self.peek()
        if self.take("("):
            with self.within(position):
                inner = self.either()
            if not self.take(")"):
                raise self.error(self.here, "`)` is missing")
            return _Part(position, inner.truth, inner.number)
        if self.take("-"):
            with self.within(position):
                a = self.number(self.factor())
            return _Part(position, number=_added(lambda s: Number(0), a, -1))
        if token[:1].isdigit():
            self.next += 1
            if len(token) > MAX_DIGITS:
                raise self.error(position, f"too long a number: {MAX_DIGITS} digits are the most")
            value = Fraction(token)
            return _Part(position, number=lambda s: Number(value.numerator, value.denominator))
        if token in NUMBERS:
            self.next += 1
            return _Part(position, number=NUMBERS[token][1])
        if token in OF_REQUEST or token in OF_GROUP:
            self.next += 1
            return self.of_request(position, token)
        what = f"{token!r} is not a name" if token else "something is missing"
        raise self.error(position, f"{what}: `slotproof explore --reach --list` shows the names")

    def of_request(self, position: int, name: str) -> _Part:
        if not self.take("("):
            raise self.error(self.here, f"`{name}` is said of a request: write {name}(r0)")
        r = self.numbered("r", "request", self.requests)
        groups = range(self.groups)
        if name in OF_GROUP and self.take(","):
            g = self.numbered("g", "group", self.groups)
            groups = range(g, g + 1)
        if not self.take(")"):
            raise self.error(self.here, "`)` is missing")
        if name in OF_GROUP:
            of_row = OF_GROUP[name][1]
            return _Part(
                position,
                number=lambda s: Number(sum(of_row(s, s.engine.row(r, g)) for g in groups)),
            )
        of = OF_REQUEST[name][1]
        if name in ("waiting", "loading", "running", "preempted"):
            return _Part(position, truth=lambda s: of(s, r))
        return _Part(position, number=lambda s: of(s, r))

    def numbered(self, letter: str, what: str, count: int) -> int:
        """The number of a request or a group, of so many."""
        at, token = self.here, self.peek()
        self.next += 1
        match = re.fullmatch(rf"{letter}(0|[1-9]\d*)", token)
        if match is None or int(match.group(1)) >= count:
            known = f"there is {letter}0" if count == 1 else f"they are {letter}0 to {letter}{count - 1}"
            raise self.error(at, f"{token or 'nothing'!r} is no {what}: {known}")
        return int(match.group(1))


def _joined(operator: Callable[..., Bool], a: Truth, b: Truth) -> Truth:
    return lambda s: operator(a(s), b(s))


def _added(a: Quantity, b: Quantity, sign: int) -> Quantity:
    def added(s: State) -> Number:
        x, y = a(s), b(s)
        left, right = _times(x.top, y.bottom), _times(y.top, sign * x.bottom)
        wide = _widened(max(_bits(left), _bits(right)) + 1, left, right)
        return Number(wide[0] + wide[1], x.bottom * y.bottom)

    return added


def _multiplied(a: Quantity, b: Quantity) -> Quantity:
    def multiplied(s: State) -> Number:
        x, y = a(s), b(s)
        return Number(_times(x.top, y.top), x.bottom * y.bottom)

    return multiplied


def _times(a: Int, b: Int) -> Int:
    a, b = _widened(_bits(a) + _bits(b), a, b)
    return a * b


def _bits(number: Int) -> int:
    """Binary digits that hold it, with its sign."""
    return number.size() if isinstance(number, z3.BitVecRef) else int(number).bit_length() + 1


def _widened(bits: int, *numbers: Int) -> list[Int]:
    """The same numbers, where they are bit-vectors so wide that what is worked out from them fits: none may
    wrap around."""
    return [z3.SignExt(bits - n.size(), n) if isinstance(n, z3.BitVecRef) else n for n in numbers]
