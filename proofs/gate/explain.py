"""Which missing rule explains what a release of vLLM did: without it the model answers as it does."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from slotproof.impl.protocol import Config
from slotproof.model.language.behaviours import BEHAVIOURS, BUGS
from slotproof.model.language.rules import RULES
from slotproof.proofs.gate.isolation import Isolated, Kind
from slotproof.proofs.gate.trial import Asked, Failure, compare_story, legal_story

_CANDIDATES = {
    **{name: BEHAVIOURS[name] for name in BUGS},
    **{name: f"without the rule: {rule['text']}" for name, rule in RULES.items()},
}

_LORA_PATH = "key_covers_lora_path"
"""Keys that lack it hide what else a key lacks (vllm#30931 beside vllm#44701)."""


@dataclass(frozen=True)
class Finding:
    """A difference, and what explains it: the first rule that does if it is off, or two at once."""

    names: tuple[str, ...]
    failure: Failure

    @property
    def line(self) -> str:
        """It in one line for people."""
        return "; and ".join(f"{name}: {_CANDIDATES[name]}" for name in self.names)


def candidates(config: Config) -> list[tuple[str, ...]]:
    """What may be missing beside what an engine's behaviours name."""
    left = [name for name in _CANDIDATES if name not in config.behaviours]
    pairs = [(_LORA_PATH, name) for name in left if _LORA_PATH in left and name != _LORA_PATH]
    return [*((name,) for name in left), *pairs]


def behaving(config: Config, names: tuple[str, ...]) -> Config:
    """The engine, for a model that behaves so too, or to which these rules are missing."""
    return msgspec.structs.replace(config, behaviours=(*config.behaviours, *names))


def explain(implementation: Isolated, failure: Failure, asked: Asked) -> Finding | None:
    """The finding that a difference is, if a missing rule explains all of its story."""
    calls = [step.call for step in failure.story]
    for names in candidates(failure.config):
        config = behaving(failure.config, names)
        story = legal_story(config, calls)
        # Without the rule the model may fail half way through the last call too, or find a hit that makes it
        # a call that nobody would make.
        made = len(story) + (failure.fault is Kind.RAISED and [e.call for e in story] == calls[:-1])
        if made == len(calls) and compare_story(implementation, config, story, asked)[1] is None:
            return Finding(names, failure)
    return None
