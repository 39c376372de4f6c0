"""The gates of several releases of vLLM as one table.

`python -m slotproof.proofs.gate.releases REPORT.json ...`, as `make gate-releases` does: RELEASE.report.json
of an allocator, and RELEASE.scheduler.json of a scheduler, which the adapter fits in newer releases alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slotproof.proofs.output.errors import Exit


class Row(NamedTuple):
    """One release."""

    installed: str
    verdict: str
    """As the gate's own, or `explained`: it disagrees, and missing rules explain all that was found. Of a
    scheduler also `not gated`: the adapter does not fit it."""
    calls: str
    found: str
    """The rules that are missing, with vLLM's issues; or the difference that none explains."""


HEAD = Row("release", "verdict", "calls", "found")
GOOD = ("agrees", "explained", "not gated")
_SCHEDULER = ", scheduler"


def row_of(name: str, report: dict[str, Any]) -> Row:
    """The row of a JSON report that `slotproof gate --json` wrote; `name` if it says not what it is of."""
    found = [f"{rules}{_issues(line)}" for rules, line in report["findings"].items()]
    verdict = report["verdict"]
    installed = report["installed"] or name
    if report["impl"] == "vllm-scheduler":
        installed += _SCHEDULER
    if verdict == "disagrees" and report["explained"]:
        verdict = "explained"
    elif verdict == "disagrees":
        found.append(f"and {report['differences'][0]['line']}" if found else report["differences"][0]["line"])
    elif verdict == "uncovered":
        found.append(f"{len(report['uncovered'])} rows were never reached")
    return Row(installed, verdict, str(report["calls"]), "; ".join(found))


def _issues(line: str) -> str:
    issues = dict.fromkeys(re.findall(r"vllm#\d+", line))
    return f" ({', '.join(issues)})" if issues else ""


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The rows under one another."""
    rows = [HEAD, *rows]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  ".join((*cells, row.found)).rstrip()


def main(paths: list[str]) -> int:
    """Print the table. 0 if each release agrees, or shows what missing rules explain and nothing else; 1 if
    one does not; 2 if one left no report. A scheduler need leave none."""
    rows = []
    for path in map(Path, paths):
        name, of = path.name.removesuffix(".json").rsplit(".", 1)
        if path.is_file():
            rows.append(row_of(name, msgspec.json.decode(path.read_bytes())))
        elif of == "scheduler":
            rows.append(Row(name + _SCHEDULER, "not gated", "", "the adapter does not fit it: see above"))
        else:
            rows.append(Row(name, "no report", "", "it could not be gated: see above"))
    for line in table(rows):
        print(line)
    verdicts = {row.verdict for row in rows}
    if "no report" in verdicts:
        return Exit.USAGE
    return Exit.GOOD if verdicts <= set(GOOD) else Exit.BAD


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
