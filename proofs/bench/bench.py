"""How fast the allocator is, beside vLLM's and beside a loop that only counts: same calls, same answers.

Contenders take turns in every repetition, so that noise hits all alike, and medians are told. What they
answered is compared in every repetition: a fast path that is wrong wins nothing.
"""

from __future__ import annotations

import gc
import itertools
import os
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import msgspec

from slotproof.impl.protocol import Config, Group
from slotproof.impl.vllm.release import VERSION
from slotproof.proofs.bench.contenders import Batched, Contender, Counting, Single, Vllm

T = TypeVar("T")
BLOCK_SIZE = 16
FULL_AND_WINDOW = "full + window: "


class Size(msgspec.Struct, frozen=True):
    """How much is measured."""

    num_blocks: int = 100_000
    """Blocks in the pool."""
    running: tuple[int, ...] = (256, 1024, 8192)
    """Requests in a decode step."""
    prompt: int = 4096
    """Tokens of a prompt to admit; whole blocks."""
    steps: int = 64
    """Decode steps timed, for each number of requests."""
    admissions: int = 200
    """Prompts admitted and freed."""


FULL = Size()
QUICK = Size(num_blocks=4_000, running=(256, 1024), prompt=1024, steps=16, admissions=20)


class Row(msgspec.Struct, frozen=True):
    """What one thing takes, by contender."""

    name: str
    repetitions: int
    microseconds: dict[str, float]
    """Medians."""

    def times_faster(self, contender: str, other: str) -> float | None:
        """How much less time than another a contender takes; None if one of them was not timed."""
        ours, theirs = self.microseconds.get(contender), self.microseconds.get(other)
        return None if ours is None or theirs is None else theirs / ours


class Memory(msgspec.Struct, frozen=True):
    """Bytes on the host that the allocator keeps, by contender: what tracemalloc sees it allocate."""

    name: str
    bytes: dict[str, float]


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    cpu: str
    cores: int
    """That this process may use."""
    load: float
    """Average of the last minute, before the start."""
    versions: dict[str, str]


