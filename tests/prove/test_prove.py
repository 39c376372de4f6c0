"""The proofs: everything is proved, nothing is proved for nothing, and every fault is told by a story."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import z3

from slotproof.impl.protocol import Config
from slotproof.model.claims.invariants import LEDGER, STEPWISE, WRITTEN
from slotproof.model.claims.statements import CHECKS, STATEMENTS
from slotproof.model.language import state
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.scheduling.caller import ACTIONS
from slotproof.model.system import pool
from slotproof.proofs.campaign.find import find
from slotproof.proofs.campaign.kinds import FULL, HYBRID, KINDS
from slotproof.proofs.campaign.monitor import Violation
from slotproof.proofs.campaign.story import Story, tell
from slotproof.proofs.prove import arithmetic
from slotproof.proofs.prove import prover as prove
from slotproof.proofs.prove.claims import of_state
from slotproof.proofs.prove.obligation import TRIES, Obligation, answer, is_proved
from slotproof.proofs.prove.obligations import calls, loops, steps
from slotproof.proofs.prove.obligations.group_loops import group_loop
from slotproof.proofs.prove.obligations.group_loops.ends import GROUP_LOOPS
from slotproof.proofs.prove.obligations.group_loops.induction import group_loop_step
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.symbols import Symbols


@pytest.fixture(scope="module")
def report() -> prove.Report:
    return prove.prove()


OF_SOME_KINDS = {"batch-in-order": {FULL}, "mask-serves-replay": {HYBRID}}
"""Statements that say nothing of the other kinds: of a batch, and of windows of which few blocks are kept."""


def test_every_statement_is_proved_for_every_kind(report: prove.Report) -> None:
    assert report.verdict == prove.PROVED
    assert report.violations == []
    for statement in STATEMENTS:
        kinds = {f.kind for f in report.obligations if f.statement == statement}
        assert kinds == OF_SOME_KINDS.get(statement, set(KINDS)), statement
        assert report.of_statement(statement) == prove.PROVED


def test_every_check_invariant_and_call_has_an_obligation(report: prove.Report) -> None:
    names = {f.name.split(": ")[1] for f in report.obligations}
    assert {check.name for check in CHECKS} <= names
    assert {invariant.name for invariant in (*STEPWISE, *LEDGER, *WRITTEN)} <= names
    assert set(ACTIONS) <= {f.name.split(":")[0] for f in report.obligations}


def test_an_assumption_that_no_campaign_reaches_is_vacuous() -> None:
    proved = prove.Proved("o", "usage", "full", "pool", "step take", True, 0.0)
    assert prove._finding(proved, frozenset({"step take"}), {}, Rules()).verdict == prove.PROVED
    assert prove._finding(proved, frozenset(), {}, Rules()).verdict == prove.VACUOUS


def test_what_is_not_proved_is_unknown_and_wins_over_proved() -> None:
    open_question = prove.Proved("o", "usage", "full", "pool", "", False, 0.0)
    finding = prove._finding(open_question, frozenset(), {}, Rules())
    assert finding.verdict == prove.UNKNOWN
    assert prove._worst([prove.PROVED, finding.verdict]) == prove.UNKNOWN
    assert prove._worst([]) == prove.UNKNOWN


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_group_proves_falsehood(kind: str) -> None:
    """From consistent assumptions `False` does not follow, with all the effort that a proof may take.

    Every proof looks for it with less (`is_consistent`), and says `vacuous` if it finds it.
    """
    with multiprocessing.get_context("fork").Pool(1) as workers:
        assert workers.apply(_inconsistent, (kind,)) == []


def _inconsistent(kind: str) -> list[str]:
    first = {group.name: next(iter(group.build(Rules())), None) for group in groups((kind,))}
    return [
        name for name, o in first.items() if o is not None and is_proved(replace(o, goal=z3.BoolVal(False)))
    ]


def test_contradictory_assumptions_are_vacuous() -> None:
    """Whatever a campaign reaches, a proof from a contradiction proves nothing."""
    with multiprocessing.get_context("fork").Pool(1) as workers:
        results = workers.apply(_proved_from_a_contradiction)
    assert results
    for p in results:
        assert p.unsat
        assert prove._finding(p, frozenset({"step take"}), {}, Rules()).verdict == prove.VACUOUS


def _proved_from_a_contradiction() -> list[prove.Proved]:
    group = next(group for group in groups(("full",)) if group.name == "take")

    def contradictory(rules: Rules) -> Iterator[Obligation]:
        for o in group.build(rules):
            n = z3.Int("n")
            yield replace(o, assumptions=(*o.assumptions, n > 0, n < 0))

    proved, consistent = prove._GroupTask(replace(group, make=contradictory), Rules())()
    assert not consistent
    return proved


def test_what_a_loop_needs_is_not_shown_by_what_it_achieves() -> None:
    """`0 <= front <= k` at a loop's end would show that the loop runs forward."""
    made = calls._make("finish", "full", Rules())
    needed = next(n for n in made.read.needed if "runs-forward" in n.name)
    assert needed.known < len(made.read.assumed)


def test_a_false_lemma_is_not_proved() -> None:
    goal = arithmetic.ceil(z3.Int("a"), z3.Int("b")) == arithmetic.floor(z3.Int("a"), z3.Int("b"))
    known = tuple(arithmetic.definitions(goal))
    assert not is_proved(Obligation("lemma", "arithmetic", "full", "arithmetic", "", known, goal))


