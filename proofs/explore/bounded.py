"""Bounded model checking: the shortest sequence of calls, from an idle pool, after which something holds.

Deepening call by call, so that the first story found is a shortest one for its configuration, its number of
requests and the actions allowed. Every story is told again by the running reading before anybody sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import msgspec
import z3

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
)
from slotproof.model.claims.check import GIVES_BACK, LEAVING, NOBODY, NOT_OTHER, Check
from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN
from slotproof.model.claims.statements import CHECKS
from slotproof.model.language.algebra import Bool, both, either, implies, negate, numbers
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import LOADING, State
from slotproof.model.scheduling.caller import ACTIONS, Outcome, waits
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.prefix_cache import get_computed_blocks, hits_for
from slotproof.proofs.explore.search import Tables, start
from slotproof.proofs.output.errors import is_interrupt
from slotproof.proofs.prove.claims import as_term

CORE = ("add_request", "allocate", "complete", "preempt", "finish")
"""What every engine does."""
LOADS = ("cache_blocks",)
"""With these, allocations may ask for external tokens."""
RARE = ("evict_blocks", "execute", "remove_skipped", "reset_prefix_cache")
MAX_LOOKAHEAD = 3


@dataclass(frozen=True)
class Bounds:
    """How far a search looks."""

    requests: int = 2
    calls: int = 6
    actions: tuple[str, ...] = CORE
    seconds: float = 60.0
    seed: int = 0
    waivable: tuple[str, ...] = ()
    """Preconditions of the contract of which one may be broken."""


@dataclass(frozen=True)
class Found:
    """What a search came to: calls, or none within the bounds."""

    config: Config | None
    calls: tuple[Call, ...] | None
    depth: int
    """Calls to which the search was complete, or at which it found."""
    out_of_time: bool = False
    interrupted: bool = False
    waived: str = ""
    """The precondition that the calls break, if any."""


@dataclass(frozen=True)
class Turn:
    """One call, Z3's to choose: the action, and what each action would be asked."""

    before: State
    action: z3.BitVecRef
    actions: tuple[str, ...]
    request: z3.BitVecRef
    amounts: dict[str, Any]
    ask: Ask
    outcomes: dict[str, Outcome]
    after: State
    stuck: tuple[z3.BoolRef, ...]
    earlier: Turn | None
    arguments: dict[str, dict[str, Any]]
    """What each action would be given, by name."""

    @cached_property
    def careful(self) -> Bool:
        """The caller took care in this call and in all before (`Action.care`)."""
        taken = [
            implies(self.is_action(name), both(*ACTIONS[name].care(self.before, **arguments).values()))
            for name, arguments in self.arguments.items()
        ]
        return both(True if self.earlier is None else self.earlier.careful, *taken)

    @property
    def carried_out(self) -> z3.BoolRef:
        """No step of the call failed."""
        return z3.Not(z3.Or(*self.stuck))

    def is_action(self, name: str) -> Bool:
        """The call is this action."""
        return self.action == self.actions.index(name) if name in self.actions else False


_OF_A_REQUEST: dict[str, Callable[[int], Call]] = {
    "preempt": Preempt,
    "finish": Finish,
    "remove_skipped": RemoveSkipped,
}

Goal = Callable[[Tables, Turn], z3.BoolRef]
"""What is looked for after a turn."""


class Search:
    """A search that goes one call deeper at a time.

    `deepen` answers the calls after which the goal holds, None if no calls of this number lead there.
    """

    def __init__(self, config: Config, rules: Rules, goal: Goal, bounds: Bounds) -> None:
        self.config = config
        self._bounds = bounds
        self._goal = goal
        self._read, self._state = start(_clipped(config), rules, bounds.requests)
        self._turns: list[Turn] = []
        self._waives = {name: z3.Bool(f"waives {name}") for name in bounds.waivable}
        self.waived = ""
        """The precondition that the calls that were found break."""
        if self._waives:
            self._read.facts.append(z3.AtMost(*self._waives.values(), 1))

    def deepen(self, seconds: float) -> tuple[Call, ...] | None:
        """One call more. Raises TimeoutError if the time is not enough."""
        read = self._read
        with numbers(lambda value: z3.BitVecVal(value, read.sizes.bits)):
            turn = _turn(read, self._state, self.config, self._bounds, self._turns, self._waives)
            self._turns.append(turn)
            reached = as_term(self._goal(read, turn))
            solver = _sat_solver(seconds, self._bounds.seed)
            solver.add(*read.facts, reached)
            answer = solver.check()
            if answer == z3.sat:
                model = solver.model()
                broken = (name for name, waives in self._waives.items() if z3.is_true(model.eval(waives)))
                self.waived = next(broken, "")
                return _read_back(model, read, self._turns, self.config)
            read.facts.append(turn.carried_out)
        if answer == z3.unknown:
            if "interrupted" in solver.reason_unknown():  # Z3 keeps an interrupt of its check for itself
                raise KeyboardInterrupt
            raise TimeoutError(f"{seconds:.0f} s were not enough for {len(self._turns)} calls")
        self._state = turn.after
        return None


