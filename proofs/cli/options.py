"""Options that several commands have."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from slotproof.impl.capabilities import SHOWN
from slotproof.proofs.gate.isolation import PATIENCE


class Seconds(click.FloatRange):
    """A number of seconds above zero; not `nan`, which no clock reaches."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail("nan is no number of seconds", param, ctx)
        return number


def typed(context: click.Context) -> str:
    """The command with the options that were given it, as a shell takes them."""
    words = ["slotproof", str(context.info_name)]
    for option in context.command.params:
        name, value = str(option.name), context.params[str(option.name)]
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [option.opts[0]] if value is True else [w for v in values for w in (option.opts[0], str(v))]
    return shlex.join(words)


json_file = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the outcome as JSON; - is standard output.",
)

jobs = click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Work on so many things at once; the verdict is the same.  [default: one a processor]",
)

device = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where --impl torch keeps its block tables, and torch-scheduler its KV cache.",
)

patience = click.option(
    "--patience",
    type=Seconds(),
    default=PATIENCE,
    show_default=True,
    metavar="SECONDS",
    help="The longest that one call may take. Importing the implementation may always take ten minutes.",
)

ignore = click.option(
    "--ignore",
    type=click.Choice(list(SHOWN)),
    multiple=True,
    metavar="FIELD",
    help=f"Leave a field out of the comparison, and say so in the verdict; repeatable: {', '.join(SHOWN)}.",
)

impl_scheduler = click.option(
    "--impl-scheduler",
    metavar="MODULE:FACTORY",
    help="Your own scheduler: FACTORY(setup) returns one with the methods add, schedule, answer and abort "
    "(see slotproof.impl.scheduler.protocol).",
)
