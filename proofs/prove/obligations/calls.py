"""Every call of a caller within its contract keeps the ledger's invariants and every check.

The state before a call satisfies all invariants. Whatever a step inside needs or relies on is shown here,
on the path that leads to it; that the stepwise invariants hold after each step then follows (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import z3

from slotproof.model.claims.admission import alone
from slotproof.model.claims.check import GIVES_BACK, LEAVING, NOBODY, NOT_OTHER, Check, Part, settled_at
from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN, Invariant
from slotproof.model.claims.statements import CHECKS
from slotproof.model.language.algebra import Bool, both, implies, negate, within
from slotproof.model.language.engine import Engine
from slotproof.model.language.groups import FULL as FULL_KIND
from slotproof.model.language.groups import Groups
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import State
from slotproof.model.scheduling.caller import ACTIONS, Outcome, waits
from slotproof.model.system.allocate_slots import Answer, Ask
from slotproof.model.system.attention.group import skipped_tokens
from slotproof.model.system.prefix_cache import Hits, get_computed_blocks, hits_for
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove.claims import Claim, as_term, of_state, same_terms
from slotproof.proofs.prove.names import claimed
from slotproof.proofs.prove.obligation import Obligation, mentions
from slotproof.proofs.prove.obligations import sums
from slotproof.proofs.prove.obligations.group_loops.ends import NAMED, end_of_loop
from slotproof.proofs.prove.obligations.places import Places
from slotproof.proofs.prove.symbols import Symbols, as_term_int

LATER_CHUNK = "later-chunk"
LONE_REQUEST = "lone-request-is-granted"


@dataclass(frozen=True)
class Made:
    """A call that was made, symbolically."""

    read: Symbols
    before: State
    request: Any
    ask: Ask | None
    outcome: Outcome


INVARIANTS = (*STEPWISE, *LEDGER)
OF_REFERENCES = tuple(
    invariant
    for invariant in INVARIANTS
    if invariant.statement == "ref-count"
    or invariant.name in ("free-if-unreferenced", "entry-holds-its-prefix")
)
"""What Z3 may instantiate where it likes in a proof about contents. The other invariants are given to it at
the places that matter (`_at_the_writer`): with all of them in sight everywhere it takes ten times as long."""


def _state(
    kind: str,
    rules: Rules,
    invariants: tuple[Invariant, ...] = INVARIANTS,
    properties: tuple[Claim, ...] = arithmetic.PROPERTIES,
) -> tuple[Symbols, State]:
    read = Symbols(kind, rules, end_of_loop, properties)
    s = read.state()
    read.assume(*(of_state(invariant, s).assumed() for invariant in invariants))
    return read, s


def _make(name: str, kind: str, rules: Rules, undisturbed: bool = False, careful: bool = False) -> Made:
    """The call, from any state that satisfies every invariant, within its contract; `careful`: with care,
    and from a state that came about with care."""
    read, s = _state(kind, rules, OF_REFERENCES, arithmetic.LEAN) if careful else _state(kind, rules)
    r, ask, names = read.names.integer("request"), None, read.names
    arguments: dict[str, Any] = {"request": r}
    if name in ("add_request", "cache_blocks"):
        arguments["num_tokens"] = names.integer("num_tokens")
    elif name == "complete":
        arguments |= {count: names.integer(count) for count in ("processed", "rejected", "sampled")}
    elif name == "allocate":
        ask = any_ask(read, s, r)
        arguments["ask"] = ask
    elif name == "evict_blocks":
        arguments = {"named": names.function("named", result=z3.BoolSort())}
    elif name in ("execute", "reset_prefix_cache", "take_new_block_ids"):
        arguments = {}
    read.careful = careful
    if undisturbed and kind != FULL:
        read.alone = True
        read.assume(alone(s, r))
    read.assume(*ACTIONS[name].contract(s, **arguments).values())
    if careful:
        read.assume(*ACTIONS[name].care(s, **arguments).values())
    return Made(read, s, r, ask, ACTIONS[name].apply(s, **arguments))


def any_ask(read: Symbols, s: State, r: Any) -> Ask:
    """Any question about a request, with the hits that a lookup finds."""
    names = read.names
    new, lookahead, external, reserved = names.integers("new lookahead external reserved")
    return Ask(
        new=new,
        hits=hits_for(s, r, names.truth("skip_cache")),
        lookahead=lookahead,
        external=external,
        delay_cache=names.truth("delay_cache"),
        must_fit=names.truth("must_fit"),
        reserved=reserved,
        has_scheduled=names.truth("has_scheduled"),
        skip_zeroing=names.truth("skip_zeroing"),
    )


def call(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """What a call needs on its way, the ledger after it, and the checks about it."""
    made = _make(name, kind, rules)
    lemmas = tuple(_lemmas(made))
    witness = f"call {name}"
    counts = iter(_count_of(made))
    for needed in made.read.needed:
        before, sums_known = (*made.read.assumed[: needed.known], *lemmas), list[z3.BoolRef]()
        if needed.name.startswith("take-groups"):
            for compared in next(counts):
                of_each = f"{name}: {needed.name}, each group"
                yield _of_each_group(
                    made.read, of_each, needed.statement, kind, "stage 3", witness, compared, before
                )
                sums_known.append(compared.of_sums(made.read))
        yield Obligation(
            f"{name}: {needed.name}",
            needed.statement,
            kind,
            "stage 3",
            witness,
            (*before, *sums_known, *mentions(needed.claim), *_at_any(made.read, needed.values)),
            needed.claim,
        )
    known = (*made.read.assumed, *lemmas)
    for number, compared in enumerate(next(counts, []), 1):
        of_each = f"{name}: count-is-what-is-taken, each group {number}"
        yield _of_each_group(made.read, of_each, "exact-count", kind, "stage 2", witness, compared, known)
        known = (*known, compared.of_sums(made.read))
    yield from _bookkeeping(name, made, kind, known)
    for invariant in LEDGER:
        claim = of_state(invariant, made.outcome.state)
        about_blocks = invariant.variables in (("block",), ("row", "index"))
        named, alike = _named(made, invariant, claim.values()) if about_blocks else (None, [])
        if named is not None:
            claim = of_state(invariant, named)
        sight = (*map(as_term, alike), *_at_the_writer(made, claim, named=named)) if about_blocks else ()
        yield Obligation(
            f"{name}: {claim.name}", claim.statement, kind, "caller", witness, (*known, *sight), claim.goal()
        )
    for check in CHECKS:
        here = _is_about(check, name) and not check.care
        if here and not _is_undisturbed(check):
            yield from _checked(name, check, made, kind, known)
        elif check.about == "other" and name not in NOT_OTHER:
            r = made.request if name in GIVES_BACK else NOBODY
            yield from _checked(name, check, replace(made, request=r), kind, known)


def _count_of(made: Made) -> list[list[sums.Comparison]]:
    """How stage 2's count and what stage 3 takes compare, for engines of several groups."""
    answer, engine = made.outcome.answer, made.before.engine
    if made.ask is None or answer is None or engine.groups.is_one:
        return []
    amounts = sums.Allocation(made.before, made.request, made.ask, answer)
    return sums.of_count(amounts, answer, engine.groups.num)


