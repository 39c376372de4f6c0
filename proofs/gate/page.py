"""A gate's report as one page: the verdict, the story to click through, what was reached and drawn."""

from __future__ import annotations

import re
from pathlib import Path

from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.running import ContractError
from slotproof.proofs.gate.gate import Report, Verdict
from slotproof.proofs.gate.trial import Failure
from slotproof.proofs.output.files import write_file
from slotproof.proofs.output.text import config_line
from slotproof.proofs.stories.page import environment
from slotproof.proofs.stories.telling import tell_ending
from slotproof.proofs.stories.told import Broken, Told
from slotproof.proofs.stories.view import legend, views

_BLOCK = r"^(?:block |ref_cnt\[|hashes\[)(\d+)"
"""How a difference names the block that it is about."""


def write_gate_page(path: Path, report: Report, impl: str, lines: list[str], command: str) -> None:
    """Write the page. Raises UserError if the file cannot be written.

    Args:
        lines: the report for people.
        command: what made it.
    """
    write_file(path, gate_page(report, impl, lines, command).encode())


def gate_page(report: Report, impl: str, lines: list[str], command: str) -> str:
    """The page's text."""
    found = None if report.failure is None else _told(report.failure)
    told = found if isinstance(found, Told) else None
    required = report.required or sorted(report.coverage)
    return (
        environment()
        .get_template("gate.html.j2")
        .render(
            impl=impl,
            verdict=report.verdict.value,
            good=report.verdict in (Verdict.AGREES, Verdict.CONSISTENT),
            lines=lines,
            told=told,
            untold=found if isinstance(found, str) else "",
            views=views(told) if told else [],
            legend=legend(told) if told else [],
            coverage=[(row, report.coverage[row], not report.coverage[row]) for row in required],
            reached=sum(1 for row in required if report.coverage[row]),
            extent=report.extent,
            engines=[config_line(config) for config in report.engines],
            command=command,
        )
    )


def _told(failure: Failure) -> Told | str:
    """The model's story up to the call that was answered otherwise; why it tells none, if it does not."""
    if not failure.story:
        return "no call of an allocator comes before the difference"
    if failure.followed is not None:
        return "what follows the implementation's own answers, the model does not tell"
    first = failure.differences[0]
    statement = first.statement or "agreement"
    fall = [difference for difference in failure.differences if difference.statement]
    reason = "; ".join(difference.line for difference in fall or failure.differences)
    promised = STATEMENTS[statement].text if statement in STATEMENTS else "it does as the model"
    ending = Broken(
        statement=statement,
        text=promised,
        claim=first.field,
        stage="compared after the call",
        reason=reason,
        blocks=tuple(int(block) for block in re.findall(_BLOCK, first.field)),
        requests=(),
    )
    try:
        return tell_ending(failure.config, tuple(step.call for step in failure.story), ending)
    except ContractError as error:
        return f"the model makes no such call ({error})"
