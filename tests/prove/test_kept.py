"""Verdicts are kept from run to run for what has not changed, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import z3

from slotproof.model.language.rules import Rules
from slotproof.proofs.campaign.kinds import FULL
from slotproof.proofs.prove import kept, obligation, prover
from slotproof.proofs.prove.kept import Kept
from slotproof.proofs.prove.obligation import Obligation
from slotproof.proofs.prove.obligations import groups as all_groups
from slotproof.proofs.prove.obligations.groups import Group


@pytest.fixture(autouse=True)
def one_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two obligations are all there is, and no campaign is made."""
    monkeypatch.setattr(prover, "groups", lambda kinds: [Group("sums", FULL, sums)])
    monkeypatch.setattr(prover, "witnesses", lambda *_, **__: (frozenset(), []))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def sums(rules: Rules) -> Iterator[Obligation]:
    a, b = z3.Ints("a b")
    yield Obligation("commute", "usage", FULL, "pool", "", (), a + b == b + a)
    yield Obligation("grow", "usage", FULL, "pool", "", (b > 0,), a + b > a)


def falsehood(rules: Rules) -> Iterator[Obligation]:
    yield from sums(rules)
    yield Obligation("shrink", "usage", FULL, "pool", "", (), z3.Int("a") + 1 < z3.Int("a"))


def proved(earlier: Kept) -> tuple[list[str], int]:
    """The obligations that are proved, and how many of them are kept."""
    report = prover.prove(kinds=(FULL,), kept=earlier)
    found = [f for f in report.obligations if f.verdict == prover.PROVED]
    return [f.name for f in found], sum(f.kept for f in found)


def test_no_two_groups_have_one_name() -> None:
    names = [(group.name, group.kind) for group in all_groups.groups()]
    assert len(names) == len(set(names))


def test_a_second_run_keeps_everything_and_says_the_same() -> None:
    earlier = Kept()
    assert proved(earlier) == (["commute", "grow"], 0)
    earlier.save()
    assert proved(kept.load()) == (["commute", "grow"], 2)


def test_nothing_is_kept_for_a_run_that_is_given_nothing() -> None:
    proved(Kept())
    assert proved(Kept()) == (["commute", "grow"], 0)


def test_what_a_change_touches_is_proved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = Kept()
    proved(earlier)
    monkeypatch.setattr(prover, "source", lambda: "another")
    assert proved(earlier) == (["commute", "grow"], 2)
    monkeypatch.setattr(prover, "source", lambda: "a third")
    monkeypatch.setattr(prover, "groups", lambda kinds: [Group("sums", FULL, falsehood)])
    assert proved(earlier) == (["commute", "grow"], 2)
    assert proved(earlier) == (["commute", "grow"], 2), "and what is not proved is not kept"


def test_the_source_is_the_model_the_proofs_and_the_campaigns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = kept.source()
    assert before == kept.source()
    (tmp_path / "protocol.py").write_text("")
    monkeypatch.setattr("slotproof.impl.protocol.__file__", str(tmp_path / "protocol.py"))
    assert kept.source() != before


def test_another_version_has_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.place()
    monkeypatch.setattr(obligation, "TRIES", obligation.TRIES[:1])
    fewer_tries = kept.place()
    monkeypatch.setattr(z3, "get_full_version", lambda: "Z3 another")
    assert len({before, fewer_tries, kept.place()}) == 3


@pytest.mark.parametrize("text", [b"", b"{", b'{"problems": 3}', b"\xff"])
def test_a_file_that_is_not_ours_keeps_nothing(text: bytes) -> None:
    kept.place().parent.mkdir(parents=True)
    kept.place().write_bytes(text)
    assert kept.load() == Kept()


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Kept().save()
    assert kept.load() == Kept()


def test_what_other_runs_have_kept_stays() -> None:
    Kept(problems={"one": 1, "both": 1}).save()
    Kept(problems={"both": 2}, consistent={"other": True}).save()  # such as one that is --fresh
    assert kept.load() == Kept(problems={"one": 1, "both": 2}, consistent={"other": True})
