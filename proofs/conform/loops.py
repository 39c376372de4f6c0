"""Loops of any number of iterations: one iteration, run for an index that is any, stands for all.

A loop over a list or range of ours is followed as four runs, told apart by a decision:

- *none*: there is no iteration.
- *trial*: iteration i, as if it were the first; only to see what it changes, and when the loop goes on.
- *one*: iteration i, after all before it did what was seen: the changes up to i are put in place in closed
  form, and that iteration i goes on from there in the same way is shown. A `break` or `return` in it is one
  way out of the loop.
- *all*: every iteration has gone on; the changes are in place, and the loop is over.

So the trial is a guess, and *one* is its proof, by induction over i. What a loop may change is lists of ours,
sums, and variables that no later iteration reads; anything else is `Unsupported`.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

import z3

from slotproof.proofs.conform.elements import Run, element_kind, element_term
from slotproof.proofs.conform.ends import EndOfPath, Unsupported
from slotproof.proofs.conform.liveness import accumulates, carried
from slotproof.proofs.conform.paths import Path
from slotproof.proofs.prove.symbols import count_is_bounded

NONE, TRIAL, ONE, ALL = range(4)
_FOR_ITER = dis.opmap["FOR_ITER"]
Changes = dict[tuple[Any, str], Any]
"""(number of a list or sum, how it changes) -> the term, or index and term, as of iteration `Summary.i`.
A list of Python's own, in a variable, goes by the place of its frame and its name."""


@dataclass
class Summary:
    """What trials have seen of a loop."""

    i: z3.ArithRef
    ways: list[tuple[z3.BoolRef, Changes]] = field(default_factory=list)
    """The condition of each way in which an iteration goes on, and what it changes."""
    may_end: bool = False
    """An iteration may leave the loop."""
    facts: list[z3.BoolRef] = field(default_factory=list)
    """What an iteration learns that holds for all of them."""
    kinds: dict[Any, Any] = field(default_factory=dict)
    """What the lists that it appends to make their elements by."""

    def goes_on(self, i: Any) -> z3.BoolRef:
        """Iteration i goes on."""
        return z3.substitute(z3.Or([condition for condition, _ in self.ways]), (self.i, i))

    def learnt(self, i: Any) -> list[z3.BoolRef]:
        """What iteration i learns."""
        return [z3.substitute(fact, (self.i, i)) for fact in self.facts]

    def changes(self) -> Changes:
        """What iteration i changes, whichever way it goes on."""
        merged: Changes = {}
        for key in {key for _, changes in self.ways for key in changes}:
            if any(key not in changes for _, changes in self.ways) and key[1] != "add":
                raise Unsupported("a loop changes a list in some iterations only")
            value: Any = None
            for condition, changes in self.ways:
                one = changes.get(key, z3.IntVal(0))
                value = one if value is None else _choice(condition, one, value)
            merged[key] = value
        return merged


def _choice(condition: z3.BoolRef, then: Any, otherwise: Any) -> Any:
    if isinstance(then, tuple):
        return tuple(_choice(condition, *pair) for pair in zip(then, otherwise, strict=True))
    return then if then.eq(otherwise) else z3.If(condition, then, otherwise)


class Iteration:
    """The iteration that is under way, and what it has changed."""

    def __init__(self, over: Any, lists: int) -> None:
        self._over, self._lists = over, lists
        self.changes: Changes = {}

    def changed(self, what: Any, how: str, value: Any) -> None:
        """It changes a list or sum."""
        if what is self._over:
            raise Unsupported("a loop changes the list that it goes through")
        if what.number >= self._lists:
            return  # made in this iteration
        if how not in ("append", "set", "add") or any(number == what.number for number, _ in self.changes):
            raise Unsupported("a loop changes a list in more than one way")
        self.changes[what.number, how] = value


