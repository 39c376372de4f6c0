"""The pytest plugin: a fixture that watches, and an option that has every test watched.

Nothing of vLLM, and nothing of slotproof's proofs, is imported before a test is watched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slotproof.proofs.watch.summary import Summary
    from slotproof.proofs.watch.watching import Watching

_TOTAL: pytest.StashKey[Summary] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("slotproof").addoption(
        "--slotproof-watch",
        action="store_true",
        help="follow every KVCacheManager of vLLM that a test makes, call by call, beside the model",
    )


@pytest.fixture
def slotproof_watch(request: pytest.FixtureRequest) -> Iterator[Watching]:
    """Every `KVCacheManager` that the test makes is followed: a call that is answered otherwise than the
    model does, or leaves another state, fails the test with its story."""
    from slotproof.proofs.watch.summary import Summary
    from slotproof.proofs.watch.watching import Watching

    try:
        watching = Watching()
    except ImportError as error:
        pytest.skip(str(error))
    try:
        yield watching
    finally:
        watching.close()
        stash = request.config.stash
        stash.setdefault(_TOTAL, Summary()).add(watching.summary)
    if watching.violations:
        lines = [line for violation in watching.violations for line in violation.lines]
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.fixture(autouse=True)
def _slotproof_watches_all(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--slotproof-watch"):
        request.getfixturevalue("slotproof_watch")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    total = config.stash.get(_TOTAL, None)
    if total is not None and total.managers:
        terminalreporter.section("slotproof")
        for line in total.lines:
            terminalreporter.write_line(line)