def _holders(s: State, t: State, block: Any) -> Iterator[Bool]:
    """Two of a block's holders before, and whether they still are."""
    for k in (0, 1):
        row, index = s.holder_row(block, k), s.holder_index(block, k)
        for invariant in STEPWISE:
            if invariant.variables == ("block", "reference"):
                yield invariant.holds(s, block, k)
            elif invariant.variables == ("row", "index"):
                yield both(invariant.holds(s, row, index), invariant.holds(t, row, index))


def _of_block(s: State, block: Any) -> Iterator[Bool]:
    return (i.holds(s, block) for i in STEPWISE if i.variables == ("block",))


def _of_each_group(
    read: Symbols,
    name: str,
    statement: str,
    kind: str,
    stage: str,
    witness: str,
    compared: sums.Comparison,
    known: tuple[z3.BoolRef, ...],
) -> Obligation:
    start, goal = len(read.assumed), compared.of_each(claimed("group", 0))
    defined = read.assumed[start:]
    return Obligation(name, statement, kind, stage, witness, (*known, *defined, *mentions(goal)), goal)


def later_chunk(kind: str, rules: Rules) -> Iterator[Obligation]:
    """A call where nobody else holds a block of the request: a prompt's later chunk, and a lone request, of
    which it is shown (*lone-holder-shares-nothing*)."""
    made = _make("allocate", kind, rules, undisturbed=True)
    # `call` shows of every grant that stage 2 counts what is taken.
    exact = [compared.of_sums(made.read) for counts in _count_of(made) for compared in counts]
    known, witness = (*made.read.assumed, *_lemmas(made), *exact), f"check {LATER_CHUNK}-is-granted"
    for needed in made.read.needed:
        if needed.statement == "admission-suffices":
            yield Obligation(
                f"later-chunk: {needed.name}",
                needed.statement,
                kind,
                "stage 1",
                witness,
                tuple(made.read.assumed[: needed.known]),
                needed.claim,
            )
    for check in CHECKS:
        if _is_undisturbed(check):
            yield from _checked("later-chunk", check, made, kind, known)


