"""A method with another source: how tests put a fault into code that is followed."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def recompiled(method: Any, changed: Callable[[str], str]) -> Any:
    """The method with its source changed, in the globals of its own module."""
    made: dict[str, Any] = {}
    source = changed(textwrap.dedent(inspect.getsource(method)))
    exec(compile(source, method.__name__, "exec"), method.__globals__, made)
    return made[method.__name__]
