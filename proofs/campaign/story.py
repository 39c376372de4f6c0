"""A story: a sequence of calls on which a statement falls, told on the running reading."""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.impl.protocol import Call, Config
from slotproof.model.claims.check import Check
from slotproof.model.language.rules import Rules
from slotproof.model.running import ContractError
from slotproof.proofs.campaign.monitor import Monitor, Violation


@dataclass(frozen=True)
class Story:
    """Calls from an idle pool, all within the contract, the last of which breaks the statement."""

    config: Config
    calls: tuple[Call, ...]
    violation: Violation


def tell(
    config: Config,
    calls: tuple[Call, ...],
    rules: Rules,
    statement: str,
    more: tuple[Check, ...] = (),
    past_others: bool = False,
) -> Story | None:
    """The story of how these calls break a statement; None if they do not, or if one is outside the contract.

    Args:
        more: checks beside those of the statements.
        past_others: other statements may fall in earlier calls, as long as each call is carried out;
            without it, this one has to fall before any other.
    """
    monitor = Monitor(config, rules, more)
    for index, call in enumerate(calls):
        try:
            violations = monitor.step(call)
        except (ContractError, KeyError):  # KeyError: a call about a request that no longer arrives
            return None
        violation = next((v for v in violations if v.statement == statement), None)
        if violation is not None:
            return Story(config, calls[: index + 1], violation)
        half_way = any(v.statement == "no-rollback" for v in violations)
        if violations and (half_way or not past_others):
            return None
    return None
