"""The implementations that a user names: `torch`, `vllm`, or `MODULE:FACTORY`."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial, reduce, update_wrapper
from typing import Any

from slotproof.proofs.gate.isolation import Factory, Load
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.words import error_line


def loader(name: str, device: str = "cpu") -> Load:
    """How to import the named implementation. Modules are looked for in the current folder too.

    Args:
        device: where `torch` keeps its block tables, "cpu" or "cuda".

    Raises:
        UserError: it is no name of an implementation.
    """
    if name == "torch":
        return partial(_load_torch, device)
    if device != "cpu":
        raise UserError(f"--device {device}: only --impl torch has devices")
    if name == "vllm":
        return _load_vllm
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise UserError(f"--impl {name}: name torch, vllm, or MODULE:FACTORY")
    return partial(_load_named, module, attribute)


def _load_torch(device: str) -> Factory:
    import torch

    from slotproof.impl.allocator.adapter import torch_allocator

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU here")
    return update_wrapper(partial(torch_allocator, device=device), torch_allocator)


def _load_vllm() -> Factory:
    from slotproof.impl.vllm.adapter import VllmFactory

    try:
        return VllmFactory()
    except ImportError as error:
        raise UserError(f"--impl vllm: {error}") from None


def _load_named(module: str, attribute: str) -> Factory:
    option = f"--impl {module}:{attribute}"
    factory: Factory = named(option, module, attribute, "FACTORY(config) must return an allocator")
    return factory


def named(name: str, module: str, attribute: str, kind: str) -> Any:
    """A factory, imported; modules are looked for in the current folder too.

    Args:
        name: How the user named it, for messages.
        kind: What a factory must do.

    Raises:
        UserError: there is none.
    """
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise UserError(f"{name}: {module} cannot be imported: {error_line(error)}") from None
    try:
        factory = reduce(getattr, attribute.split("."), found)
    except AttributeError:
        raise UserError(f"{name}: {module} has no {attribute}") from None
    if not callable(factory):
        raise UserError(f"{name}: it is no factory: {kind}")
    return factory
