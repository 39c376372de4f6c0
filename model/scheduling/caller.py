"""The caller: what a scheduler may ask, and the ledger it keeps (vLLM's `Scheduler`).

An action has a *contract*, its preconditions by name, and an effect. The model promises nothing
about a call outside the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slotproof.model.language.algebra import (
    Bool,
    Function,
    Int,
    both,
    either,
    implies,
    ite,
    maximum,
    minimum,
    negate,
    within,
)
from slotproof.model.language.changes import Change, if_so, one
from slotproof.model.language.state import LOADING, PREEMPTED, RUNNING, UNKNOWN, WAITING, State
from slotproof.model.scheduling.worker import executed, is_written, roll_back, run_step, write_up_to
from slotproof.model.system.allocate_slots import Answer, Ask, allocate_slots
from slotproof.model.system.coordinator import cache_blocks, free, remove_skipped_blocks
from slotproof.model.system.pool import evict_blocks, reset_prefix_cache
from slotproof.model.system.prefix_cache import NO_HITS, Hits

Contract = dict[str, Bool]


@dataclass(frozen=True)
class Outcome:
    """What an action answers."""

    state: State
    granted: Bool = True
    hits: Hits = NO_HITS
    answer: Answer | None = None
    """`allocate` only."""
    pool: State | None = None
    """The state after the last step of the pool, where the caller's bookkeeping begins; None if the pool's
    steps are all there is, or none."""


def settled(s: State, r: Int) -> Int:
    """Tokens of r that are computed and no longer in flight."""
    return s.computed(r) - s.in_flight(r)


def waits(s: State, r: Int) -> Bool:
    """The request is to be admitted."""
    return either(s.status(r) == WAITING, s.status(r) == PREEMPTED)


def add_request_contract(s: State, request: Int, num_tokens: Int) -> Contract:
    return {
        "request-is-new": both(request >= 0, s.status(request) == UNKNOWN, s.num_tokens(request) == 0),
        "prompt-fits-the-model": within(1, num_tokens, s.engine.max_model_len + 1),
    }


def add_request(s: State, request: Int, num_tokens: Int) -> Outcome:
    """A request arrives with a prompt of `num_tokens` tokens, and waits."""
    return Outcome(
        s.replace(
            status=Change(s.status, one(request), WAITING),
            num_tokens=Change(s.num_tokens, one(request), num_tokens),
            prompt=Change(s.prompt, one(request), num_tokens),
        )
    )


def allocate_contract(s: State, request: Int, ask: Ask) -> Contract:
    r, total = request, s.computed(request) + ask.hits.tokens + ask.external
    admission = waits(s, r)
    return {
        "request-is-schedulable": both(r >= 0, either(admission, s.status(r) == RUNNING)),
        "counts-not-negative": both(ask.new >= 0, ask.lookahead >= 0, ask.external >= 0, ask.reserved >= 0),
        "a-step-has-work": ite(ask.delay_cache, both(ask.new == 0, ask.external > 0), ask.new > 0),
        "external-tokens-are-for-admission": implies(ask.external > 0, both(admission, s.computed(r) == 0)),
        "a-load-leaves-a-token": implies(ask.external > 0, total < s.num_tokens(r)),
        "prefill-stays-in-the-prompt": implies(admission, total + ask.new <= s.num_tokens(r)),
        "within-max-model-len": total + ask.new <= s.engine.max_model_len,
        "in-flight-is-bounded": s.in_flight(r) + ask.new <= s.engine.max_in_flight_tokens,
    }


def allocate(s: State, request: Int, ask: Ask) -> Outcome:
    """One `allocate_slots`; if granted, the scheduler advances the request by what it scheduled."""
    answer = allocate_slots(note_junction(s, request, ask.hits), request, ask)
    t = answer.state
    asked = minimum(answer.total + ask.new + ask.lookahead, s.engine.max_model_len)

    def advance() -> State:
        return t.replace(
            slots=Change(t.slots, one(request), lambda q: maximum(t.slots(q), asked)),
            computed=Change(t.computed, one(request), answer.total + ask.new),
            in_flight=Change(t.in_flight, one(request), lambda q: t.in_flight(q) + ask.new),
            unwritten=Change(t.unwritten, one(request), lambda q: t.unwritten(q) + ask.external + ask.new),
            status=Change(t.status, one(request), ite(ask.delay_cache, LOADING, RUNNING)),
        )

    state = s.read.when(answer.granted, advance, t)
    return Outcome(state, answer.granted, ask.hits, answer, pool=t)


def note_junction(s: State, request: Int, hits: Hits) -> State:
    """A request that was looked up keeps where its groups did not agree, also when slots are refused."""
    looked_up = both(waits(s, request), s.computed(request) == 0)
    return s.replace(junction=Change(s.junction, if_so(looked_up, one(request)), hits.junction))


def execute(s: State) -> Outcome:
    """The step that was made up goes to the worker, which writes what was scheduled and nothing else."""
    return Outcome(run_step(s), pool=s)


def complete_contract(s: State, request: Int, processed: Int, rejected: Int, sampled: Int) -> Contract:
    r = request
    ran = settled(s, r) + processed
    return {
        "request-runs": both(r >= 0, s.status(r) == RUNNING),
        "processed-was-in-flight": within(1, processed, s.in_flight(r) + 1),
        "only-drafts-are-rejected": both(
            within(0, rejected, processed + 1), ran - rejected >= minimum(ran, s.num_tokens(r))
        ),
        "sampled-follows-processed": both(
            sampled >= 0,
            s.num_tokens(r) + sampled <= s.engine.max_model_len,
            implies(sampled > 0, s.num_tokens(r) + sampled <= ran - rejected + 1),
        ),
    }


def complete(s: State, request: Int, processed: Int, rejected: Int, sampled: Int) -> Outcome:
    """`processed` tokens in flight have run: `rejected` drafts roll back, `sampled` tokens become final."""
    t = roll_back(write_up_to(s, request, settled(s, request) + processed), request, rejected)
    return Outcome(
        t.replace(
            in_flight=Change(t.in_flight, one(request), lambda q: t.in_flight(q) - processed),
            num_tokens=Change(t.num_tokens, one(request), lambda q: t.num_tokens(q) + sampled),
        )
    )


def cache_blocks_contract(s: State, request: Int, num_tokens: Int) -> Contract:
    r = request
    loads = s.status(r) == LOADING
    ran = minimum(s.num_tokens(r), settled(s, r))
    return {
        "request-loads-or-runs": both(r >= 0, either(loads, s.status(r) == RUNNING)),
        "published-tokens-have-run": ite(loads, num_tokens == s.computed(r), within(1, num_tokens, ran + 1)),
    }


def publish_computed(s: State, request: Int, num_tokens: Int) -> Outcome:
    """`cache_blocks`: a delayed load has arrived, and the request waits to be scheduled; or a running one's
    tokens that have run are published before its next allocation."""
    r = request
    loads = s.status(r) == LOADING
    t = cache_blocks(s, r, num_tokens)
    u = write_up_to(t, r, ite(loads, t.computed(r), executed(t, r)))
    return Outcome(u.replace(status=Change(u.status, if_so(loads, one(r)), WAITING)), pool=t)


def remove_skipped_contract(s: State, request: Int) -> Contract:
    return {"request-has-blocks": both(request >= 0, s.length(s.engine.row(request, 0)) > 0)}


def remove_skipped(s: State, request: Int) -> Outcome:
    """The scheduler releases a window's old blocks by itself."""
    return Outcome(remove_skipped_blocks(s, request, settled(s, request)))


