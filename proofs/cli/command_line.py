"""Commands for people to type: copied as they are, they show the same thing again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.isolation import PATIENCE

DEFAULTS = {"--compare": Strictness.EXACT.value, "--device": "cpu", "--patience": PATIENCE}
"""Options that go without saying."""


def command_line(command: str, options: Mapping[str, object], *arguments: object) -> str:
    """A command with its arguments and options, quoted for a shell.

    Left out are options that are None, False, or as by default; True stands for a flag, and a tuple for an
    option that comes so often.
    """
    words = ["slotproof", command, *map(str, arguments)]
    for option, value in options.items():
        if value is None or value is False or value == DEFAULTS.get(option):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words.append(option)
            if each is not True:
                words.append(f"{each:.12g}" if isinstance(each, float) else str(each))
    return shlex.join(words)
