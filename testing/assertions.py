"""What a test can assert. A failure is an AssertionError that tells the story."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotproof.proofs.gate.isolation import Load


def assert_agrees(
    factory: str | Callable[..., Any], *, calls: int = 2000, seed: int = 0, ignore: Iterable[str] = ()
) -> None:
    """The implementation answers each call as the model does, and shows the same state after it.

    Args:
        factory: What makes an allocator (docs/adapters.md), or its name as `slotproof gate --impl` takes it.
        calls: How many are drawn, in sequences of at most 100.
        seed: The same seed draws the same calls.
        ignore: Fields that are not compared.

    Raises:
        AssertionError: it does not; the message has the calls that show it.
        ValueError: the factory is none.
    """
    _gate(factory, calls, seed, "exact", ignore)


def assert_consistent(
    factory: str | Callable[..., Any], *, calls: int = 2000, seed: int = 0, ignore: Iterable[str] = ()
) -> None:
    """The implementation's own answers and states break no statement, whatever the model would do.

    Args and raises as `assert_agrees`.
    """
    _gate(factory, calls, seed, "invariants", ignore)


def assert_proved(*statements: str, without: Iterable[str] = ()) -> None:
    """The statements are proved for every size; all of them, if none is named.

    What was proved before, of the same model, is not proved again.

    Args:
        statements: Their names, as in docs/proved.md.
        without: Rules that are switched off.

    Raises:
        AssertionError: one is refuted, or was not proved; the message names it.
        ValueError: a name is no statement's, or no rule's.
    """
    from slotproof.model.claims.statements import STATEMENTS
    from slotproof.model.language.rules import RULES, Rules
    from slotproof.proofs.prove.kept import load
    from slotproof.proofs.prove.prover import PROVED, prove

    for name in statements:
        if name not in STATEMENTS:
            raise ValueError(f"{name!r} is no statement: {', '.join(STATEMENTS)}")
    rules = tuple(without)
    for name in rules:
        if name not in RULES:
            raise ValueError(f"{name!r} is no rule: {', '.join(RULES)}")
    kept = load()
    report = prove(statements, rules=Rules().without(*rules), kept=kept)
    kept.save()
    if report.verdict != PROVED:
        named = statements or STATEMENTS
        verdicts = {name: report.of_statement(name) for name in named}
        raise AssertionError(
            "\n".join(f"{verdict}: {name}" for name, verdict in verdicts.items() if verdict != PROVED)
        )


def _gate(
    factory: str | Callable[..., Any], calls: int, seed: int, strictness: str, ignore: Iterable[str]
) -> None:
    from slotproof.proofs.gate.compare import Strictness
    from slotproof.proofs.gate.gate import campaign
    from slotproof.proofs.gate.implementations import loader
    from slotproof.proofs.gate.isolation import Isolated
    from slotproof.proofs.output.text import call_line

    load: Load = loader(factory) if isinstance(factory, str) else partial(_itself, factory)
    with closing(Isolated(load)) as implementation:
        report = campaign(
            implementation,
            calls=calls,
            seed=seed,
            strictness=Strictness(strictness),
            ignore=frozenset(ignore),
        )
    if report.failure is not None:
        failure = report.failure
        raise AssertionError(
            "\n".join(
                [
                    f"after {report.extent} (seed {seed}) it is not as it should be:",
                    *(f"  {call_line(step.call)}" for step in failure.story),
                    *(f"  {difference.line}" for difference in failure.differences),
                    *failure.traceback.splitlines(),
                ]
            )
        )
    if not report.calls:
        raise AssertionError("no call was made")


def _itself(factory: Callable[..., Any]) -> Callable[..., Any]:
    return factory
