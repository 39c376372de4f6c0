"""What the tests of vLLM's scheduler share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from vllm_alone import new_scheduler


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Any]:
    """Makes vLLM's scheduler (`vllm_alone.new_scheduler`)."""
    return partial(new_scheduler, tmp_path)
