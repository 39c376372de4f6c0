"""Every command that a page shows is run, and exits and prints as the page says.

A page says in a comment how many CPU seconds a command takes (`12 s`) and what it exits with, if not 0
(`exits 1`). Commands that install something are not run: tests do without the network.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import pytest

from slotproof.proofs.cli.main import slotproof

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "KNOWN.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
)


SLOW = 10
"""CPU seconds, as told, from which on a block is slow."""
PATIENCE, TIMES = 120, 15
"""Wall-clock seconds that any command may take on a busy machine, and times the seconds told beyond it."""
INSTALLS = ("python3.11", "pip", "make")
"""What begins a command that is not run."""


@dataclass(frozen=True)
class Command:
    """A line that is typed, and what its comment says of it."""

    line: str
    printed: tuple[str, ...] = ()
    """Lines that it prints, in their order; `…` stands for what is left out."""

    @cached_property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)

    @property
    def comment(self) -> str:
        return self.line.partition("  # ")[2] or self.line.partition(" # ")[2]

    @property
    def seconds(self) -> int:
        """The CPU seconds that a reader is told, 0 if none."""
        told = re.search(r"\b(\d+) s\b", self.comment)
        return int(told[1]) if told else 0

    @property
    def exit_code(self) -> int:
        told = re.search(r"\bexits (\d)", self.comment)
        return int(told[1]) if told else 0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    number: int
    """The line it begins on."""
    language: str
    lines: tuple[str, ...]

    @property
    def commands(self) -> list[Command]:
        """What is typed in it: every line of `sh`, or what follows `$ ` in `console`."""
        if self.language == "sh":
            return [Command(line) for line in self.lines]
        if self.language != "console":
            return []
        typed = [n for n, line in enumerate(self.lines) if line.startswith("$ ")]
        ends = [*typed[1:], len(self.lines)]
        return [
            Command(self.lines[start][2:], self.lines[start + 1 : end])
            for start, end in zip(typed, ends, strict=True)
        ]


def blocks(page: Path) -> list[Block]:
    """A page's fenced blocks, in their order."""
    found: list[Block] = []
    language, lines, start = None, list[str](), 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if language is None:
                language, lines, start = line.removeprefix("```"), [], number
            else:
                found.append(Block(str(page.relative_to(ROOT)), start, language, tuple(lines)))
                language = None
        elif language is not None:
            lines.append(line)
    assert language is None, f"{page}: a block that does not end"
    return found


def inline_commands(page: Path) -> list[str]:
    """The commands of slotproof in running text and tables."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    return [" ".join(found.split()) for found in re.findall(r"`(slotproof [^`]+)`", text)]


def runnable() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if any(not installs(c) for c in block.commands)]


def program(command: Command) -> str:
    """What is called, by the environment at hand rather than the page's."""
    return command.words[0].removeprefix("env/bin/")


def installs(command: Command) -> bool:
    return program(command) in INSTALLS


def parameter(block: Block) -> object:
    marks = [pytest.mark.slow] if sum(c.seconds for c in block.commands) > SLOW else []
    words = {word for command in block.commands for word in command.words}
    if words & {"vllm", "vllm-scheduler", "env/bin/pytest"}:
        marks.append(pytest.mark.vllm)
    return pytest.param(block, marks=marks, id=f"{block.page}:{block.number}")


def run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    start = {
        "slotproof": [sys.executable, "-c", "from slotproof.proofs.cli.main import main; main()"],
        "python": [sys.executable],
        "pytest": [sys.executable, "-m", "pytest"],
    }[program(command)]
    return subprocess.run(
        [*start, *command.words[1:]],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=PATIENCE + TIMES * command.seconds,
    )


@pytest.mark.parametrize("block", [parameter(block) for block in runnable()])
def test_a_block_does_what_it_says(block: Block, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    for file in blocks(ROOT / block.page):
        if file.language == "python" and (name := re.fullmatch(r"# (\w+\.py)", file.lines[0])):
            (tmp_path / name[1]).write_text("\n".join(file.lines) + "\n")
    for command in block.commands:
        if not installs(command):
            done = run(command, tmp_path)
            told = f"{command.line}\n{done.stdout}\n{done.stderr}"
            assert done.returncode == command.exit_code, told
            assert re.fullmatch(pattern(command.printed), done.stdout.rstrip("\n"), re.S), told


def pattern(printed: tuple[str, ...]) -> str:
    """What is printed, with `…` for anything; anything at all where a page shows nothing."""
    return ".*".join(map(re.escape, "\n".join(printed or "…").split("…")))


def test_pages_show_commands_of_every_kind() -> None:
    shown = {
        command.words[1]
        for block in runnable()
        for command in block.commands
        if program(command) == "slotproof"
    }
    assert shown >= {"prove", "gate", "explore", "replay", "bench", "faults"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_running_text_exist(page: Path) -> None:
    """They are run where they stand in a block; here their names and options are looked up."""
    for line in inline_commands(page):
        words = line.split()
        if words[1].startswith("-"):
            continue
        command = slotproof.get_command(click.Context(slotproof), words[1])
        assert command is not None, line
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    typed = [c.words[1] for block in blocks(page) for c in block.commands if program(c) == "make"]
    assert {*typed, *re.findall(r"`make ([a-z-]+)", page.read_text())} <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_lines_can_be_read(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
        assert (page.parent / link).exists(), link
    for file in re.findall(r"`((?:model|impl|proofs|tests)/[\w/.-]+\.\w+)`", text):
        assert (ROOT / file).exists(), file
    for line in text.splitlines():
        assert line.startswith("|") or len(line) <= 100, line


def test_contributing_lists_every_room() -> None:
    rooms = re.findall(r"^\| `([\w/]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.M)
    packages = (ROOT / package for package in ("model", "impl", "proofs"))
    there = {str(init.parent.relative_to(ROOT)) for p in packages for init in p.glob("*/__init__.py")}
    assert len(rooms) == len(set(rooms))
    assert set(rooms) == there
