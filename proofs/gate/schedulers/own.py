"""A user's own scheduler, `MODULE:FACTORY`: loaded, made, and gated by its own steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from slotproof.impl.device.worker import Worker
from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import CAPABILITIES, GatedScheduler, Setup
from slotproof.proofs.gate.compare import Strictness
from slotproof.proofs.gate.gate import Progress
from slotproof.proofs.gate.implementations import named
from slotproof.proofs.gate.schedulers.episode import Make, MakeWorker
from slotproof.proofs.gate.schedulers.gate import ScheduleReport, campaign
from slotproof.proofs.gate.schedulers.workload import fit, setups
from slotproof.proofs.gate.trial import Asked
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.words import error_line, one_line

_METHODS = ("add", "schedule", "answer", "abort", "reset")


class Own(NamedTuple):
    """A scheduler that somebody named."""

    name: str
    make: Make
    lacks: frozenset[str]
    installed: str
    """What it says of itself."""


def load(name: str) -> Own:
    """The scheduler by its name. Modules are looked for in the current folder too.

    Raises:
        UserError: there is none, or it lacks what nobody knows.
    """
    option = f"--impl-scheduler {name}"
    module, colon, attribute = name.partition(":")
    if not (colon and module and attribute):
        raise UserError(f"{option}: name MODULE:FACTORY")
    factory: Any = named(option, module, attribute, "FACTORY(setup) must return a scheduler")
    lacks = getattr(factory, "lacks", ())
    strange = (
        [repr(each) for each in lacks if each not in CAPABILITIES] if not isinstance(lacks, str) else [lacks]
    )
    if strange:
        raise UserError(f"{option}: lacks names {strange[0]}: name some of {', '.join(CAPABILITIES)}")
    lacks = frozenset([lacks] if isinstance(lacks, str) else lacks)
    installed = getattr(factory, "installed", "")
    return Own(
        name,
        _maker(option, factory, lacks),
        lacks,
        one_line(installed) if isinstance(installed, str) else "",
    )


def _maker(option: str, factory: Callable[[Setup], GatedScheduler], lacks: frozenset[str]) -> Make:
    def make(setup: Setup, connector: Connector | None, listener: Listener) -> GatedScheduler:
        try:
            scheduler = factory(setup)
        except Exception as error:
            raise UserError(f"{option}: the factory raised {error_line(error)} for {setup}") from None
        for method in _METHODS:
            if not callable(getattr(scheduler, method, None)):
                if method == "reset" and "reset_prefix_cache" in lacks:
                    continue
                without = ', or say lacks = {"reset_prefix_cache"}' if method == "reset" else ""
                made = f"{option}: what it made, a {type(scheduler).__name__}, has no method {method}"
                raise UserError(f"{made}: see slotproof.impl.scheduler.protocol{without}")
        return scheduler

    return make


def own_setups(seed: int, lacks: frozenset[str]) -> tuple[Setup, ...]:
    """`setups`, as far as the scheduler can have them."""
    return tuple(dict.fromkeys(fit(setup, lacks) for setup in setups(seed)))


def own_campaign(
    own: Own,
    *,
    steps: int,
    seed: int = 0,
    device: str = "cpu",
    make_worker: MakeWorker = Worker,
    engines: tuple[Setup, ...] | None = None,
    progress: Progress = lambda report: None,
) -> ScheduleReport:
    """`campaign` on a user's scheduler: its contents, its work and its progress, and nothing of the model.

    Raises:
        UserError: the factory makes none.
    """
    asked = Asked(Strictness.INVARIANTS, own.lacks, installed=own.installed, scheduler=own.name)
    return campaign(
        own.make,
        steps=steps,
        seed=seed,
        device=device,
        make_worker=make_worker,
        engines=own_setups(seed, own.lacks) if engines is None else engines,
        progress=progress,
        asked=asked,
        by_steps=True,
    )
