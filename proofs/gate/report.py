"""What a gate found: lines for people, JSON for machines, JUnit for CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from slotproof.proofs.gate.gate import Report, Verdict
from slotproof.proofs.output.files import write_file, write_json
from slotproof.proofs.output.text import call_line, config_line


def lines(
    report: Report, impl: str, seed: int | None, trace: Path, again: str, more: str, *, coverage: bool
) -> Iterator[str]:
    """The report for people.

    Args:
        seed: of a random campaign; None for an exhaustive one.
        trace: where the failing trace is.
        again: the command that does the same again.
        more: the command for a larger campaign.
        coverage: with every row of coverage.
    """
    speed = f"{report.seconds:.1f} s, {report.calls / max(report.seconds, 1e-9):,.0f} calls/s"
    drawn = "every sequence" if seed is None else f"seed {seed}"
    done = f"{report.extent} ({drawn}, {speed})"
    if coverage:
        width = max(map(len, report.coverage), default=0)
        for row in report.required or sorted(report.coverage):
            yield f"  {row:{width}}  {report.coverage[row]:>8}"
    if report.failure is None:
        seen = sum(1 for row in report.coverage if report.coverage[row])
        small = ", but the campaign is too small to tell" if report.uncovered else ""
        yield f"{impl} agrees with the model{small}: {done}, {seen} rows of coverage reached"
        for line in _known(report):
            yield f"  {line}"
        for row in report.uncovered:
            yield f"  never reached: {row}"
        if report.uncovered:
            yield f"  give it more: {more}"
        if report.verdict is Verdict.KNOWN:
            yield f"  go on without: {again} --known"
        return
    failure = report.failure
    where = "when it is fresh" if failure.call is None else f"at: {call_line(failure.call)}"
    yield f"{impl} disagrees with the model {where}"
    for difference in failure.differences:
        yield f"  {difference.line}"
    yield f"  engine: {config_line(failure.config)}"
    yield f"  found after {done}"
    yield f"  again: {again}"
    manager = impl.removesuffix("-scheduler")
    yield f"  trace of {len(failure.story)} calls: slotproof replay {trace} --impl {manager}"


def _known(report: Report) -> list[str]:
    """What was broken as KNOWN.md tells."""
    return [f"{times} times, see KNOWN.md: {section}" for section, times in sorted(report.known.items())]


def write_gate_json(path: Path, report: Report, impl: str, seed: int | None, trace: Path) -> None:
    """The report as JSON. Raises UserError if it cannot be written."""
    failure = report.failure
    value: dict[str, Any] = {
        "verdict": report.verdict.value,
        "impl": impl,
        "seed": seed,
        "calls": report.calls,
        "sequences": report.sequences,
        "seconds": round(report.seconds, 3),
        "coverage": {row: report.coverage[row] for row in report.required or sorted(report.coverage)},
        "uncovered": report.uncovered,
        "known": dict(report.known),
        "differences": [
            {**msgspec.structs.asdict(difference), "line": difference.line}
            for difference in (failure.differences if failure else ())
        ],
    }
    if failure is not None:
        value["config"] = msgspec.to_builtins(failure.config)
        value["call"] = msgspec.to_builtins(failure.call)
        value["trace"] = str(trace)
    write_json(path, value)


def write_junit(path: Path, report: Report, impl: str) -> None:
    """The report as JUnit's XML: one case for agreement, one for coverage. Raises UserError likewise."""
    problems: dict[str, list[str]] = {"agreement": [], "coverage": []}
    if report.failure is not None:
        problems["agreement"] = [difference.line for difference in report.failure.differences]
    else:
        problems["agreement"] = _known(report) if report.verdict is Verdict.KNOWN else []
        problems["coverage"] = [f"never reached: {row}" for row in report.uncovered]
    failures = sum(1 for found in problems.values() if found)
    suite = ElementTree.Element(
        "testsuite", name="slotproof gate", tests="2", failures=str(failures), errors="0", skipped="0"
    )
    suite.set("time", f"{report.seconds:.3f}")
    for name, found in problems.items():
        seconds = f"{report.seconds:.3f}" if name == "agreement" else "0.000"
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"slotproof.gate.{impl}", name=name, time=seconds
        )
        if found:
            failure = ElementTree.SubElement(case, "failure", message=_printable(found[0]))
            failure.text = _printable("\n".join(found))
    write_file(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True) + b"\n")


def _printable(text: str) -> str:
    """XML has no control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)
