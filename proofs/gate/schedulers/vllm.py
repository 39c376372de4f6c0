"""The gate on vLLM's own scheduler: the workloads as far as it can be given them, and what is known of it."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

from msgspec import structs

from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.manager import Listener
from slotproof.impl.scheduler.protocol import Setup
from slotproof.impl.vllm import scheduler as adapter
from slotproof.impl.vllm.engine import max_in_flight_tokens
from slotproof.impl.vllm.parts import require_vllm
from slotproof.impl.vllm.release import VERSION, does_not_fit, lacks
from slotproof.impl.vllm.scheduler import VllmScheduler
from slotproof.model.language.behaviours import profile
from slotproof.proofs.gate.gate import Progress
from slotproof.proofs.gate.schedulers.episode import Episode
from slotproof.proofs.gate.schedulers.gate import ScheduleReport, campaign
from slotproof.proofs.gate.schedulers.workload import setups
from slotproof.proofs.gate.trial import Asked
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.words import error_line

_ADAPTER = Path(adapter.__file__).parent


def vllm_scheduler(
    known: Counter[str], setup: Setup, connector: Connector | None, listener: Listener
) -> VllmScheduler:
    """vLLM's scheduler over its own manager; `known` counts what KNOWN.md tells of it.

    Raises:
        UserError: the installed vLLM is not as this adapter knows it.
    """
    steps = setup.steps_in_flight
    try:
        return VllmScheduler(setup.config, setup.scheduler, listener, steps, connector, known)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise _does_not_fit(error_line(error)) from error


def _does_not_fit(why: str) -> UserError:
    return UserError(f"--impl vllm-scheduler: {does_not_fit([why])}")


def check_fit(engines: tuple[Setup, ...]) -> None:
    """Two steps of an engine of each kind.

    Raises:
        UserError: the adapter asks the installed vLLM for what it has not; that is no disagreement.
    """
    kinds = {(bool(e.scheduler.num_spec_tokens), e.steps_in_flight > 1, e.has_connector): e for e in engines}
    for setup in kinds.values():
        failure = Episode(setup, partial(vllm_scheduler, Counter()), known=Counter()).run(2)
        if failure is None:
            continue
        files = re.findall(r'File "([^"]+)"', failure.traceback)
        got = failure.differences[0].got
        if files and Path(files[-1]).parent == _ADAPTER and re.match("raised (Attribute|Type)Error", got):
            raise _does_not_fit(got.removeprefix("raised "))


def need_vllm() -> None:
    """Raises UserError where vLLM is not installed or does not import."""
    try:
        require_vllm("vllm.v1.core.sched.async_scheduler")
    except ImportError as error:
        raise UserError(f"--impl vllm-scheduler: {error}") from None


def vllm_campaign(
    *,
    steps: int,
    seed: int = 0,
    device: str = "cpu",
    engines: tuple[Setup, ...] | None = None,
    accept_known: bool = False,
    progress: Progress = lambda report: None,
) -> ScheduleReport:
    """`campaign` on vLLM's scheduler.

    Where KNOWN.md tells that it publishes what nobody writes, that is counted, and undone, so that the
    campaign goes on: the blocks lose their hashes (`SchedulerConfig.unpublish`). Where it tells that a pass
    ends early, that is counted.

    Args:
        accept_known: Whether such a count is no failure.

    Raises:
        UserError: vLLM is not installed or does not import.
    """
    need_vllm()
    known: Counter[str] = Counter()
    engines = vllm_setups(seed) if engines is None else engines
    check_fit(engines)
    report = campaign(
        partial(vllm_scheduler, known),
        steps=steps,
        seed=seed,
        device=device,
        engines=engines,
        known=known,
        progress=progress,
        asked=Asked(
            scheduler="vllm-scheduler",
            lacks=lacks(),
            installed=f"vLLM {VERSION}",
            release=VERSION or "",
            behaviours=profile(VERSION or ""),
        ),
    )
    report.known, report.known_is_accepted = known, accept_known
    return report


def vllm_setups(seed: int) -> tuple[Setup, ...]:
    """`setups`, with what vLLM cannot be told replaced by what comes next to it."""
    return tuple(_fit(setup) for setup in setups(seed))


def _fit(setup: Setup) -> Setup:
    config, scheduler, steps = setup.config, setup.scheduler, setup.steps_in_flight
    drafts, threshold = scheduler.num_spec_tokens, scheduler.long_prefill_token_threshold
    if threshold:  # with less than the tokens of a decode, vLLM stops with an error: KNOWN.md
        threshold = min(max(threshold, 1 + drafts), config.max_model_len)
    lookahead = scheduler.num_lookahead_tokens
    if scheduler.async_scheduling:
        steps, lookahead = 2, drafts  # one step ahead, and a draft model: it takes no drafts from n-grams
    elif steps == 2:
        steps = 3  # that many stages of a pipeline; two are seen under way
    scheduler = structs.replace(
        scheduler, long_prefill_token_threshold=threshold, num_lookahead_tokens=lookahead
    )
    config = structs.replace(
        config,
        max_in_flight_tokens=max_in_flight_tokens(scheduler, steps),
        behaviours=profile(VERSION or ""),
    )
    return structs.replace(setup, config=config, scheduler=scheduler, steps_in_flight=steps)
