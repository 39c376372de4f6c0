"""Tasks in processes of their own, as many at once as there are processors."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

SILENCE_SECONDS = 900
"""Seconds without any answer after which the workers are killed, and what is open has none: more than a busy
machine takes for any task."""

Progress = Callable[[str, int, int], None]
"""Told what was done, and how many of how many."""


def quiet(label: str, done: int, total: int) -> None:
    """Progress that nobody is told of."""


class Task(Protocol):
    """Something to be worked out; it can be pickled, and so can what it answers."""

    @property
    def label(self) -> str:
        """What it is, for people."""
        ...

    def __call__(self) -> Any: ...


T = TypeVar("T", bound=Task)
_at_once: ContextVar[int | None] = ContextVar("at_once", default=None)


@contextmanager
def at_once(jobs: int | None) -> Iterator[None]:
    """Inside, so many tasks are worked on at once; None is as many as there are processors. No answer depends
    on it."""
    token = _at_once.set(jobs)
    try:
        yield
    finally:
        _at_once.reset(token)


def run(tasks: Iterable[T]) -> Iterable[tuple[T, Any]]:
    """Each task with its answer, as they come; None if it was killed. Every task has a process of its own, so
    that it starts from nothing and can be killed."""
    tasks = list(tasks)
    context = multiprocessing.get_context("fork")
    # Workers inherit what is blocked here: an interrupt ends this process, and that ends them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with context.Pool(
        max(1, min(len(tasks), _at_once.get() or os.cpu_count() or 1)), maxtasksperchild=1
    ) as pool:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        answers = pool.imap_unordered(_attempt, enumerate(tasks), chunksize=1)
        open_tasks = dict(enumerate(tasks))
        while open_tasks:
            try:
                index, answer = answers.next(timeout=SILENCE_SECONDS)
            except multiprocessing.TimeoutError:
                pool.terminate()
                break
            yield open_tasks.pop(index), answer
    yield from ((task, None) for task in open_tasks.values())


def _attempt(numbered: tuple[int, Task]) -> tuple[int, object]:
    index, task = numbered
    return index, task()
