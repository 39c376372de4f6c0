"""`slotproof conform`: options that say nothing where they are given are refused, not passed over."""

from __future__ import annotations

import pytest

from slotproof.proofs.cli import main as cli


@pytest.mark.parametrize("option", ["--kind=full", "--case=full", "--paths=2000", "--trace=story.json"])
def test_a_pool_has_no_cases(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["slotproof", "conform", "--impl", "torch", "--pool", "1", option])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"slotproof: {option.partition('=')[0]} is about allocate_slots")
