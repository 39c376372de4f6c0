"""The obligations as a list: none twice, none dropped, none built or proved from nonsense.

After a change that is meant to add or drop some, `python tests/prove/test_obligations.py` writes it anew.
"""

from __future__ import annotations

import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import z3

from slotproof.model.claims.check import Part
from slotproof.model.claims.statements import CHECKS
from slotproof.model.language.algebra import both
from slotproof.model.language.engine import Engine
from slotproof.model.language.rules import Rules
from slotproof.model.language.state import State
from slotproof.model.running import Running, Stuck
from slotproof.model.scheduling import caller
from slotproof.model.scheduling.caller import Outcome
from slotproof.model.scheduling.decode_step import Batch, row_contract
from slotproof.model.system import allocate_slots as slots
from slotproof.model.system import pool
from slotproof.model.system.allocate_slots import Ask, allocate_slots
from slotproof.proofs.campaign.kinds import FULL, SLIDING_WINDOW
from slotproof.proofs.prove import prover
from slotproof.proofs.prove.names import Names, bound, claimed
from slotproof.proofs.prove.obligation import Obligation, contradictory, is_proved
from slotproof.proofs.prove.obligations import batch as batches
from slotproof.proofs.prove.obligations import calls
from slotproof.proofs.prove.obligations.groups import Group, groups
from slotproof.proofs.prove.symbols import Symbols, terms_without_truth

KEPT = Path(__file__).parent / "obligations.txt"


def listed() -> list[str]:
    """A line for each obligation: kind, statement, name, what a campaign must reach (`-`: nothing), how many
    assumptions and hints it has, and whether it holds by definition (its goal simplifies to true: what a
    step makes is what is claimed of it)."""
    lines = []
    for group in groups():
        for o in group.build(Rules()):
            note = ", by definition" if o.is_by_definition else ""
            about = f"{o.kind} | {o.statement} | {o.name} | {o.witness or '-'}"
            lines.append(f"{about} | {len(o.assumptions)} assumptions{note}")
    return sorted(lines)


@pytest.fixture(scope="module")
def now() -> list[str]:
    with multiprocessing.get_context("fork").Pool(1) as workers:  # a context of its own
        return workers.apply(listed)


def test_none_is_there_twice(now: list[str]) -> None:
    names = Counter((line.split(" | ")[0], line.split(" | ")[2]) for line in now)
    assert [name for name, count in names.items() if count > 1] == []


def test_none_has_been_dropped_added_or_given_other_hints(now: list[str]) -> None:
    kept = KEPT.read_text().splitlines()
    different = sorted(set(kept) ^ set(now))
    assert different == [], "if that is meant: `python tests/prove/test_obligations.py` writes the list anew"


def test_a_term_has_no_truth_in_the_proof_reading() -> None:
    def half(s: State) -> Iterator[Obligation]:
        held, free = z3.Ints("held free")
        part = Part(True, held + free == s.engine.num_blocks - 1 and s.engine.num_blocks < 100_000)
        yield Obligation("half", "usage", FULL, "pool", "", (), part.claim)

    def build(rules: Rules) -> Iterator[Obligation]:
        _, s = calls._state(FULL, rules)
        yield from half(s)

    with pytest.raises(TypeError, match="not true or false"):
        Group("half", FULL, build).build(Rules())
    (quiet,) = build(Rules())
    assert "100000" not in str(quiet.goal), "outside, Z3 drops a half in silence"


@pytest.mark.parametrize("ask", [lambda a: not a, lambda a: a or True, lambda a: 1 if a else 2, bool])
def test_whatever_asks_for_it(ask: Callable[[Any], Any]) -> None:
    a = z3.Int("a") == z3.Int("b")
    with terms_without_truth(), pytest.raises(TypeError):
        ask(a)


def test_a_misspelled_field_is_no_field() -> None:
    s = Running(num_blocks=3, block_size=1, max_model_len=3).state
    with pytest.raises(TypeError, match="no field num_frees"):
        s.replace(num_frees=1)
    assert isinstance(s.engine, Engine)


@pytest.mark.parametrize(
    "step",
    [
        lambda s: pool.take(s, -2, 1),
        lambda s: pool.pad(s, 0, -1),
        lambda s: pool.pad(s, -1, 1),
        lambda s: pool.release(s, -1, 0),
        lambda s: pool.clear_table(s, -2),
    ],
)
def test_what_a_step_is_proved_for_it_requires(step: Callable[[State], State]) -> None:
    with pytest.raises(Stuck):
        step(Running(num_blocks=3, block_size=1, max_model_len=3).state)


