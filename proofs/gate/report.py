"""What a gate found: lines for people, JSON for machines, JUnit for CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec

from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.gate import Report, Verdict
from slotproof.proofs.output.files import write_file, write_json
from slotproof.proofs.output.text import config_line
from slotproof.proofs.output.words import counted, one_line


class Commands(NamedTuple):
    """What to type next; each shows the same thing as here."""

    again: str
    """The same campaign."""
    more: str
    """A larger one."""
    replay: str
    """The failing trace alone."""


def lines(
    report: Report, impl: str, seed: int | None, commands: Commands, *, coverage: bool
) -> Iterator[str]:
    """The report for people: what matters most comes first.

    Args:
        seed: of a random campaign; None for an exhaustive one.
        commands: What to type next.
        coverage: With every row of coverage.
    """
    speed = f"{report.seconds:.1f} s, {report.calls / max(report.seconds, 1e-9):,.0f} calls/s"
    drawn = "every sequence" if seed is None else f"seed {seed}"
    done = f"{report.extent} ({drawn}, {speed})"
    said = [report.asked.installed, *report.asked.behaviours]
    who = f"{impl} ({', '.join(said)})" if report.asked.installed else impl
    yield from _agreement(report, who, done) if report.failure is None else _failure(report, who, done)
    if report.interrupted:
        yield f"  {_interrupted(report)}"
    if report.failure is not None:
        yield f"  again: {commands.again}"
        yield f"  trace of {counted(len(report.failure.story), 'call')}: {commands.replay}"
        yield from (f"  {line}" for line in report.failure.traceback.splitlines())
    elif report.verdict in (Verdict.UNCOVERED, Verdict.NOTHING):
        yield f"  give it more: {commands.more}"
    elif report.verdict is Verdict.KNOWN:
        yield f"  go on without: {commands.again} --known"
    if coverage:
        rows = report.required or sorted(report.coverage)
        width = max(map(len, rows), default=0)
        for row in rows:
            yield f"  {row:{width}}  {report.coverage[row]:>8}"


def _agreement(report: Report, who: str, done: str) -> Iterator[str]:
    if not report.calls:
        yield f"{who}: nothing was compared: {done}"
        return
    seen = counted(sum(1 for row in report.coverage if report.coverage[row]), "row")
    so_far = " so far" if report.interrupted else ""
    small = ", but the campaign is too small to tell" if report.verdict is Verdict.UNCOVERED else ""
    yield f"{who} {_verdict(report)}{so_far}{small}: {done}, {seen} of coverage reached"
    for line in _known(report):
        yield f"  {line}"
    if not report.interrupted:
        for row in report.uncovered:
            yield f"  never reached: {row}"


def _failure(report: Report, who: str, done: str) -> Iterator[str]:
    failure = report.failure
    assert failure is not None
    yield f"{who} {_verdict(report)} {failure.where}"
    for difference in failure.differences:
        yield f"  {difference.line}"
    if failure.history:
        yield f"  {failure.history}"
    yield f"  engine: {config_line(failure.config)}"
    for finding in report.findings:
        yield f"  found in {counted(len(finding.failure.story), 'call')}: {finding.line}"
    if report.asked.release and not report.explained:
        yield "  no missing rule explains the difference above"
    yield f"  found after {done}"


def _verdict(report: Report) -> str:
    """What is said of it in one go, with what was left out of the comparison."""
    ignored = f", {', '.join(sorted(report.asked.ignored))} ignored" if report.asked.ignored else ""
    if report.asked.strictness is Strictness.INVARIANTS:
        broken = "breaks a statement" if report.failure else "is consistent"
        return f"{broken} by itself, the model aside{ignored}"
    return f"{'disagrees' if report.failure else 'agrees'} with the model{ignored}"


def _interrupted(report: Report) -> str:
    at = f", while it waited for {report.hangs}" if report.hangs else ""
    return f"interrupted{at}: this is what was known by then"


def _known(report: Report) -> list[str]:
    """What was broken as KNOWN.md tells."""
    return [
        f"{counted(times, 'time')}, see KNOWN.md: {section}"
        for section, times in sorted(report.known.items())
    ]


def _asked(report: Report) -> dict[str, str | list[str]]:
    """What was gated, and what was asked of it."""
    asked = report.asked
    return {
        "installed": asked.installed,
        "compare": asked.strictness.value,
        "behaviours": list(asked.behaviours),
        "ignored": sorted(asked.ignored),
        "lacks": sorted(asked.lacks - asked.ignored),
    }


def write_gate_json(path: Path, report: Report, impl: str, seed: int | None, trace: Path) -> None:
    """The report as JSON; `partial` if it was stopped. Raises UserError if it cannot be written."""
    failure = report.failure
    value: dict[str, Any] = {
        "verdict": report.verdict.value,
        "partial": report.interrupted,
        "hangs": report.hangs,
        "impl": impl,
        **_asked(report),
        "seed": seed,
        "calls": report.calls,
        "sequences": report.sequences,
        "seconds": round(report.seconds, 3),
        "explained": report.explained,
        "findings": {" ".join(finding.names): finding.line for finding in report.findings},
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
        value["traceback"] = failure.traceback.splitlines()
    write_json(path, value)


def write_junit(path: Path, report: Report, impl: str) -> None:
    """The report as JUnit's XML: one case for agreement, one for coverage. Raises UserError likewise.

    One that was stopped has an error in a third case, `complete`.
    """
    problems: dict[str, list[str]] = {"agreement": [], "coverage": []}
    if report.failure is not None:
        problems["agreement"] = [difference.line for difference in report.failure.differences]
        problems["agreement"] += report.failure.traceback.splitlines()
    elif report.verdict is Verdict.NOTHING:
        problems["agreement"] = ["nothing was compared"]
    elif not report.interrupted:
        problems["agreement"] = _known(report) if report.verdict is Verdict.KNOWN else []
        problems["coverage"] = [f"never reached: {row}" for row in report.uncovered]
    if report.interrupted:
        problems["complete"] = [_interrupted(report)]
    found = [name for name, texts in problems.items() if texts]
    errors = found.count("complete")
    suite = ElementTree.Element("testsuite", name="slotproof gate", tests=str(len(problems)))
    suite.attrib |= {"failures": str(len(found) - errors), "errors": str(errors), "skipped": "0"}
    suite.set("time", f"{report.seconds:.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, said in _asked(report).items():
        text = said if isinstance(said, str) else " ".join(said)
        ElementTree.SubElement(properties, "property", name=name, value=one_line(text))
    for name, texts in problems.items():
        seconds = f"{report.seconds:.3f}" if name == "agreement" else "0.000"
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"slotproof.gate.{impl}", name=name, time=seconds
        )
        if texts:
            kind = "error" if name == "complete" else "failure"
            problem = ElementTree.SubElement(case, kind, message=one_line(texts[0]))
            problem.text = "\n".join(map(one_line, texts))
    write_file(path, ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True) + b"\n")
