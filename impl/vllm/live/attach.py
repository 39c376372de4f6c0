"""To every `KVCacheManager` that is made from now on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from slotproof.impl.vllm.parts import require_vllm


def on_every_manager(made: Callable[[Any], None]) -> Callable[[], None]:
    """Call `made` with each manager once it is made; returns what ends this.

    Raises:
        ImportError: vLLM is not installed or does not import.
    """
    require_vllm("vllm.v1.core.kv_cache_manager")
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    original = KVCacheManager.__init__

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        made(self)

    KVCacheManager.__init__ = init

    def end() -> None:
        if KVCacheManager.__init__ is init:
            KVCacheManager.__init__ = original

    return end
