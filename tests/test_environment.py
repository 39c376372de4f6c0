"""What the project's own files promise of tests and packages."""

from __future__ import annotations

import socket
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_no_test_reaches_the_network(method: str) -> None:
    with socket.socket() as s, pytest.raises(RuntimeError, match="reached for the network"):
        getattr(s, method)(("127.0.0.1", 9))


def test_a_local_socket_is_no_network(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as s:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        s.connect(str(tmp_path / "socket"))


def test_no_test_resolves_a_name() -> None:
    with pytest.raises(RuntimeError, match="reached for the network"):
        socket.create_connection(("localhost", 9))


def test_draws_repeat_and_are_not_kept() -> None:
    assert settings().derandomize
    assert settings().database is None


def test_every_package_is_installed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(("slotproof", *init.parent.relative_to(ROOT).parts))
        for room in ("model", "impl", "proofs", "testing")
        for init in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == found
