"""The targets that a user names: `torch`, `vllm`, or `MODULE:NAME`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from functools import reduce
from typing import Any

from slotproof.proofs.conform.pool_conform import PoolTarget
from slotproof.proofs.conform.targets.target import Target
from slotproof.proofs.output.errors import UserError


def named_pool(name: str) -> PoolTarget:
    """The pool of `torch` or `vllm`, or a target's own by MODULE:NAME.

    Raises:
        UserError: it is no name of a target, cannot be imported, or is no pool's.
    """
    if name == "torch":
        from slotproof.proofs.conform.targets.torch_pool import TorchPool

        return TorchPool()
    if name == "vllm":
        from slotproof.proofs.conform.targets.vllm_pool import VllmPool

        try:
            return VllmPool()
        except ImportError as error:
            raise UserError(f"--impl vllm: {error}") from None
    pool: PoolTarget = _found(name, ("name", "bounds", "pools", "call", "seen"))
    return pool


def named_target(name: str) -> Target:
    """The target. Modules are looked for in the current folder too.

    Raises:
        UserError: it is no name of a target, or cannot be imported.
    """
    if name == "torch":
        from slotproof.proofs.conform.targets.torch import TorchTarget

        return TorchTarget()
    if name == "vllm":
        from slotproof.proofs.conform.targets.vllm import VllmTarget

        try:
            return VllmTarget()
        except ImportError as error:
            raise UserError(f"--impl vllm: {error}") from None
    target: Target = _found(name, ("name", "cases", "modules", "run", "allocator"))
    return target


def _found(name: str, parts: Sequence[str]) -> Any:
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise UserError(f"--impl {name}: name torch, vllm, or MODULE:NAME")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
    except AttributeError:
        raise UserError(f"--impl {name}: {module} has no {attribute}") from None
    except Exception as error:
        raise UserError(
            f"--impl {name}: {module} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    target = found() if isinstance(found, type) else found
    missing = [part for part in parts if not hasattr(target, part)]
    if missing:
        raise UserError(f"--impl {name}: it is no target, it has no {', '.join(missing)}")
    return target