def preempt_contract(s: State, request: Int) -> Contract:
    return {"request-runs": both(request >= 0, s.status(request) == RUNNING)}


def is_missed(s: State, row: Int, i: Int) -> Bool:
    """If its request went now, entry i of a row would be found by others, and nobody would write it."""
    b = s.table(row, i)
    return both(s.writer_row(b) == row, negate(is_written(s, b)), negate(s.is_private(b)))


def nothing_is_missed(s: State, request: Int) -> Contract:
    """Whoever takes a request's blocks lets the step run first that it is scheduled in; or takes it out of
    the step, and first evicts the blocks that this leaves unwritten."""
    read, engine = s.read, s.engine

    def is_kept(row: Int) -> Bool:
        return read.every(s.first(row), s.length(row), lambda i: negate(is_missed(s, row, i)))

    return {"nothing-is-missed": read.every(0, engine.groups.num, lambda g: is_kept(engine.row(request, g)))}


def preempt(s: State, request: Int) -> Outcome:
    """The request loses its blocks and what it computed, and waits as preempted."""
    return _leave(s, request, PREEMPTED)


def finish_contract(s: State, request: Int) -> Contract:
    return {"request-is-known": both(request >= 0, s.status(request) != UNKNOWN)}


def finish(s: State, request: Int) -> Outcome:
    """The request ends, in whatever state it is."""
    return _leave(s, request, UNKNOWN)


def _leave(s: State, r: Int, status: Int) -> Outcome:
    t = free(s, r)
    state = t.replace(
        status=Change(t.status, one(r), status),
        computed=Change(t.computed, one(r), 0),
        in_flight=Change(t.in_flight, one(r), 0),
        unwritten=Change(t.unwritten, one(r), 0),
        slots=Change(t.slots, one(r), 0),
    )
    return Outcome(state, pool=t)


def evict(s: State, named: Function) -> Outcome:
    """`evict_blocks`: the named blocks (block -> truth value) lose their hashes."""
    return Outcome(evict_blocks(s, named))


def reset(s: State) -> Outcome:
    """`reset_prefix_cache`."""
    return Outcome(reset_prefix_cache(s), s.num_held == 0)


def take_new_block_ids(s: State) -> Outcome:
    """The list of blocks to zero is handed to the worker."""
    return Outcome(s.replace(num_to_zero=lambda g: 0), pool=s)


def no_contract(s: State, **_: Any) -> Contract:
    """The action may be taken at any time."""
    return {}


@dataclass(frozen=True)
class Action:
    """A call of the protocol, in the model."""

    name: str
    contract: Callable[..., Contract]
    apply: Callable[..., Outcome]
    care: Callable[..., Contract] = no_contract
    """What a caller does beyond the contract so that *published-is-written* holds."""


ACTIONS = {
    action.name: action
    for action in (
        Action("add_request", add_request_contract, add_request),
        Action("allocate", allocate_contract, allocate),
        Action("execute", no_contract, execute),
        Action("complete", complete_contract, complete),
        Action("cache_blocks", cache_blocks_contract, publish_computed),
        Action("remove_skipped", remove_skipped_contract, remove_skipped),
        Action("preempt", preempt_contract, preempt, nothing_is_missed),
        Action("finish", finish_contract, finish, nothing_is_missed),
        Action("evict_blocks", no_contract, evict),
        Action("reset_prefix_cache", no_contract, reset),
        Action("take_new_block_ids", no_contract, take_new_block_ids),
    )
}
"""Every action of the protocol by its name."""