def _bookkeeping(name: str, made: Made, kind: str, known: tuple[z3.BoolRef, ...]) -> Iterator[Obligation]:
    """What a caller writes down after the pool's last step keeps the invariants that the steps keep. Where it
    touches nothing that one reads, the two are the same term, and there is nothing to prove."""
    pool = made.outcome.pool
    if pool is None:
        return
    for invariant in STEPWISE:
        before, claim = of_state(invariant, pool), of_state(invariant, made.outcome.state)
        if not before.goal().eq(claim.goal()):
            yield Obligation(
                f"{name}, bookkeeping: {claim.name}",
                claim.statement,
                kind,
                "caller",
                f"call {name}",
                (*known, before.goal()),
                claim.goal(),
            )


def with_care(name: str, kind: str, rules: Rules) -> Iterator[Obligation]:
    """A call of a caller with care keeps what is published, and what is computed, written."""
    made = _make(name, kind, rules, careful=True)
    known = (*made.read.assumed, *_lemmas(made), *_taken(made))
    for invariant in WRITTEN:
        claim = of_state(invariant, made.outcome.state)
        named, alike = _named(made, invariant, claim.values())
        claim = of_state(invariant, named or made.outcome.state)
        counts = arithmetic.MONOTONE if invariant.name == "no-more-is-written" else ()
        facts = (
            *known,
            *(as_term(fact) for fact in alike),
            *(fact.assumed() for fact in counts),
            *_at_the_writer(made, claim, *WRITTEN, named=named),
        )
        for case, given in _cases(made, claim, named).items():
            yield Obligation(
                f"{name} with care{case}: {claim.name}",
                claim.statement,
                kind,
                "worker",
                f"care {name}",
                (*facts, *map(as_term, given), *(fact for g in given for fact in mentions(as_term(g)))),
                claim.goal(),
                is_leaf=True,
            )
    for check in CHECKS:
        if check.care and _is_about(check, name):
            everywhere = (of_state(i, made.before).assumed() for i in (*INVARIANTS, *WRITTEN))
            yield from _checked(f"{name} with care", check, made, kind, (*known, *everywhere))