@pytest.mark.parametrize(
    ("rule", "group", "claim"),
    [
        ("touch_references", partial(steps.loop_step, "adopt", "full"), "ref_cnt-as-stated"),
        ("popping_evicts", partial(steps.single_step, "take", "full"), "hash-is-the-writers"),
        ("null_block_set_aside", partial(steps.initial_state, "full"), "null-block-is-out-of-the-pool"),
        ("count_step_uncapped", partial(calls.call, "allocate", "sliding-window"), "count-is-exact"),
        ("hash_final_tokens_only", partial(calls.call, "allocate", "full"), "tokens-are-final"),
    ],
)
def test_a_proof_fails_without_the_rule_it_rests_on(rule: str, group: Any, claim: str) -> None:
    def unproved(rules: Rules) -> set[str]:
        made = [o for o in group(rules) if claim in o.name]
        return {o.name.split(": ")[-1] for o in made if not answer(o, TRIES[:2]).unsat}

    assert unproved(Rules()) == set()
    assert unproved(Rules().without(rule)) == {claim}


LEDGER_FIELDS = ("status", "computed", "in_flight", "unwritten", "written", "prompt", "junction", "slots")
"""What the caller and the worker keep beside the pool."""


def test_the_stepwise_invariants_do_not_read_what_only_the_caller_changes() -> None:
    """So a change of the caller's ledger, or of what is written, needs no proof that they are kept."""
    read = Symbols("sliding-window", Rules())
    s = read.state()
    ledger = {getattr(s, field).name() for field in (*LEDGER_FIELDS, "to_zero")}
    for invariant in STEPWISE:
        assert not ledger & _functions(of_state(invariant, s).goal()), invariant.name


def _functions(term: z3.ExprRef) -> set[str]:
    names = {term.decl().name()} if z3.is_app(term) else set()
    return names.union(*(_functions(child) for child in term.children()))


OF_A_STEP_OF_A_LOOP = {"touch", "put_back", "publish", "_insert", "_remove", "_unreference"}
"""Functions of the pool whose changes are proved where the loop is that makes them."""


def test_calls_are_made_of_the_steps_that_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no others, so that what is proved of each step, where what it requires holds, is so in every call;
    what a loop does is in a call by its invariant alone."""
    made: set[str] = set()
    original = state.State.replace

    def recorded(self: state.State, **changes: Any) -> state.State:
        frame = sys._getframe(1)
        if frame.f_globals["__name__"] == pool.__name__:
            made.add(frame.f_code.co_qualname.partition(".")[0])
        return original(self, **changes)

    monkeypatch.setattr(state.State, "replace", recorded)
    for kind in KINDS:
        for name in ACTIONS:
            calls._make(name, kind, Rules())
    for name in GROUP_LOOPS:
        list(group_loop_step(name, HYBRID, Rules()))
    called = made - {"free_blocks"}
    assert called == {name.replace("-", "_") for name in steps.STEPS} - {"add_request_step", "complete_step"}
    assert not called & OF_A_STEP_OF_A_LOOP


def test_only_steps_and_the_ledger_change_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the pool's steps a state changes only where no stepwise invariant looks, but for num_tokens,
    whose changes are proved as steps of their own."""
    changed: set[str] = set()
    original = state.State.replace

    def recorded(self: state.State, **changes: Any) -> state.State:
        if sys._getframe(1).f_globals["__name__"] not in (
            pool.__name__,
            loops.__name__,
            group_loop.__name__,
        ):
            changed.update(changes)
        return original(self, **changes)

    monkeypatch.setattr(state.State, "replace", recorded)
    for kind in KINDS:
        for name in ACTIONS:
            calls._make(name, kind, Rules())
    assert changed == {"num_tokens", "num_to_zero", *LEDGER_FIELDS}


FALLS = {
    "count_idle_hits": "exact-count",
    "key_covers_prefix": "hash-soundness",
    "free_tail_first": "queue-order",
    "watermark_spares_running": "watermark",
}


@pytest.mark.parametrize(
    "rule", [rule if rule in FALLS else pytest.param(rule, marks=pytest.mark.slow) for rule in RULES]
)
def test_without_a_rule_a_statement_falls_by_a_story_that_needs_the_fault(rule: str) -> None:
    stories = find(Rules().without(rule), RULES[rule]["kind"] or None)
    assert stories
    assert FALLS.get(rule, next(iter(stories))) in stories
    for statement, story in stories.items():
        assert tell(story.config, story.calls, Rules().without(rule), statement) is not None
        assert tell(story.config, story.calls, Rules(), statement) is None


def test_stories_are_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproof.proofs.campaign.find.ENOUGH_CALLS", dict.fromkeys(KINDS, 500))
    assert find(Rules().without("new_from_front")) == find(Rules().without("new_from_front"))


def once_it_is_told(told: Path, rules: Rules) -> Iterator[Obligation]:
    for _ in range(600):
        if told.exists():
            return
        time.sleep(0.1)
    yield Obligation("nothing was told", "usage", FULL, "pool", "", (), z3.BoolVal(False))


def test_a_fall_is_told_while_the_proofs_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    monkeypatch.setattr(prove, "groups", lambda kinds: [Group("waits", FULL, partial(once_it_is_told, told))])
    config = Config(num_blocks=3, block_size=1, max_model_len=3)
    story = Story(config, (), Violation("no-rollback", "take cannot fail", "stage 3", "allocate"))
    monkeypatch.setattr(prove, "find", lambda rules, kind: {"no-rollback": story})
    rules = Rules().without("count_idle_hits")
    found = prove.prove(kinds=(FULL,), rules=rules, fell=lambda statement, story: told.touch())
    assert (found.stories, found.verdict, found.obligations) == ({"no-rollback": story}, prove.REFUTED, [])
