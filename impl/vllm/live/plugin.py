"""What vLLM loads in each of its processes (`vllm.general_plugins`): nothing, unless SLOTPROOF_WATCH names a
folder; then every `KVCacheManager` of the process is written down there."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

_recorders: list[Any] = []


def register() -> None:
    """Called by vLLM, once or more often in a process."""
    name = os.environ.get("SLOTPROOF_WATCH")
    if not name or _recorders:
        return
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    _recorders.append(None)  # vLLM may call again
    from slotproof.impl.vllm.live.attach import on_every_manager
    from slotproof.impl.vllm.live.recorder import Recorder

    def made(manager: Any) -> None:
        try:
            recorder = Recorder(manager, folder)
        except Exception as error:  # an engine is never stopped by who watches it
            print(f"slotproof: a manager is not recorded: {type(error).__name__}: {error}", file=sys.stderr)
            return
        _recorders.append(recorder)
        atexit.register(recorder.flush)

    on_every_manager(made)