def search(configs: Iterable[Config], rules: Rules, goal: Goal, bounds: Bounds) -> Found:
    """The shortest calls after which the goal holds, over all engines.

    All engines are searched to a depth before any goes deeper, each first with the core actions alone.
    """
    deadline = time.monotonic() + bounds.seconds
    narrow = replace(bounds, actions=tuple(a for a in bounds.actions if a in CORE))
    widths = list(dict.fromkeys((narrow, bounds)))
    depth = 0
    try:
        searches = [Search(config, rules, goal, width) for width in widths for config in configs]
        while depth < bounds.calls:
            for one in searches:
                calls = one.deepen(deadline - time.monotonic())
                if calls is not None:
                    return Found(one.config, calls, depth + 1, waived=one.waived)
            depth += 1
    except TimeoutError:
        return Found(None, None, depth, out_of_time=True)
    except BaseException as error:
        if not is_interrupt(error):
            raise
        return Found(None, None, depth, out_of_time=True, interrupted=True)
    return Found(None, None, depth)


def breaks(statements: Iterable[str], more: tuple[Check, ...] = ()) -> Goal:
    """The goal that a call breaks one of the statements; where there are `more` checks, one of these."""
    wanted = frozenset() if more else frozenset(statements)
    checks = more or tuple(check for check in CHECKS if check.statement in wanted)

    def broken(read: Tables, turn: Turn) -> z3.BoolRef:
        parts = []
        for invariant in (*STEPWISE, *LEDGER, *WRITTEN):
            if invariant.statement in wanted:
                chosen = turn.careful if invariant in WRITTEN else True
                for values in _values(read, invariant.variables):
                    parts.append(as_term(both(chosen, negate(invariant.holds(turn.after, *values)))))
        for check in checks:
            for made, arguments in _about(read, turn, check.about):
                chosen = both(made, turn.careful) if check.care else made
                for values in _values(read, check.variables):
                    part = check.part(*arguments, *values)
                    parts.append(as_term(both(chosen, part.given, negate(part.claim))))
        fails = list(turn.stuck) if "no-rollback" in wanted else []
        return z3.Or(*fails, z3.And(turn.carried_out, z3.Or(*parts)))

    return broken


def reaches(expression: Callable[[State], Bool]) -> Goal:
    """The goal that an expression holds of the state after a call."""
    return lambda read, turn: z3.And(turn.carried_out, as_term(expression(turn.after)))


def _about(read: Tables, turn: Turn, about: str) -> list[tuple[Bool, tuple[Any, ...]]]:
    if about == "state":
        return [(True, (turn.after,))]
    if about == "lookup":
        return [
            (
                both(waits(turn.after, r), turn.after.computed(r) == 0, turn.after.engine.enable_caching),
                (turn.after, r, get_computed_blocks(turn.after, r)),
            )
            for r in range(read.sizes.requests)
        ]
    if about == "allocate":
        outcome = turn.outcomes["allocate"]
        return [(turn.is_action("allocate"), (turn.before, turn.request, turn.ask, outcome))]
    if about == "execute":
        return [
            (turn.is_action(name), (turn.before, turn.outcomes[name]))
            for name in turn.outcomes
            if name == about
        ]
    if about == "complete":
        return [(turn.is_action(about), (turn.before, turn.request, turn.outcomes[about]))]
    names = LEAVING if about == "leave" else tuple(n for n in turn.outcomes if n not in NOT_OTHER)
    return [
        (
            turn.is_action(name),
            (turn.before, turn.request if name in GIVES_BACK else NOBODY, turn.outcomes[name]),
        )
        for name in names
        if name in turn.outcomes
    ]


def _values(read: Tables, variables: tuple[str, ...]) -> list[tuple[int, ...]]:
    return list(product(*(read.sizes.domain(variable) for variable in variables)))


def _clipped(config: Config) -> Config:
    """A bound on tokens in flight that no request can reach is one that bits can hold."""
    most = min(config.max_in_flight_tokens, 2 * config.max_model_len)
    return msgspec.structs.replace(config, max_in_flight_tokens=most)


def _sat_solver(seconds: float, seed: int) -> z3.Solver:
    stages = ("simplify", "propagate-values", "solve-eqs", "elim-uncnstr", "simplify", "bit-blast", "sat")
    solver = z3.Then(*stages).solver()
    solver.set("timeout", max(1, int(seconds * 1000)))
    solver.set("random_seed", seed)
    return solver


