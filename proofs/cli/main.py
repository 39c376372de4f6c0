"""The command line. A module in `commands` is a subcommand, imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback

import click

from slotproof.proofs.cli import commands, interrupts
from slotproof.proofs.output.errors import Exit, UserError, is_interrupt
from slotproof.proofs.output.files import leave_unread
from slotproof.proofs.output.words import error_line, one_line

DEBUG = "SLOTPROOF_DEBUG"
INTERRUPTED = ("slotproof: interrupted", Exit.INTERRUPTED)


class _Commands(click.Group):
    """The modules of `commands`, each with a command of its own name (with - for _)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"{commands.__name__}.{name}"), name)
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="slotproof")
def slotproof() -> None:
    """Prove vLLM's allocate_slots and the block pool under it; gate implementations on what is proved.

    Exit codes: 0 proved, or agrees; 1 refuted, or disagrees; 2 the command line or a file cannot be
    used; 3 not proved, not covered, nothing compared, or an error of slotproof's own; 130 interrupted
    (SIGINT or SIGTERM), after what was known by then was told.
    """


def main() -> None:
    """The entry point of `slotproof`: every error is one line on standard error, and an exit code."""
    _open_standard_streams()
    interrupts.watch()
    sys.exit(run())


def _open_standard_streams() -> None:
    """A standard stream that was closed is one that nobody reads; no file that we open takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def run(arguments: list[str] | None = None) -> int:
    """Run a command line, by default the process's own; its exit code."""
    try:
        code = slotproof.main(arguments, prog_name="slotproof", standalone_mode=False)
        sys.stdout.flush()
        return int(code or Exit.GOOD)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "slotproof"
        return _complain(f"{where}: {error.format_message()} ({where} --help tells more)", Exit.USAGE)
    except click.ClickException as error:
        return _complain(f"slotproof: {error.format_message()}", Exit.USAGE)
    except UserError as error:
        return _complain(f"slotproof: {error}", Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        return _complain(*INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        leave_unread(sys.stdout.fileno())
        return Exit.GOOD
    except SystemExit:  # how click ends where nobody reads on; our commands return their codes
        return Exit.GOOD
    except OSError as error:
        return _complain(f"slotproof: output cannot be written: {error.strerror}", Exit.USAGE)
    except Exception as error:
        if is_interrupt(error):
            return _complain(*INTERRUPTED)
        if os.environ.get(DEBUG):
            traceback.print_exc()
        text = f"slotproof: an error of its own: {error_line(error)} ({DEBUG}=1 shows where)"
        return _complain(text, Exit.UNKNOWN)


def _complain(text: str, code: int) -> int:
    click.echo(one_line(text), err=True)
    return code