class Report(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    size: Size
    rows: tuple[Row, ...]
    memory: tuple[Memory, ...]
    partial: bool = False
    """It was interrupted: these are the rows that were measured by then."""


class Mismatch(Exception):
    """Two contenders did not do the same. The message is one line that names them and what they took."""


def measure(size: Size, vllm: bool, progress: Callable[[str], None] = lambda name: None) -> Report:
    """Time everything.

    Args:
        size: How much.
        vllm: Also time an installed vLLM.
        progress: Told what comes next.

    Raises:
        Mismatch: two contenders answered differently.
        ImportError: vLLM is not installed, or does not import.
    """
    config = Config(num_blocks=size.num_blocks, block_size=BLOCK_SIZE, max_model_len=2 * size.prompt)
    managers: list[Callable[[Config], Contender]] = [Vllm, Single] if vllm else [Single]
    where = machine()
    rows: list[Row] = []
    kept: tuple[Memory, ...] = ()
    partial = False
    try:
        for num_running in size.running:
            progress(f"decode step of {num_running:,}")
            rows.append(
                decode([make(config) for make in (*managers, Batched, Counting)], num_running, size.steps)
            )
        progress("two attention groups")
        rows += two_groups([*managers, Batched], size)
        progress("prompts without hits")
        rows += admit([make(config) for make in (*managers, Counting)], size)
        progress("prompts that are cached")
        rows += admit_cached([make(config) for make in managers], size)
        progress("memory")
        kept = tuple(memory(size, config, managers))
    except KeyboardInterrupt:
        partial = True
    return Report(where, size, tuple(rows), kept, partial)


def two_groups(managers: Sequence[Callable[[Config], Contender]], size: Size) -> Iterator[Row]:
    """Decode steps and admissions of an engine with full attention and a window of four blocks."""
    window = Group(block_size=BLOCK_SIZE, sliding_window=4 * BLOCK_SIZE)
    config = Config(
        num_blocks=size.num_blocks, block_size=BLOCK_SIZE, max_model_len=2 * size.prompt, groups=(window,)
    )
    for num_running in [n for n in size.running if 8 * n <= size.num_blocks]:
        yield decode([make(config) for make in managers], num_running, size.steps, FULL_AND_WINDOW)
    single = [make for make in managers if make is not Batched]
    yield from admit([make(config) for make in single], size, FULL_AND_WINDOW)
    yield from admit_cached([make(config) for make in single], size, FULL_AND_WINDOW)


def decode(contenders: Sequence[Contender], num_running: int, steps: int, engine: str = "") -> Row:
    """Steps in which one running request of sixteen takes a block in each group, and one fills one."""
    step = _Timings(f"{engine}decode step, {num_running:,} running", contenders)
    running = {}
    for contender in contenders:
        requests = [
            contender.request(str(n), _tokens(n, BLOCK_SIZE + n % BLOCK_SIZE)) for n in range(num_running)
        ]
        for request in requests:
            _admit(contender, request)
        contender.advance(requests, token=0)
        running[contender.name] = requests
    for repetition in range(steps):
        taken = {}
        for contender in _in_turn(contenders, repetition):
            requests = running[contender.name]
            answer = step.time(contender, contender.decode, requests)
            taken[contender.name] = contender.taken(answer)
            contender.advance(requests, token=repetition)
        _same(f"{step.name}, step {repetition + 1}", taken)
    return step.row()


def admit(contenders: Sequence[Contender], size: Size, engine: str = "") -> Iterator[Row]:
    """Prompts of which nothing is cached, one after the other into an idle pool, and freed again."""
    admitting = _Timings(f"{engine}admit {size.prompt:,} tokens, no hits: lookup and allocate", contenders)
    freeing = _Timings(f"{engine}free {size.prompt // BLOCK_SIZE} blocks", contenders)
    for repetition in range(size.admissions):
        tables = {}
        for contender in _in_turn(contenders, repetition):
            request = contender.request(str(repetition), _tokens(repetition, size.prompt))
            admitting.time(contender, _admit, contender, request)
            contender.advance([request], token=0)
            tables[contender.name] = contender.table(request)
            freeing.time(contender, contender.free, request)
        _same(f"{admitting.name}, prompt {repetition + 1}", tables)
    yield from (admitting.row(), freeing.row())


def admit_cached(contenders: Sequence[Contender], size: Size, engine: str = "") -> Iterator[Row]:
    """One prompt again and again, of which all is cached and idle: all but the last block is hit."""
    name = f"{engine}admit {size.prompt:,} tokens, all hits"
    looking, allocating = _Timings(f"{name}: lookup", contenders), _Timings(f"{name}: allocate", contenders)
    for repetition in range(size.admissions + 1):
        tables = {}
        for contender in _in_turn(contenders, repetition):
            request = contender.request(str(repetition), _tokens(0, size.prompt))
            if repetition == 0:  # to be cached
                _admit(contender, request)
            else:
                hit = looking.time(contender, contender.lookup, request)
                allocating.time(contender, contender.allocate, request, hit)
            contender.advance([request], token=0)
            tables[contender.name] = contender.table(request)
            contender.free(request)
        _same(f"{name}, prompt {repetition + 1}", tables)
    both = _Timings(f"{name}: lookup and allocate", contenders)
    for who, looked in looking.times.items():
        both.times[who] = [a + b for a, b in zip(looked, allocating.times[who], strict=True)]
    yield from (both.row(), looking.row(), allocating.row())


def memory(size: Size, config: Config, managers: Iterable[Callable[[Config], Contender]]) -> Iterator[Memory]:
    """What the manager keeps of a block, of a cached one, and of a request; the request's own tokens and
    hashes are not among it."""
    per_block, per_cached, per_request = {}, {}, {}
    blocks = size.prompt // BLOCK_SIZE
    num_long = size.num_blocks // 4 // blocks
    num_short = num_long * blocks
    for make in managers:
        contender, pool = _traced(make, config)
        long = [contender.request(f"long {n}", _tokens(n, size.prompt)) for n in range(num_long)]
        short = [contender.request(f"short {n}", _tokens(num_long + n, BLOCK_SIZE)) for n in range(num_short)]
        _, of_long = _traced(_admit, contender, *long)
        _, of_short = _traced(_admit, contender, *short)
        of_request = (of_short - of_long) / (num_short - num_long)
        per_block[contender.name] = pool / size.num_blocks
        per_cached[contender.name] = (of_long - num_long * of_request) / num_short
        per_request[contender.name] = of_request
    yield Memory("block of the pool, idle", per_block)
    yield Memory("more for a block that is held and cached", per_cached)
    yield Memory("running request, beside its blocks", per_request)


def machine() -> Machine:
    """This one."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2] for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = " ".join(names[0].split()) if names else cpu
    versions = {"Python": platform.python_version(), "numpy": metadata.version("numpy")}
    if VERSION is not None:
        versions["vLLM"] = VERSION
    return Machine(cpu, len(os.sched_getaffinity(0)), round(os.getloadavg()[0], 2), versions)


class _Timings:
    """Times of one thing, by contender."""

    def __init__(self, name: str, contenders: Iterable[Contender]) -> None:
        self.name = name
        self.times: dict[str, list[int]] = {contender.name: [] for contender in contenders}

    def time(self, contender: Contender, work: Callable[..., T], *what: Any) -> T:
        """Do it, without the garbage collector. Time is this thread's own: nothing here waits, and on a busy
        machine the clock on the wall would flatter whoever is done before the turn is over."""
        gc.disable()
        start = time.thread_time_ns()
        result = work(*what)
        taken = time.thread_time_ns() - start
        gc.enable()
        self.times[contender.name].append(taken)
        return result

    def row(self) -> Row:
        repetitions = {len(times) for times in self.times.values()}
        microseconds = {name: median(times) / 1000 for name, times in self.times.items()}
        return Row(self.name, min(repetitions), microseconds)


def _admit(contender: Contender, *requests: Any) -> None:
    for request in requests:
        contender.allocate(request, contender.lookup(request))


def _in_turn(contenders: Sequence[Contender], repetition: int) -> Sequence[Contender]:
    """Each is the first one equally often."""
    first = repetition % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def _tokens(number: int, length: int) -> range:
    """Tokens that differ between prompts."""
    return range(number << 20, (number << 20) + length)


def _same(where: str, answers: dict[str, Any]) -> None:
    for (name, answer), (other, its) in itertools.pairwise(answers.items()):
        if answer != its:
            raise Mismatch(f"{where}: {name} took {_short(answer)}, {other} {_short(its)}")


def _short(answer: Sequence[Any]) -> str:
    return f"{len(answer)} blocks, {str(list(answer[:8]))[1:-1]}, …"


def _traced(work: Callable[..., T], *what: Any) -> tuple[T, int]:
    """What it returns, and the bytes that it allocated and that are still in use."""
    gc.collect()
    tracemalloc.start()
    try:
        result = work(*what)
        gc.collect()
        return result, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
