"""What every test runs under: repeatable draws, no network, and a reason for what is skipped."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Tests run side by side, one a core: more threads of PyTorch's in each only wait for each other."""

# A shell lets what it starts in the background ignore Ctrl-C, and some tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["told_by_hand"]

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without = {
        "vllm": None if importlib.util.find_spec("vllm") else "needs real vLLM 0.32.0: run `make gate-vllm`",
        "cuda": _no_gpu() if any(item.get_closest_marker("cuda") for item in items) else None,
    }
    for item in items:
        for marker, reason in without.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "needs a GPU that PyTorch can use"


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept between runs is not the user's, and lasts for the session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A test that reaches for the network fails; sockets between this machine's processes stay usable."""

    def refuse(address: Any, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"a test reached for the network: {address}; tests must do without")

    def locally(method: Callable[..., Any]) -> Callable[..., Any]:
        def connect(self: socket.socket, address: Any) -> Any:
            return method(self, address) if self.family == socket.AF_UNIX else refuse(address)

        return connect

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", locally(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", locally(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", refuse)
        yield
