"""Fault by fault: a copy of the tree with the fault in it, and what the judges say."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

import slotproof.model.language.state as state
from slotproof.proofs.mutate.argued import why_none
from slotproof.proofs.mutate.faults import Fault, faults
from slotproof.proofs.mutate.judges import JUDGES
from slotproof.proofs.output.errors import UserError

MODEL = Path(state.__file__).resolve().parents[1]
ROOT = MODEL.parent
MUTATED = ("system", "scheduling", "claims")
"""The folders of the model that faults are put into."""
BROKEN = "does not run: "
SECONDS = 300
"""CPU seconds that one process of a judge may take; it has then seen something wrong."""
PATIENCE = 20
"""Wall-clock seconds for each of these, on a machine that is busy with something else."""


class Judged(msgspec.Struct, frozen=True):
    """A fault and what each judge saw of it, nothing if it saw none."""

    name: str
    diff: str
    seen: dict[str, str]
    why_none: str = ""
    """Why it makes no difference, if that is known (`argued.py`)."""

    @property
    def is_unseen(self) -> bool:
        """No judge saw it."""
        return not any(self.seen.values())

    @property
    def survives(self) -> bool:
        """No judge saw it, though it may make a difference."""
        return self.is_unseen and not self.why_none

    @property
    def is_broken(self) -> bool:
        """It is no fault that could be made unseen: the program does not run with it."""
        return any(said.startswith(BROKEN) for said in self.seen.values())


def sample(root: Path, count: int, seed: int) -> list[Fault]:
    """Faults drawn from all that the model's source under a root has room for."""
    files = sorted(path for folder in MUTATED for path in (root / "model" / folder).rglob("*.py"))
    every = [fault for path in files for fault in faults(str(path.relative_to(root)), path.read_text())]
    return Random(seed).sample(every, min(count, len(every)))


def judges() -> list[str]:
    """Those that can be asked here."""
    return [name for name in JUDGES if name != "gate on vllm" or importlib.util.find_spec("vllm")]


def judge_all(count: int, seed: int, path: Path, every: bool = False) -> Iterator[Judged]:
    """Judge a sample of faults, one by one; what the file knows of this source is not judged again, what is
    new is added to it. Without `every`, the judges after the first that sees a fault are not asked. All is
    about the source as it is at the start: it may change meanwhile.

    Raises:
        UserError: a judge sees something wrong in the model as it is, or the file is not of this source.
    """
    known = {judged.name: judged for judged in read(path)}
    with tempfile.TemporaryDirectory() as folder:
        tree = _copy(Path(folder))
        wrong = {name: said for name in judges() if (said := _ask(name, tree))}
        if wrong:
            raise UserError(f"without any fault, {next(iter(wrong.items()))}: mend that first")
        for fault in sample(tree, count, seed):
            source = (tree / fault.file).read_text()
            judged = known.get(fault.name)
            if judged is None or judged.diff != fault.diff(source):
                (tree / fault.file).write_text(fault.applied(source))
                seen: dict[str, str] = {}
                for name in judges():
                    if every or not any(seen.values()):
                        seen[name] = _ask(name, tree)
                (tree / fault.file).write_text(source)
                judged = Judged(fault.name, fault.diff(source), seen, why_none(fault))
                with path.open("ab") as file:
                    file.write(msgspec.json.encode(judged) + b"\n")
            yield judged


def read(path: Path) -> list[Judged]:
    """What was judged before; nothing if there is no file. Raises UserError if it is not ours."""
    if not path.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=Judged) for line in path.read_bytes().splitlines()]
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: is not a file of `slotproof mutate`: {error}: name another") from error


def _copy(folder: Path) -> Path:
    """The packages in a folder of their own, importable from `.pyroot`."""
    for name in ("model", "impl", "proofs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / ".pyroot" / "slotproof"
    package.mkdir(parents=True)
    for name in ("model", "impl", "proofs"):
        (package / name).symlink_to(Path("..") / ".." / name)
    return folder


def _ask(judge: str, tree: Path) -> str:
    """What a judge sees in a tree; an error of the model's own is seen by whoever runs it first."""
    environment = {**os.environ, "PYTHONPATH": str(tree / ".pyroot"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "slotproof.proofs.mutate.judges", judge]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=tree,
            capture_output=True,
            timeout=PATIENCE * SECONDS,
            preexec_fn=_limited,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PATIENCE * SECONDS} s"
    if done.returncode == -signal.SIGXCPU:
        return f"no answer in {SECONDS} s of CPU time"
    if done.returncode == 0:
        return ""
    if done.returncode == 1 and (said := done.stdout.decode().strip()):
        return said.splitlines()[-1]
    return BROKEN + (done.stderr.decode().strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _limited() -> None:
    """What runs from here on, and whatever it starts, may take so much CPU time and no more."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
