"""A story as one HTML page to click through, which needs nothing but itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from slotproof.proofs.output.files import write_file
from slotproof.proofs.stories.told import Told

_UNSAFE = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})
"""Characters that could end a script element, as JSON may write them too."""


def write_page(path: Path, told: Told) -> None:
    """Write a story's page. Raises UserError if the file cannot be written."""
    write_file(path, page(told).encode())


def page(told: Told) -> str:
    """A story's page."""
    environment = Environment(
        loader=PackageLoader("slotproof.proofs.stories"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("story.html.j2").render(told=told, data=_embedded(told))


def _embedded(told: Told) -> Markup:
    """The story as JSON that is safe inside a script element."""
    text = msgspec.json.encode(told).decode()
    return Markup(text.translate(_UNSAFE))