def _named(made: Made, invariant: Invariant, values: list[Any]) -> tuple[State | None, list[Bool]]:
    """The state after a call, with names for the block that an invariant is about and for where it was taken
    for: of several groups these are long terms, and Z3 would have to compare what is built on them."""
    t, named, answer = made.outcome.state, made.read.named, made.outcome.answer
    if t.engine.groups.is_one or answer is None:
        return None, []
    if not t.table(*_ANY_ENTRY).eq(answer.committed.table(*_ANY_ENTRY)):
        return None, []  # without a rule stage 1 comes last
    if named is not None and invariant.name == "hashed-blocks-are-written":
        return t.replace(**{field: getattr(named, field) for field in NAMED}), []
    u = t.replace(**{field: made.read.unknown(field) for field in NAMED})
    block = values[0] if len(values) == 1 else u.table(*values)
    writer = u.writer_row(block), u.writer_index(block)
    entries = [writer, values] if len(values) == 2 else [writer]
    same = [u.table(*entry) == t.table(*entry) for entry in entries]
    return u, [writer[0] == t.writer_row(block), writer[1] == t.writer_index(block), *same]


def _cases(made: Made, claim: Claim, named: State | None) -> dict[str, list[Bool]]:
    """Of several groups Z3 is sooner done with each case by itself: the block of a claim was free when stage
    3 took blocks, or not."""
    if named is None or made.outcome.answer is None or claim.arity != 1:
        return {"": []}
    is_free = made.outcome.answer.adopted.is_free(*claim.values())
    return {", block free": [is_free], ", block kept": [negate(is_free)]}


_ANY_ENTRY = (claimed("row", 0), claimed("index", 0))


def _taken(made: Made) -> Iterator[z3.BoolRef]:
    """That the pool has the blocks that groups take: `call` shows it, with more in sight."""
    if not made.before.engine.groups.is_one:
        yield from (needed.claim for needed in made.read.needed if needed.name.startswith("take-groups"))


def _is_undisturbed(check: Check) -> bool:
    return check.name == LONE_REQUEST or check.name.startswith(LATER_CHUNK)


def _is_about(check: Check, name: str) -> bool:
    return check.about == name or (check.about == "leave" and name in LEAVING)


def _at_the_writer(
    made: Made, claim: Claim, *more: Invariant, named: State | None = None
) -> Iterator[z3.BoolRef]:
    """The invariants, and `more` of the state before, at the entry that a claim is about, and at the entry
    that its block was taken for; that of `named`, if it is given."""
    s, r, t, answer = made.before, made.request, named or made.outcome.state, made.outcome.answer
    states = (s, made.outcome.state if answer is None else answer.committed)
    values = tuple(claim.values())
    block = values[0] if claim.arity == 1 else t.table(*values)
    places = [values] if claim.arity == 2 else []
    if named is None:
        for state in states:
            row, index = state.writer_row(block), state.writer_index(block)
            places += [(row, index), (s.engine.row(r, s.engine.group(row)), index)]
    else:
        row, index = t.writer_row(block), t.writer_index(block)
        places.append((row, index))
        if claim.arity == 1:  # stage 4 looks there
            places.append((s.engine.row(r, s.engine.group(row)), index))
    owner = s.engine.owner
    at = {
        ("block",): [(block,)],
        ("row",): _once([(row,) for row, _ in places]),
        ("request",): _once([(owner(row),) for row, _ in places]),
        ("row", "index"): _once(places),
    }
    for state in states:
        for invariant in (*INVARIANTS, *more) if state is s else STEPWISE:
            for where in at.get(invariant.variables, ()):
                yield as_term(invariant.holds(state, *where))
    if answer is not None:  # new entries are the front of the queue
        for queue, position in _queues(made, answer):
            if not s.engine.groups.is_one:
                yield from (as_term(fact) for fact in _of_block(queue, block))
            for row, index in places:
                at_position, facts = position(row, index)
                yield from (as_term(fact) for fact in facts)
                for invariant in STEPWISE:
                    if invariant.variables == ("position",):
                        yield as_term(invariant.holds(queue, at_position))


Position = Callable[[Any, Any], tuple[Any, list[Bool]]]
"""(row, index) -> where a new entry of the row was in the queue, with what is known of sums there."""


