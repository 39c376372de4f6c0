"""The running reading: the model over Python integers, the oracle of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import Any

from slotproof.model.integers.dense import Dense, Stuck
from slotproof.model.integers.sparse import Sparse
from slotproof.model.integers.text import Text
from slotproof.model.language.engine import DENSE, Engine
from slotproof.model.language.groups import SLIDING_WINDOW, Group, some_groups
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.language.state import State, initial
from slotproof.model.scheduling.caller import ACTIONS, Outcome
from slotproof.model.system.allocate_slots import Ask
from slotproof.model.system.prefix_cache import Hits, hits_for

__all__ = ["ContractError", "Running", "Stuck", "Text"]


class ContractError(ValueError):
    """The caller asked for what its contract forbids; `broken` names the preconditions."""

    def __init__(self, call: str, broken: list[str]) -> None:
        super().__init__(f"{call}: outside the caller's contract: {', '.join(broken)}")
        self.broken = broken


class Running:
    """The model, run: a state and what its requests are made of.

    Args are the fields of a configuration, in blocks and tokens as in `Engine`. Without `groups` it has one,
    of full attention or with a `sliding_window`. With `ghosts` the ghost fields are kept, so that the
    invariants can be evaluated.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        max_model_len: int,
        block_size: int = 1,
        sliding_window: int | None = None,
        groups: Sequence[Group] = (),
        enable_caching: bool = True,
        watermark_blocks: int = 0,
        max_in_flight_tokens: int = 1 << 30,
        num_reprefillable: int = 0,
        retention_interval: int = DENSE,
        behaviours: tuple[str, ...] = (),
        rules: Rules | None = None,
        ghosts: bool = False,
    ) -> None:
        one = (
            Group(block_size) if sliding_window is None else Group(block_size, SLIDING_WINDOW, sliding_window)
        )
        all_groups = tuple(groups) or (one,)
        in_force = (Rules() if rules is None else rules).without(*(b for b in behaviours if b in RULES))
        self.read: Dense = (
            Dense(num_blocks, ghosts)
            if ghosts or in_force != Rules()
            else Sparse(num_blocks, gcd(*(group.block_size for group in all_groups)))
        )
        self.engine = Engine(
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            groups=some_groups(all_groups),
            scheduler_block_size=lcm(*(group.block_size for group in all_groups)),
            hash_block_size=gcd(*(group.block_size for group in all_groups)),
            enable_caching=enable_caching,
            watermark_blocks=watermark_blocks,
            max_in_flight_tokens=max_in_flight_tokens,
            rules=in_force,
            read=self.read,
            num_reprefillable=num_reprefillable,
            retention_interval=retention_interval,
            behaviours=frozenset(behaviours),
        )
        self.waived: frozenset[str] = frozenset()
        """Preconditions of the contract that a call may break."""
        self.state = self.read.settle(initial(self.engine))

    @property
    def requests(self) -> list[int]:
        """Every request that ever arrived, in order."""
        return list(self.read.texts)

    @property
    def rows(self) -> list[int]:
        """The rows of every request that ever arrived, in order."""
        engine = self.engine
        return [engine.row(r, g) for r in self.read.texts for g in range(engine.groups.num)]

    def hits(self, request: int, skip_cache: bool = False) -> Hits:
        """What a lookup finds for the request now."""
        return hits_for(self.state, request, skip_cache)

    def step(self, call: str, **fields: Any) -> Outcome:
        """Take an action, named and with the fields of the protocol's call.

        Raises:
            ContractError: the contract forbids it, by a precondition that is not waived; nothing has changed.
            Stuck: with a rule off, the call failed half way; nothing has changed.
        """
        action = ACTIONS[call]
        arguments = self._arguments(call, fields)
        contract = action.contract(self.state, **arguments)
        broken = [name for name, holds in contract.items() if not holds and name not in self.waived]
        if broken:
            raise ContractError(call, broken)
        texts, request = self.read.texts, fields.get("request", 0)
        before = texts.get(request)
        if call == "add_request":
            texts[request] = Text(fields["tokens"], fields.get("salt", 0), fields.get("lora", 0))
        elif call == "complete" and fields.get("sampled"):
            texts[request] = texts[request].grown(tuple(fields["sampled"]))
        try:
            outcome = action.apply(self.state, **arguments)
            self.state = self.read.settle(outcome.state)
        except Stuck:
            if before is not None:
                texts[request] = before
            elif call == "add_request":
                del texts[request]
            raise
        return replace(outcome, state=self.state)

    def take(self, state: State) -> None:
        """A state that the pool's steps led to is the state now."""
        self.state = self.read.settle(state)

    def is_careful(self, call: str, **fields: Any) -> bool:
        """Whether the caller takes the care that *published-is-written* needs of it (`Action.care`)."""
        return all(ACTIONS[call].care(self.state, **self._arguments(call, fields)).values())

    def _arguments(self, call: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The model's arguments: token counts for tokens, a hit for a lookup, a set as a function."""
        if call == "add_request":
            return {"request": fields["request"], "num_tokens": len(fields["tokens"])}
        if call == "complete":
            return {
                "request": fields["request"],
                "processed": fields["processed"],
                "rejected": fields.get("rejected", 0),
                "sampled": len(fields.get("sampled", ())),
            }
        if call == "cache_blocks":
            request, tokens = fields["request"], fields.get("tokens")
            return {
                "request": request,
                "num_tokens": self.state.computed(request) if tokens is None else tokens,
            }
        if call == "evict_blocks":
            return {"named": frozenset(fields["blocks"]).__contains__}
        if call == "allocate":
            asked = dict(fields)
            request = asked.pop("request")
            hits = self.hits(request, asked.pop("skip_cache", False))
            return {"request": request, "ask": Ask(hits=hits, **asked)}
        return fields
