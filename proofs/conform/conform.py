"""Conformance: every path of a target's function against the model, case by case.

`conforms` is a proof: on every path that the code can take the model does the same. A path of which that is
not shown is `differs` only once a story has shown it on the real object and on the model.
"""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass

from slotproof.model.language.rules import Rules
from slotproof.model.running import Running
from slotproof.proofs.campaign.kinds import SLIDING_WINDOW
from slotproof.proofs.conform.builtins import installed
from slotproof.proofs.conform.ends import HERE, Exhausted, Unsupported
from slotproof.proofs.conform.follower import Differs, Follower
from slotproof.proofs.conform.paths import Budget, Exploration, Path
from slotproof.proofs.conform.situation import Case, Situation
from slotproof.proofs.conform.story import disagreement, story
from slotproof.proofs.conform.targets.target import Target
from slotproof.proofs.conform.values import values
from slotproof.proofs.conform.watch import kept_inside
from slotproof.proofs.gate.trial import Failure

TRIES = 20
"""Paths that are not shown to agree for which a story is looked for."""
CONFORMS, DIFFERS, UNSUPPORTED, UNKNOWN = "conforms", "differs", "unsupported", "unknown"


@dataclass(frozen=True)
class Finding:
    """The answer about one case. `seconds` are of computing time."""

    case: Case
    verdict: str
    paths: int
    """Paths on which the code and the model were compared to the end."""
    seconds: float
    what: str = ""
    """What differs, or what was not followed and where."""
    failure: Failure | None = None
    """The story of a difference."""
    assumed: tuple[str, ...] = ()
    """What is assumed of the case, by name."""


def conform_case(
    target: Target, case: Case, rules: Rules | None = None, budget: Budget | None = None
) -> Finding:
    """Follow the target's function through every path of a case."""
    start = time.process_time()
    situation = Situation(case, rules)
    exploration = Exploration(situation.assumptions, budget or Budget())
    followed = _Followed(target, situation)
    verdict, what, failure = CONFORMS, "", None
    tries = 0
    try:
        for _ in exploration.runs(followed.run):
            if followed.disagreed is None:
                continue
            follower, difference = followed.disagreed
            verdict, what = UNKNOWN, f"{difference.what}: not shown to agree, and no story shows a difference"
            failure, tries = _told(target, follower, difference), tries + 1
            if failure is not None:
                verdict, what = DIFFERS, f"{difference.what}: {failure.differences[0].line}"
            if failure is not None or tries == TRIES:
                break
    except Unsupported as unsupported:
        verdict, what = UNSUPPORTED, f"{unsupported.where}: {unsupported.what}"
    except Exhausted as exhausted:
        verdict, what = UNKNOWN, f"{exhausted.where}: after {exhausted.what}"
    if verdict == CONFORMS and not followed.compared:
        verdict, what = UNKNOWN, "no path was compared"
    if verdict == CONFORMS and not getattr(target, "is_possible", is_possible)(case):
        verdict, what = UNKNOWN, "what is assumed was not shown to be possible"
    assumed = (
        *situation.given,
        *(f"{name} is {value}" for name, value in getattr(target, "given", {}).items()),
    )
    return Finding(case, verdict, followed.compared, time.process_time() - start, what, failure, assumed)


class _Followed:
    """The runs of one case."""

    def __init__(self, target: Target, situation: Situation) -> None:
        self._target, self._situation = target, situation
        self.compared = 0
        """Paths that were followed to their end."""
        self.disagreed: tuple[Follower, Differs] | None = None
        """Where the last run is not shown to agree."""

    def run(self, path: Path) -> None:
        """Follow one path."""
        self.disagreed, follower = None, Follower(self._situation, path)
        try:
            with installed(self._target.modules), kept_inside():
                try:
                    self._target.run(self._situation, path, follower)
                except RecursionError:
                    raise Unsupported("recursion", self._target.name) from None
                except Exception as error:
                    if isinstance(error, TypeError | AttributeError) and _is_ours(error):
                        raise Unsupported(str(error), self._target.name) from None
                    follower.agree(f"it raises {type(error).__name__}", False)
            follower.settle()
        except Differs as difference:
            path.goes_on()
            if not path.is_trial:
                self.disagreed = follower, difference
        if not path.is_trial:
            self.compared += 1


def _is_ours(error: Exception) -> bool:
    """It was raised by what stands for the code's values, or where the code is called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_code.co_filename.startswith(str(HERE))


def _told(target: Target, follower: Follower, disagreed: Differs) -> Failure | None:
    """The disagreement as a story that the real object and the model tell differently, if one is found."""
    with follower.path:
        found = list(values(follower, disagreed))
    stories = (story(follower.situation.case, numbers) for numbers in found)
    failures = (disagreement(target, config, calls) for config, calls in stories)
    return next((failure for failure in failures if failure is not None), None)


def is_possible(case: Case) -> bool:
    """The case comes up: a story of the model leads to it, within the contract, and makes the call there."""
    running = Running(
        num_blocks=4,
        block_size=1,
        max_model_len=2,
        sliding_window=2 if case.kind == SLIDING_WINDOW else None,
        enable_caching=case.caching,
    )
    running.step("add_request", request=0, tokens=(1, 1))
    if case.holds:
        running.step("allocate", request=0, new=1)
    if (running.state.length(0) > 0) != case.holds:
        return False
    return bool(running.step("allocate", request=0, new=1).granted)
