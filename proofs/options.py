"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

from slotproof.proofs.isolation import CALL_SECONDS

json_file = click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the outcome as JSON; - is standard output.",
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
    type=click.FloatRange(0, min_open=True),
    default=CALL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="The longest that one call may take.",
)
