"""What Hypothesis draws depends on the seed alone.

Left alone it now and then draws a constant that stands in a module that is loaded (not in installed ones): so
the same seed would play other calls where other modules are loaded, or slotproof is installed otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis.internal.conjecture.providers import CONSTANTS_CACHE, HypothesisProvider
from hypothesis.internal.constants_ast import Constants


@contextmanager
def by_the_seed_alone(often: int) -> Iterator[None]:
    """While this is open no constant is drawn but the number `often`. Whoever else uses Hypothesis in this
    process has it as it was afterwards."""
    provider: Any = HypothesisProvider
    original, only = provider._local_constants, Constants(integers={often})
    provider._local_constants = property(lambda self: only)
    CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        provider._local_constants = original
        CONSTANTS_CACHE.cache.clear()