def test_two_unknowns_have_two_names() -> None:
    names = Names()
    names.integer("n")
    for taken in (names.integer, names.truth, names.function):
        with pytest.raises(ValueError, match="n: there is an unknown of that name"):
            taken("n")
    for name in ("n!1", claimed("n", 0).decl().name(), bound("n", 0).decl().name()):
        with pytest.raises(ValueError, match="marks"):
            names.integer(name)
    assert len({names.fresh("n"), names.fresh("n"), *map(str, (claimed("n", 1), bound("n", 1)))}) == 4


def test_obligations_take_their_unknowns_from_one_place() -> None:
    """None is made by hand, with a name that another might have."""
    for path in Path(batches.__file__).parent.rglob("*.py"):
        assert not re.findall(r"z3\.(?:Ints?|Bools?|Function)\(", path.read_text()), path.name


def stricter_row(s: State, batch: Batch, j: Any) -> Any:
    r = batch.request(j)
    return both(row_contract(s, batch, j), s.computed(r) + 1 < s.engine.max_model_len)


@pytest.mark.parametrize("entry", [0, 1])
def test_a_refusal_is_looked_at_from_the_first_live_entry_on(entry: int) -> None:
    """A check that started one entry late would be proved as well."""
    s = Running(num_blocks=4, block_size=1, max_model_len=3).state
    s = s.replace(table=lambda q, i: 1 + i, length=lambda q: 2)
    t = s.replace(table=lambda q, i: 3 if i == entry else s.table(q, i))
    refused = Outcome(t, granted=False, answer=allocate_slots(s, 0, Ask(new=2)))
    check = next(check for check in CHECKS if check.name == "requests-unchanged")
    held = [check.holds(s, 0, Ask(new=2), refused, 0, i) for i in (0, 1)]
    assert held == [i != entry for i in (0, 1)]


@pytest.mark.parametrize(
    ("module", "fault", "group", "check"),
    [
        (
            slots,
            {"remove_skipped_blocks": lambda s, r, n: s.replace(first=lambda q: s.first(q) + 1)},
            "allocate",
            "stage-0-is-no-trace",
        ),
        (
            caller,
            {"reset_prefix_cache": lambda s: s.replace(block_hash=lambda b: 0)},
            "reset_prefix_cache",
            "refused-reset-keeps-hashes",
        ),
        (batches, {"row_contract": stricter_row}, "batch", "contract-asks-no-more"),
    ],
)
def test_a_fault_that_only_the_gate_saw_is_not_proved(
    module: Any, fault: dict[str, Any], group: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = SLIDING_WINDOW if module is slots else FULL
    of_group = next(g for g in groups((kind,)) if g.name == group)

    def unproved() -> set[str]:
        found = (o for o in of_group.build(Rules()) if o.name.endswith(f": {check}"))
        return {o.name.split(": ")[1] for o in found if not is_proved(o)}

    assert unproved() == set()
    for name, replacement in fault.items():
        monkeypatch.setattr(module, name, replacement)
    if module is slots:  # the release no longer waits for stage 0
        monkeypatch.setattr(Symbols, "when", lambda read, condition, then, otherwise: then())
    assert unproved() == {check}


def test_a_hint_that_is_false_makes_its_proofs_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hint differs from check to check: every set of assumptions is looked at."""
    check = "hit-is-proper"
    hinted = calls._obligation

    def lying(where: str, of: Any, part: Part, kind: str, known: tuple[Any, ...]) -> Iterator[Obligation]:
        yield from hinted(where, of, part, kind, (*known, z3.BoolVal(False)) if of.name == check else known)

    group = next(group for group in groups((FULL,)) if group.name == "lookup")
    assert contradictory(group.build(Rules())) == set()
    monkeypatch.setattr(calls, "_obligation", lying)
    task = prover._GroupTask(group, Rules(), frozenset())
    with multiprocessing.get_context("fork").Pool(1) as workers:
        proved, _ = workers.apply(task)
    assert {p.name for p in proved if p.witness == prover.CONTRADICTION} == {f"lookup: {check}"}


def test_a_proof_by_cases_is_no_contradiction() -> None:
    n, goal = z3.Int("n"), z3.BoolVal(True)
    case = Obligation("zero", "usage", FULL, "pool", "", (n == 0,), goal)
    cases = [case, replace(case, name="other", assumptions=(n != 0,))]
    assert contradictory(cases) == set()
    assert contradictory([*cases, replace(case, name="no", assumptions=(n < 0, n > 0))]) == {"no"}


if __name__ == "__main__":
    KEPT.write_text("".join(f"{line}\n" for line in listed()))
