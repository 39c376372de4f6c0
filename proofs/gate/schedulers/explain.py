"""Which missing rule explains what the scheduler of a release did: see `proofs/gate/explain.py`."""

from __future__ import annotations

from msgspec import structs

from slotproof.proofs.gate.explain import Finding, behaving, candidates
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure
from slotproof.proofs.gate.schedulers.shrink import Try

_KEYED = {"key_covers_lora_path": "lora", "key_covers_salt": "salt", "key_tags_kinds": "salt"}
"""Without such a rule requests share what they must not, and their KV shows it: what they must not have for a
campaign to go on."""


def explain(failure: ScheduleFailure, attempt: Try) -> Finding | None:
    """The finding that a failure is: without a rule the model answers as the scheduler does, and nothing is
    wrong, or else the KV."""
    shows_in_kv = None
    for names in candidates(failure.config):
        if len(names) > 1 and shows_in_kv is not None:
            break
        setup = structs.replace(failure.setup, config=behaving(failure.config, names))
        found = attempt(setup, failure.events)
        if found is None:
            return Finding(names, failure)
        if found.is_of_contents and not failure.is_of_contents and shows_in_kv is None:
            shows_in_kv = Finding(names, failure)
    return shows_in_kv


def left_plain(finding: Finding) -> tuple[str, ...]:
    """Fields of arrivals (`Arrival`) without which a campaign goes on."""
    return tuple(dict.fromkeys(_KEYED[name] for name in finding.names if name in _KEYED))