def _queues(made: Made, answer: Answer) -> Iterator[tuple[State, Position]]:
    """The states in which stage 3 takes blocks, with the places in their queues of those that it takes."""
    engine, ask = made.before.engine, made.ask
    assert ask is not None
    if engine.groups.is_one:
        queue = answer.adopted
        yield queue, lambda row, index: (index - queue.length(row), [])
        return
    amounts = sums.Allocation(made.before, made.request, ask, answer)
    for state, amount in ((answer.adopted, amounts.external), (answer.loaded, amounts.new)):
        yield state, partial(_in_queue, made.read, state, amount)


def _in_queue(
    read: Symbols, queue: State, amount: sums.Amount, row: Any, index: Any
) -> tuple[Any, list[Bool]]:
    total, num, g = read.summed(amount), read.engine.groups.num, read.engine.group(row)
    piece = implies(within(0, g, num), both(total(g) >= 0, total(g) + amount(g) <= total(num)))
    return total(g) + index - queue.length(row), [piece]


def _at_any(read: Symbols, values: Iterable[Any]) -> Iterator[z3.BoolRef]:
    """What holds of every number of a range, at these values."""
    return (as_term(at(value)) for value in values for at in tuple(read.at_any))


def _once(places: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return list({same_terms(place): place for place in places}.values())


def _checked(
    where: str, check: Check, made: Made, kind: str, known: tuple[z3.BoolRef, ...]
) -> Iterator[Obligation]:
    values = _values(check, made.before.engine.groups)
    asked: tuple[Any, ...] = () if check.about == "execute" else (made.request,)
    asked += () if made.ask is None else (made.ask,)
    part = check.part(made.before, *asked, made.outcome, *values)
    hints = [as_term(fact) for fact in _instances(check, made, values)]
    if not made.before.engine.groups.is_one:
        about = (part.given, made.before, made.request, made.ask, made.outcome, values)
        for number, compared in enumerate(sums.of_check(check.name, *about), 1):
            name, witness = f"{where}: {check.name}, each group {number}", f"check {check.name}"
            yield _of_each_group(
                made.read, name, check.statement, kind, check.stage, witness, compared, known
            )
            hints.append(compared.of_sums(made.read))
    yield from _obligation(where, check, part, kind, (*known, *hints))


def _values(check: Check, groups: Groups) -> list[Any]:
    one = groups.is_one
    return [
        0 if variable == "group" and one else claimed(variable, n)
        for n, variable in enumerate(check.variables)
    ]


def _obligation(
    where: str, check: Check, part: Part, kind: str, known: tuple[z3.BoolRef, ...]
) -> Iterator[Obligation]:
    if part.given is False:  # the check says nothing about this kind of attention
        return
    name, goal = f"{where}: {check.name}", as_term(implies(part.given, part.claim))
    witness = f"check {check.name}"
    yield Obligation(name, check.statement, kind, check.stage, witness, known, goal, is_leaf=True)


def _lemmas(made: Made) -> Iterator[z3.BoolRef]:
    """Arithmetic at the places where a call needs it; each is an obligation of its own."""
    if made.ask is None or made.outcome.answer is None:
        return
    s, r, ask, total = made.before, made.request, made.ask, made.outcome.answer.total
    engine, settled = s.engine, settled_at(s, r, made.outcome)

    def at(g: Any) -> Any:
        size, gone = engine.groups.block_size(g), skipped_tokens(engine, g, settled)
        scheduled = total + ask.new + ask.lookahead - gone
        return both(
            arithmetic.next_block(s.length(engine.row(r, g)), size).goal(),
            arithmetic.sum_of_parts(as_term_int(gone), scheduled, size).goal(),
        )

    yield _at_each_group(engine, r, "lemmas", at)
    yield from _window_lemmas(engine, r, ask.hits)


def _at_each_group(engine: Engine, r: Any, name: str, at: Callable[[Any], Any]) -> z3.BoolRef:
    """A fact at every group, wherever Z3 sees r's row in it."""
    if engine.groups.is_one:
        return as_term(at(0))
    return Claim(name, "arithmetic", 1, at, (lambda g: engine.row(r, g),)).assumed()


def _window_lemmas(engine: Engine, r: Any, hits: Hits) -> Iterator[z3.BoolRef]:
    groups = engine.groups
    if groups.kind(0) is not FULL_KIND:

        def at(g: Any) -> Any:
            return arithmetic.blocks_before(hits.num(g), groups.window(g) - 1, groups.block_size(g)).goal()

        yield _at_each_group(engine, r, "window-lemmas", at)


def _instances(check: Check, made: Made, values: list[z3.ArithRef]) -> Iterator[Bool]:
    """Known facts at the values of a check: invariants of states on the way, and ends of loops."""
    s, r, t = made.before, made.request, made.outcome.state
    if made.outcome.answer is not None:
        answer, row = made.outcome.answer, r
        states = [answer.committed, t]
        on_the_way = [] if s.engine.groups.is_one else [answer.adopted, answer.loaded]
        for value, variable in zip(values, check.variables, strict=True):
            if variable == "group":
                row = s.engine.row(r, value)
            for state in (*states, *on_the_way):
                for invariant in STEPWISE:
                    if variable == "index" and invariant.variables == ("row", "index"):
                        yield invariant.holds(state, row, value)
            for state in on_the_way:
                if variable == "index":
                    yield from _of_block(state, state.table(row, value))
    if check.name == LONE_REQUEST:
        yield from _one_place_each(made.read, s, r)
    if check.name == "dropped-blocks-stay-unwritten" and not s.engine.groups.is_one:
        group, index = values
        yield from _holders(s, t, s.table(s.engine.row(r, group), index))
    if check.about == "leave":
        hand = [s.length(r) - 1 - value for value in values] + list(values)
        for fact in made.read.facts:
            if fact.arity == 1:
                yield from (as_term(fact.body(j)) for j in hand)
            elif fact.arity == 2:
                yield from (as_term(fact.body(i, j)) for i in hand for j in hand)


def _one_place_each(read: Symbols, s: State, r: Any) -> Iterator[Bool]:
    """Each held block is at a place of its own in the request's tables: there are no more than places."""
    places = Places(s, r, s.first, s.length)

    def group(j: Any) -> Any:
        return s.engine.group(s.writer_row(s.held(j)))

    def place(j: Any) -> Any:
        return places.of(group(j), s.writer_index(s.held(j)))

    pigeons = read.integer("pigeon"), read.integer("pigeon")
    yield arithmetic.pigeonhole(pigeons, s.num_held, places.number, place).body()
    if s.engine.groups.is_one:
        return
    yield from places.facts(*(group(j) for j in pigeons))
    for j in pigeons:
        row, index = s.holder_row(s.held(j), 0), s.holder_index(s.held(j), 0)
        yield from mentions(both(s.table(row, index) == s.first(row), s.slot(row, index) == s.length(row)))


def state_checks(kind: str, rules: Rules) -> Iterator[Obligation]:
    """What follows from the invariants in every state between two calls."""
    read, s = _state(kind, rules)
    for check in CHECKS:
        if check.about == "state":
            part = check.part(s, *_values(check, s.engine.groups))
            yield from _obligation("state", check, part, kind, tuple(read.assumed))


def lookup(kind: str, rules: Rules) -> Iterator[Obligation]:
    """What a lookup finds for a request that waits."""
    read, s = _state(kind, rules)
    r = read.names.integer("request")
    read.assume(both(r >= 0, waits(s, r), s.computed(r) == 0))
    hits = get_computed_blocks(s, r)
    read.assume(*_window_lemmas(s.engine, r, hits))
    for check in CHECKS:
        if check.about == "lookup":
            values = _values(check, s.engine.groups)
            sight = (
                *(fact for i in values for fact in mentions(as_term(hits.at(0, i) == 0))),
                *_at_any(read, values),
            )
            part = check.part(s, r, hits, *values)
            with_care = (of_state(invariant, s).assumed() for invariant in WRITTEN if check.care)
            yield from _obligation("lookup", check, part, kind, (*read.assumed, *with_care, *sight))
