"""An implementation may raise, hang, answer nonsense or die: it is said in one line, and we go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from slotproof.impl.protocol import AddRequest, Call, Config, Result, Snapshot, TakeNewBlockIds
from slotproof.proofs.gate.isolation import CannotStart, Fault, Isolated, Kind, Reply
from slotproof.proofs.gate.model_allocator import ModelAllocator
from slotproof.proofs.output.text import call_line

CONFIG = Config(num_blocks=4, block_size=2, max_model_len=8)
CALLS: list[Call] = [TakeNewBlockIds(), AddRequest(request=0, tokens=(1,)), TakeNewBlockIds()]
PATIENCE = 2.0


def allocator(on_add: Callable[[], Any]) -> type[ModelAllocator]:
    """A factory of allocators that do something else when a request is added."""

    class Allocator(ModelAllocator):
        def step(self, call: Call) -> Result:
            if isinstance(call, AddRequest):
                answer: Result = on_add()
                return answer
            return super().step(call)

    return Allocator


def run(factory: Any, config: Config = CONFIG) -> list[Reply | Fault]:
    with closing(Isolated(lambda: factory, PATIENCE)) as isolated:
        return list(isolated.run(config, CALLS))


def fail() -> None:
    raise RuntimeError("out of\ncheese")


class Mute(Exception):
    """Says nothing, not even when asked."""

    def __str__(self) -> str:
        raise RuntimeError


class MuteAnswer:
    def __repr__(self) -> str:
        raise RuntimeError


def fail_in_silence() -> None:
    raise Mute


def fail_in_colour() -> None:
    raise RuntimeError("\x1b[31mred\x07 \x9b2J\ud800")


def hang() -> None:
    time.sleep(60)


def wrong_types() -> Result:
    return Result(hits=("a",))  # type: ignore[arg-type]


def say_hello() -> Result:
    print("hello", flush=True)
    return Result()


def fork_and_die() -> None:
    """The child of the dead holds its pipes open."""
    if os.fork() == 0:
        time.sleep(5)
    os._exit(4)


FAULTS: dict[str, tuple[Callable[[], Any], Kind, str]] = {
    "raises": (fail, Kind.RAISED, "raised RuntimeError: out of cheese"),
    "raises what cannot be told": (
        fail_in_silence,
        Kind.RAISED,
        "raised Mute, whose text cannot be had: its __str__ raises RuntimeError",
    ),
    "raises what a terminal would obey": (
        fail_in_colour,
        Kind.RAISED,
        "raised RuntimeError: \N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER} ",
    ),
    "exits": (lambda: sys.exit(3), Kind.RAISED, "raised SystemExit: 3"),
    "interrupts": (lambda: exec("raise KeyboardInterrupt"), Kind.RAISED, "raised KeyboardInterrupt"),
    "hangs": (hang, Kind.HUNG, "the call hung for 2 s"),
    "exits at once": (lambda: os._exit(7), Kind.DIED, "the process died (exit code 7)"),
    "dies of a signal": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        Kind.DIED,
        "the process died (signal SIGKILL)",
    ),
    "dies and leaves a child": (fork_and_die, Kind.DIED, "the process died (exit code 4)"),
    "answers a word": (lambda: "banana", Kind.NONSENSE, "nonsense: 'banana' is no Result"),
    "answers what cannot be shown": (MuteAnswer, Kind.NONSENSE, "nonsense: a MuteAnswer is no Result"),
    "answers nothing": (lambda: None, Kind.NONSENSE, "nonsense: None is no Result"),
    "answers wrong types": (
        wrong_types,
        Kind.NONSENSE,
        "nonsense: ValidationError: Expected `int`, got `str` - at `$[0].hits[0]`",
    ),
    "answers an object": (
        lambda: Result(new_blocks=(object(),)),  # type: ignore[arg-type]
        Kind.NONSENSE,
        "nonsense: TypeError: <object object at",
    ),
    "answers huge numbers": (lambda: Result(new_blocks=(1 << 99,)), Kind.NONSENSE, "nonsense: OverflowError"),
}


@pytest.mark.parametrize(("act", "kind", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told_in_one_line(act: Callable[[], Any], kind: Kind, text: str) -> None:
    replies = run(allocator(act))
    assert [type(reply) for reply in replies] == [Reply, Reply, Fault]
    fault = replies[-1]
    assert isinstance(fault, Fault)
    assert fault.kind is kind
    assert fault.text.startswith(text)
    assert fault.text.isprintable()


def test_no_fault_no_trouble() -> None:
    replies = run(ModelAllocator)
    assert [type(reply) for reply in replies] == [Reply] * 4


@pytest.mark.parametrize("act", [fail, hang, lambda: os._exit(7), lambda: "banana", wrong_types])
def test_the_next_run_is_as_if_nothing_had_been(act: Callable[[], Any]) -> None:
    with closing(Isolated(lambda: allocator(act), PATIENCE)) as isolated:
        first = list(isolated.run(CONFIG, CALLS))
        second = list(isolated.run(CONFIG, CALLS[:1]))
    assert isinstance(first[-1], Fault)
    assert [type(reply) for reply in second] == [Reply, Reply]


def test_replies_that_nobody_wants_are_not_taken_for_the_next_run() -> None:
    with closing(Isolated(lambda: ModelAllocator, PATIENCE)) as isolated:
        with closing(isolated.run(CONFIG, CALLS)) as replies:
            next(replies)
        other = Config(num_blocks=9, block_size=1, max_model_len=4)
        reply = next(isolated.run(other, []))
    assert isinstance(reply, Reply)
    assert len(reply.state.ref_cnt) == 9


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupt_soon() -> None:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("act", [interrupt, interrupt_soon])
def test_an_interrupt_does_not_wait_for_a_call_that_hangs(act: Callable[[], None]) -> None:
    """It may come while the reply before is looked at, or while the reply is waited for."""

    def drive() -> None:
        with (
            closing(Isolated(lambda: allocator(hang), 60)) as isolated,
            closing(isolated.run(CONFIG, CALLS)) as replies,
        ):
            next(replies)
            next(replies)
            act()
            next(replies)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        drive()
    assert time.monotonic() - start < 1


def test_what_an_implementation_prints_is_not_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    run(allocator(say_hello))
    assert capfd.readouterr().out == ""


def factory_that(act: Callable[[], Any]) -> Callable[[Config], Any]:
    return lambda config: act()


def test_a_factory_that_raises_is_no_implementation() -> None:
    with pytest.raises(
        CannotStart, match=r"^the factory raised RuntimeError: out of cheese for Config\(num_b"
    ):
        run(factory_that(fail))


@pytest.mark.parametrize(
    ("act", "kind", "text"),
    [
        (hang, Kind.HUNG, "the factory hung for 2 s"),
        (lambda: os._exit(7), Kind.DIED, "the process died (exit code 7)"),
        (lambda: 5, Kind.RAISED, "raised AttributeError: 'int' object has no attribute 'snapshot'"),
    ],
)
def test_a_factory_that_fails(act: Callable[[], Any], kind: Kind, text: str) -> None:
    assert run(factory_that(act)) == [Fault(kind, text)]


def test_a_snapshot_that_is_none() -> None:
    class Blind(ModelAllocator):
        def snapshot(self) -> Snapshot:
            return None  # type: ignore[return-value]

    assert run(Blind) == [Fault(Kind.NONSENSE, "nonsense: None is no Snapshot")]


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (fail, "^RuntimeError: out of cheese$"),
        (lambda: os._exit(1), "^the process died during the import"),
        (hang, "^the import hung for 2 s: --patience gives it longer$"),
    ],
)
def test_an_implementation_that_cannot_be_imported(load: Callable[[], Any], text: str) -> None:
    with closing(Isolated(load, PATIENCE, PATIENCE)) as isolated, pytest.raises(CannotStart, match=text):
        isolated.start()


def test_an_import_may_take_longer_than_a_call() -> None:
    def load() -> Any:
        time.sleep(0.5)
        return ModelAllocator

    with closing(Isolated(load, 0.1)) as isolated:
        isolated.start()


def test_what_hangs_is_named() -> None:
    with (
        closing(Isolated(lambda: allocator(hang), 60)) as isolated,
        closing(isolated.run(CONFIG, CALLS)) as replies,
    ):
        next(replies)
        assert isolated.hangs == ""
        next(replies)
        threading.Timer(1.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(replies)
        assert isolated.hangs == f"{call_line(CALLS[1])} (for 1 s)"


def test_a_method_that_is_called_release_is_no_release() -> None:
    with closing(Isolated(lambda: ModelAllocator)) as implementation:
        implementation.start()
        assert implementation.about.release == ""
