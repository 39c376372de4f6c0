"""Words for people: numbers and nouns agree, and what others say is one line that no terminal obeys."""

from __future__ import annotations

import pytest

from slotproof.proofs.output.words import counted, error_line, one_line, verb


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("call",), "0 calls"),
        (1, ("call",), "1 call"),
        (2, ("call",), "2 calls"),
        (1, ("entry", "entries"), "1 entry"),
        (3, ("entry", "entries"), "3 entries"),
    ],
)
def test_a_noun_goes_with_its_number(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(number, *nouns) == text


def test_a_verb_goes_with_its_number() -> None:
    assert [verb(n, "loses its hash", "lose their hashes") for n in (1, 2)] == [
        "loses its hash",
        "lose their hashes",
    ]


def test_what_others_say_is_one_line() -> None:
    assert one_line("a\n \tb\x1b[2J\x07") == "a b\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}"
    assert error_line(KeyError("r7")) == "KeyError: 'r7'"
    assert error_line(ValueError()) == "ValueError"
