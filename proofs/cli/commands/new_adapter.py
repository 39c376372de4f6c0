"""`slotproof new-adapter`: a small allocator or scheduler, to put one's own in its place."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from slotproof.proofs import gate
from slotproof.proofs.output.errors import Exit, UserError
from slotproof.proofs.output.files import write_file


@click.command("new-adapter")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--scheduler", is_flag=True, help="A scheduler, not an allocator.")
def new_adapter(path: Path, scheduler: bool) -> int:
    """Write PATH, a Python file: a complete small allocator behind the gate (docs/adapters.md explains it).

    Then `slotproof gate --impl MODULE:Paged --compare counts` gates it, where MODULE is the file's name; a
    scheduler is gated by `slotproof gate --impl-scheduler MODULE:PrefillFirst`.
    """
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UserError(f"{path}: name a Python module, such as my_adapter.py")
    if path.exists():
        raise UserError(f"{path}: is there already, and is left as it is: name another file")
    template, options = ("adapter", f"--impl {path.stem}:Paged --compare counts")
    if scheduler:
        template, options = ("scheduler", f"--impl-scheduler {path.stem}:PrefillFirst")
    write_file(path, (files(gate) / "templates" / f"{template}.py.txt").read_bytes())
    click.echo(f"{path} is written: slotproof gate {options}")
    return Exit.GOOD
