"""A scheduler, put through a script once more."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import NamedTuple

from slotproof.proofs.gate.schedulers.episode import Episode, Make
from slotproof.proofs.gate.schedulers.failure import ScheduleFailure
from slotproof.proofs.gate.schedulers.gate import torch_scheduler
from slotproof.proofs.gate.schedulers.own import load
from slotproof.proofs.gate.schedulers.vllm import need_vllm, vllm_scheduler
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.traces.script import Script


class Again(NamedTuple):
    """What came of it."""

    episode: Episode
    failure: ScheduleFailure | None


def play_again(script: Script, scheduler: str, device: str = "cpu") -> Again:
    """Let the script's events happen to a fresh scheduler.

    Args:
        script: What happens.
        scheduler: To whom: `torch-scheduler`, `vllm-scheduler` or `MODULE:FACTORY`.
        device: Where the KV cache lives, "cpu" or "cuda".

    Raises:
        UserError: there is no such scheduler here, or it cannot have such an engine.
    """
    known: Counter[str] | None = None
    lacks: frozenset[str] | None = None
    make: Make = torch_scheduler
    if scheduler == "vllm-scheduler":
        need_vllm()
        known = Counter()
        make = partial(vllm_scheduler, known)
    elif scheduler != "torch-scheduler":
        _, make, lacks, _ = load(scheduler)
    try:
        episode = Episode(script.setup, make, device=device, known=known, lacks=lacks)
    except ValueError as error:
        raise UserError(f"{scheduler}: it cannot have the trace's engine: {error}") from None
    return Again(episode, episode.play(script.events))
