"""The kinds of engines that are told apart: one group of full attention or with a window; or any others."""

from __future__ import annotations

from slotproof.impl.protocol import Config

FULL, SLIDING_WINDOW, HYBRID = "full", "sliding-window", "hybrid"
KINDS = (FULL, SLIDING_WINDOW, HYBRID)


def kind_of(config: Config) -> str:
    """The kind of an engine."""
    if not config.is_plain:
        return HYBRID
    return FULL if config.sliding_window is None else SLIDING_WINDOW
