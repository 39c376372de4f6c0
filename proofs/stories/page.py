"""A story as one HTML page to click through, which needs nothing but itself.

The whole story is in the page, part under part; its script shows one part at a time.
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from slotproof.proofs.faults.catalogue import ISSUES
from slotproof.proofs.output.files import write_file
from slotproof.proofs.output.text import block_names
from slotproof.proofs.output.words import counted
from slotproof.proofs.stories.told import Told
from slotproof.proofs.stories.view import legend, ruler, views


def write_page(path: Path, told: Told, command: str = "") -> None:
    """Write a story's page. Raises UserError if the file cannot be written."""
    write_file(path, page(told, command).encode())


def page(told: Told, command: str = "") -> str:
    """A story's page, with the command that made it."""
    template = environment().get_template("story.html.j2")
    return template.render(told=told, views=views(told), legend=legend(told), command=command)


def environment() -> Environment:
    """What pages are made with."""
    made = Environment(
        loader=PackageLoader("slotproof.proofs.stories"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"linked": linked, "name": _name}
    made.globals |= {"counted": counted, "ruler": ruler}
    return made


def _name(block: int) -> str:
    return block_names((block,))


def linked(text: str) -> Markup:
    """A text with each `vllm#N` a link to that issue or pull request."""
    link = rf'<a href="{ISSUES}\1">vllm#\1</a>'
    return Markup(re.sub(r"vllm#(\d+)", link, str(escape(text))))
