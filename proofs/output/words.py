"""Words for people: counts with their nouns, and texts of others on one line that no terminal obeys."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: `1 call`, `2 calls`. The plural is given where it is not the noun and an s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def verb(number: int, singular: str, plural: str) -> str:
    """The form of a verb, or of any other word, that goes with so many."""
    return singular if number == 1 else plural


def one_line(text: str) -> str:
    """The text on one line, with a mark for each character that a terminal might obey and not show."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def error_line(error: BaseException) -> str:
    """An exception as one line, its type and what it says, whatever its `__str__` does."""
    kind = one_line(type(error).__name__)
    try:
        text = one_line(str(error))
    except BaseException as another:
        return f"{kind}, whose text cannot be had: its __str__ raises {one_line(type(another).__name__)}"
    return f"{kind}: {text}" if text else kind
