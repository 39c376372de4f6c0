"""Apalache's ITF layout of JSON: maps with keys that are not strings, and integers past 2**53.

https://apalache-mc.org/docs/adr/015adr-trace.html
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

EXACT_INTEGERS = 1 << 53
"""Integers below it, and above its negative, are plain JSON numbers."""


def itf_map(pairs: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    """A map with integers for keys."""
    return {"#map": [[key, value] for key, value in pairs]}


def to_itf(value: Any) -> Any:
    """JSON in the ITF layout for bools, integers, strings, lists and records of these; a tuple is a list."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= EXACT_INTEGERS:
        return {"#bigint": str(value)}
    if isinstance(value, list | tuple):
        return [to_itf(item) for item in value]
    if isinstance(value, dict):
        return {key: to_itf(item) for key, item in value.items()}
    return value


def from_itf(value: Any, place: str = "$") -> Any:
    """The value that JSON in the ITF layout stands for; tuples and sets come as lists.

    Raises:
        ValueError: a form is not ITF's; the message starts with its place, `$.states[0].tables`, say.
    """
    if isinstance(value, list):
        return [from_itf(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    form = next((key for key in value if key.startswith("#") and key != "#meta"), None)
    if form is None:
        return {key: from_itf(item, f"{place}.{key}") for key, item in value.items()}
    if len(value) > 1:
        raise ValueError(f"{place}: {form} stands alone, and {len(value)} fields are here")
    content = value[form]
    if form == "#bigint":
        return _integer(content, place)
    if form == "#map":
        return _map(content, place)
    if form in ("#tup", "#set"):
        if not isinstance(content, list):
            raise ValueError(f"{place}: {form} holds a list")
        return [from_itf(item, f"{place}[{i}]") for i, item in enumerate(content)]
    raise ValueError(f"{place}: {form} is no form of ITF that a trace has")


def _integer(content: Any, place: str) -> int:
    digits = content.removeprefix("-") if isinstance(content, str) else ""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 100):
        raise ValueError(f"{place}: #bigint holds an integer in a string, of 100 digits at most")
    return int(content)


def _map(content: Any, place: str) -> dict[Any, Any]:
    if not isinstance(content, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in content
    ):
        raise ValueError(f"{place}: #map holds a list of [key, value] pairs")
    found: dict[Any, Any] = {}
    for i, (key, item) in enumerate(content):
        plain = from_itf(key, f"{place}[{i}][0]")
        if isinstance(plain, list | dict):
            raise ValueError(f"{place}[{i}]: a key is an integer or a string")
        if plain in found:
            raise ValueError(f"{place}[{i}]: key {plain!r} comes twice")
        found[plain] = from_itf(item, f"{place}[{i}][1]")
    return found