def _turn(
    read: Tables,
    s: State,
    config: Config,
    bounds: Bounds,
    turns: list[Turn],
    waives: dict[str, z3.BoolRef],
) -> Turn:
    read.stuck.clear()
    depth = len(turns) + 1
    length = config.max_model_len
    actions = bounds.actions
    action = read.fresh("action", 0, len(actions) - 1)
    r = read.fresh("request", 0, bounds.requests - 1)
    amounts = {
        "num_tokens": read.fresh("num_tokens", 1, length),
        "new": read.fresh("new", 0, length),
        "lookahead": read.fresh("lookahead", 0, MAX_LOOKAHEAD),
        "reserved": read.fresh("reserved", 0, config.num_blocks),
        "external": read.fresh("external", 0, length) if "cache_blocks" in actions else 0,
        "published": read.fresh("published", 0, length) if "cache_blocks" in actions else 0,
        "processed": read.fresh("processed", 1, length),
        "rejected": read.fresh("rejected", 0, length),
        "sampled": read.fresh("sampled", 0, length),
    }
    flags = {name: z3.Bool(f"{name}!{depth}") for name in ("skip_cache", "must_fit", "has_scheduled")}
    loads = "cache_blocks" in actions
    flags |= {
        name: z3.Bool(f"{name}!{depth}") if loads else False for name in ("delay_cache", "skip_zeroing")
    }
    named = [z3.Bool(f"evict!{depth}!{b}") for b in range(config.num_blocks)]
    amounts |= flags | {"named": named}
    ask = Ask(
        hits=hits_for(s, r, flags["skip_cache"]),
        **{name: amounts[name] for name in ("new", "lookahead", "external", "reserved")},
        **{name: flags[name] for name in ("delay_cache", "must_fit", "has_scheduled", "skip_zeroing")},
    )
    outcomes: dict[str, Outcome] = {}
    given = {name: _arguments(name, r, ask, amounts) for name in actions}
    after = s
    for number, (name, arguments) in enumerate(given.items()):
        chosen = action == number
        for precondition, condition in ACTIONS[name].contract(s, **arguments).items():
            read.facts.append(as_term(implies(chosen, either(condition, waives.get(precondition, False)))))

        def effect(name: str = name, arguments: dict[str, Any] = arguments) -> State:
            outcomes[name] = ACTIONS[name].apply(s, **arguments)
            return outcomes[name].state

        after = read.when(chosen, effect, after)
    _arrive_in_order(read, s, action == actions.index("add_request"), r)
    earlier = turns[-1] if turns else None
    return Turn(s, action, actions, r, amounts, ask, outcomes, after, tuple(read.stuck), earlier, given)


def _arguments(name: str, r: Any, ask: Ask, amounts: dict[str, Any]) -> dict[str, Any]:
    if name == "allocate":
        return {"request": r, "ask": ask}
    if name == "evict_blocks":
        return {"named": lambda b: amounts["named"][b]}
    if name in ("execute", "reset_prefix_cache"):
        return {}
    if name == "cache_blocks":
        return {"request": r, "num_tokens": amounts["published"]}
    counts = {"add_request": ("num_tokens",), "complete": ("processed", "rejected", "sampled")}
    return {"request": r} | {count: amounts[count] for count in counts.get(name, ())}


def _arrive_in_order(read: Tables, s: State, arrives: Any, r: Any) -> None:
    """Requests are alike: the first to arrive is the first."""
    for q in range(1, read.sizes.requests):
        before = s.num_tokens(q - 1) > 0
        read.facts.append(as_term(implies(both(arrives, r == q), before)))


def _read_back(model: z3.ModelRef, read: Tables, turns: list[Turn], config: Config) -> tuple[Call, ...]:
    """The calls that Z3 chose."""

    def value(term: Any) -> Any:
        if isinstance(term, int | bool):
            return term
        found = model.eval(term, model_completion=True)
        return z3.is_true(found) if z3.is_bool(term) else found.as_signed_long()

    calls: list[Call] = []
    known: dict[int, int] = {}
    for turn in turns:
        name, r = turn.actions[value(turn.action)], value(turn.request)
        amount = {key: value(term) for key, term in turn.amounts.items() if key != "named"}

        def tokens(low: int, high: int, r: int = r) -> tuple[int, ...]:
            return tuple(1 + value(token) for token in read.token_of[r][low:high])

        if name == "add_request":
            known[r] = amount["num_tokens"]
            calls.append(AddRequest(r, tokens(0, known[r]), value(read.salt_of[r]), value(read.lora_of[r])))
        elif name == "allocate":
            keys = ("new", "lookahead", "external", "skip_cache", "delay_cache", "must_fit", "reserved")
            more = ("has_scheduled", "skip_zeroing")
            calls.append(Allocate(r, **{key: amount[key] for key in (*keys, *more)}))
        elif name == "complete":
            end = known[r] + amount["sampled"]
            calls.append(Complete(r, amount["processed"], amount["rejected"], tokens(known[r], end)))
            known[r] = end
        elif name == "cache_blocks":
            loads = value(turn.before.status(turn.request)) == LOADING
            calls.append(CacheBlocks(r, None if loads else amount["published"]))
        elif name == "evict_blocks":
            named = turn.amounts["named"]
            calls.append(EvictBlocks(tuple(b for b in range(config.num_blocks) if value(named[b]))))
        elif name == "execute":
            calls.append(Execute())
        elif name == "reset_prefix_cache":
            calls.append(ResetPrefixCache())
        else:
            calls.append(_OF_A_REQUEST[name](r))
    return tuple(calls)