class Loop:
    """An iterator over `element(i)` for `low <= i < high`. `over` is the list it goes through, if any."""

    def __init__(self, low: Any, high: Any, element: Callable[[Any], Any], over: Any) -> None:
        self._low, self._high, self._element, self._over = low, high, element, over
        self._path = Path.current()
        self._state = "new"
        self._iteration: Iteration | None = None
        self._next = 0
        count = z3.simplify(high - low)
        self._known = count.as_long() if z3.is_int_value(count) else None

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        if self._known is not None:
            if self._next >= self._known:
                raise StopIteration
            self._next += 1
            return self._element(z3.simplify(self._low + (self._next - 1)))
        if self._state == "new":
            return self._start(sys._getframe(1))
        if self._state == "one":
            self._end(sys._getframe(1))
        raise StopIteration

    def __del__(self) -> None:
        iteration = getattr(self, "_iteration", None)
        if iteration is not None and self._path.iteration is iteration:  # by `break` or `return`
            self._path.iteration = None
            self._path.has_left_trial = self._path.is_trial
            self._summary.may_end = True

    def _start(self, frame: FrameType) -> Any:
        path = self._path
        _check_consumer(frame)
        if path.iteration is not None:
            raise Unsupported("a loop of any length inside another")
        summaries, key = path.exploration.summaries, tuple(path.decisions)
        some = self._low < self._high
        option = path.choose(z3.Not(some), some, some, some)
        if option == NONE:
            self._state = "over"
            raise StopIteration
        self._i = path.integer("i")
        summary: Summary = summaries.setdefault(key, Summary(self._i))
        if option == ALL:
            if not summary.ways:
                raise EndOfPath
            _apply(summary, path, _frames(frame), self._low, self._high)
            for i in (self._low, self._high - 1):
                path.assume(summary.goes_on(i), *summary.learnt(i))
            self._state = "over"
            raise StopIteration
        path.assume(self._low <= self._i, self._i < self._high)
        if option == TRIAL:
            path.is_trial = True
        elif not summary.may_end and all(how == "add" for _, how in summary.changes()):
            raise EndOfPath  # no iteration can see what another has changed
        elif not summary.ways:
            path.assume(self._i == self._low)
        else:
            if path.decide(self._low < self._i):
                for i in (self._low, self._i - 1):
                    path.assume(summary.goes_on(i), *summary.learnt(i))
                _apply(summary, path, _frames(frame), self._low, self._i)
        self._summary, self._fresh = summary, path.fresh
        self._since, self._facts = len(path.conditions), len(path.facts)
        self._own = [_own(f) for f in _frames(frame)]
        self._variables = [_variables(f) for f in _frames(frame)]  # no frame: it would keep this loop alive
        self._state = "one"
        self._iteration = path.iteration = Iteration(self._over, len(path.lists))
        return self._element(self._i)

    def _end(self, frame: FrameType) -> Any:
        """The iteration goes on to the next."""
        path, summary = self._path, self._summary
        assert self._iteration is not None
        changes = self._iteration.changes
        self._state, path.iteration = "over", None
        if path.has_left_trial:
            raise EndOfPath
        self._check_variables(frame)
        kinds = self._changed_lists(frame, changes)
        if path.is_trial:
            conditions = path.conditions[self._since :]
            summary.facts += list(path.facts)[self._facts :]
            summary.kinds |= kinds
            summary.ways.append((z3.And([*conditions, z3.BoolVal(True)]), dict(changes)))
            if path.fresh != self._fresh:
                raise Unsupported("an iteration makes up unknowns of its own")
            raise EndOfPath
        seen = summary.changes()
        if {key for key in seen if key[1] != "add"} != {key for key in changes if key[1] != "add"}:
            raise Unsupported("iterations of a loop change different lists")
        for key in {*seen, *changes}:
            now, then = (of.get(key, z3.IntVal(0)) for of in (changes, seen))
            if not path.entails(_same(now, then)):
                raise Unsupported("what a loop changes depends on what it changed before")
        if not path.entails(summary.goes_on(self._i)):
            raise Unsupported("when a loop goes on depends on what it changed before")
        raise EndOfPath

    def _changed_lists(self, frame: FrameType, changes: Changes) -> dict[Any, Any]:
        """Python's own lists have grown by one element at most; and what all lists make their elements by."""
        kinds = {number: self._path.lists[number].kind for number, _ in changes}
        for place, (f, before) in enumerate(zip(_frames(frame), self._own, strict=True)):
            for name, now in _own(f).items():
                then = before.get(name)
                if then is None or then == now:
                    continue
                more = now[len(then) :] if isinstance(then, list) and isinstance(now, list) else ()
                if len(more) != 1 or now[: len(then)] != then:
                    raise Unsupported(f"a loop changes `{name}` in a way that is not followed")
                value = f.f_locals[name][-1]
                changes[(place, name), "append"], kinds[place, name] = (
                    element_term(value),
                    element_kind(value),
                )
        return kinds

    def _check_variables(self, frame: FrameType) -> None:
        for f, before in zip(_frames(frame), self._variables, strict=True):
            after = _variables(f)
            for name in carried(f.f_code, f.f_lasti):
                if after.get(name) is not before.get(name):
                    raise Unsupported(f"a loop carries the variable `{name}` from one iteration to the next")


def _frames(frame: FrameType) -> list[FrameType]:
    """The frame of the loop, and of the loop that a generator with it is consumed by."""
    if frame.f_code.co_flags & CO_GENERATOR and frame.f_back is not None:
        return [frame, frame.f_back]
    return [frame]


def _variables(frame: FrameType) -> dict[str, Any]:
    """Local variables; no iterators, so that nothing keeps this loop alive."""
    return {
        name: value for name, value in frame.f_locals.items() if not isinstance(value, Loop | GeneratorType)
    }


def _own(frame: FrameType) -> dict[str, Any]:
    """What Python's own containers hold, in variables and one step from there: lists by their elements'
    identities, others by their size."""
    held: dict[str, Any] = {}
    for name, value in frame.f_locals.items():
        if type(value) is list:
            held[name] = list(map(id, value))
        elif isinstance(value, dict | set | deque | bytearray):
            held[name] = len(value)
        for attribute, inner in _attributes(value).items():
            if isinstance(inner, list | dict | set | deque):
                held[f"{name}.{attribute}"] = len(inner)
    return held


def _attributes(value: Any) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _check_consumer(frame: FrameType) -> None:
    """Only a loop in Python can be followed: what C code, or a comprehension, piles up is out of sight."""
    for f in _frames(frame):
        if f.f_code.co_code[f.f_lasti] != _FOR_ITER:
            raise Unsupported("C code goes through a list of any length")
        if accumulates(f.f_code):
            raise Unsupported("a comprehension goes through a list of any length")


def _same(a: Any, b: Any) -> z3.BoolRef:
    if isinstance(a, tuple):
        return z3.And([_same(x, y) for x, y in zip(a, b, strict=True)])
    return a == b


def _apply(summary: Summary, path: Path, frames: list[FrameType], low: Any, end: Any) -> None:
    """Put in place what the iterations `low .. end - 1`, at least one, change."""
    i = summary.i
    for (number, how), value in summary.changes().items():
        if isinstance(number, tuple):
            place, name = number
            at = partial(_substituted, value, i, low)
            frames[place].f_locals[name].extend(Run(end - low, at, summary.kinds[number]).ends)
            continue
        what = path.lists[number]
        what.kind = what.kind or summary.kinds.get(number)
        if how == "append":
            _append(what, value, i, low, end)
        elif how == "set":
            _set(what, value, i, low, end)
        else:
            what.term = what.term + _added(path, summary, value, low, end)


def _substituted(value: Any, i: Any, low: Any, j: Any) -> Any:
    return z3.substitute(value, (i, low + j))


def _append(what: Any, value: Any, i: Any, low: Any, end: Any) -> None:
    start, at = what.length, what.at
    what.length = z3.simplify(start + (end - low))
    what.at = lambda x: z3.If(x < start, at(x), _substituted(value, i, low, x - start))


def _set(what: Any, change: tuple[Any, Any], i: Any, low: Any, end: Any) -> None:
    """An element at an index that goes up or down by one with i."""
    index, value = change
    for sign in (1, -1):
        rest = z3.simplify(index - sign * i, som=True)
        if not _mentions(rest, i):
            break
    else:
        raise Unsupported("a loop changes elements that do not lie side by side")
    at = what.at

    def changed(x: Any) -> Any:
        j = sign * (x - rest)
        return z3.If(z3.And(low <= j, j < end), z3.substitute(value, (i, j)), at(x))

    what.at = changed


def _added(path: Path, summary: Summary, value: Any, low: Any, end: Any) -> Any:
    i, value = summary.i, z3.simplify(value)
    if z3.is_int_value(value):
        return value * (end - low)
    if not path.entails(z3.Or(value == 0, value == 1)):
        raise Unsupported("a sum of other than truth values")

    def is_counted(j: Any) -> Any:
        path.assume(*summary.learnt(j))
        return z3.substitute(value, (i, j)) == 1

    return count(path, is_counted, low, end)


def count(path: Path, predicate: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """How many of `low .. high - 1` satisfy the predicate: the model's count, if it counts the same."""
    x = path.integer("x")
    counted = next(
        (of for known, of in path.counts if _counts_alike(path, known, predicate, x, low, high)), None
    )
    if counted is None:
        path.fresh += 1
        counted = z3.Function(f"count~{path.fresh}", z3.IntSort(), z3.IntSort())
        path.counts.append((predicate, counted))
    path.assume(count_is_bounded(counted, low, high))
    return counted(high) - counted(low)


def _counts_alike(path: Path, known: Any, predicate: Any, x: Any, low: Any, high: Any) -> bool:
    return path.entails(z3.Implies(z3.And(low <= x, x < high), known(x) == predicate(x)))


def _mentions(term: Any, variable: Any) -> bool:
    return bool(term.eq(variable)) or any(_mentions(child, variable) for child in term.children())
