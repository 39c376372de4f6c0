"""Which statement falls by a difference to the model, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator

from slotproof.impl.protocol import Allocate, Config
from slotproof.proofs.gate.by_itself.follow import wrong_by_itself
from slotproof.proofs.gate.compare import Difference
from slotproof.proofs.gate.isolation import Reply
from slotproof.proofs.gate.oracle import Expectation
from slotproof.proofs.output.words import counted


def blame(
    config: Config, story: list[Expectation], replies: list[Reply], hidden: frozenset[str]
) -> list[Difference]:
    """The statements that the last call of a story breaks, which an implementation answered otherwise.

    First what can be seen of the implementation alone; if it is consistent, what it should have done.

    Args:
        replies: the implementation's, the first for the fresh state.
    """
    calls = [e.call for e in story]
    # What is said of one call by itself is said of one group.
    found = [] if config.groups else wrong_by_itself(config, calls, replies, hidden)
    found = [difference for difference in found if difference.statement]
    return found or list(_by_model(story[-1], replies[-1], hidden))


def _by_model(e: Expectation, reply: Reply, hidden: frozenset[str]) -> Iterator[Difference]:
    if isinstance(e.call, Allocate):
        if e.result.granted and not reply.result.granted:
            statement = "admission-suffices" if e.call.must_fit else "exact-count"
            asked = "the whole prompt" if e.call.must_fit else "what it needs"
            yield Difference(
                "allocate", f"a grant: {asked} fits", "a refusal: it may never come in", statement
            )
        elif reply.result.granted and not e.result.granted:
            yield _should_refuse(e, e.call)
    ours, theirs = e.snapshot.free_queue, reply.state.free_queue
    if ours != theirs and sorted(ours) == sorted(theirs) and "free_queue" not in hidden:
        first = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        hashed = e.snapshot.hashes[theirs[first]] is not None
        lost = ": who would have hit it computes it again" if hashed else ""
        yield Difference(
            "free_queue",
            f"block {ours[first]} taken before block {theirs[first]}",
            f"block {theirs[first]} first{lost}",
            "queue-order",
        )


def _should_refuse(e: Expectation, call: Allocate) -> Difference:
    """Why the model refuses."""
    answer = e.outcome.answer
    assert answer is not None
    free = counted(answer.released.num_free, "block")
    if not answer.fits:
        return Difference(
            "allocate",
            "a refusal: the whole prompt does not fit",
            "a grant: a later chunk cannot be had",
            "admission-suffices",
        )
    if answer.need <= answer.released.num_free:
        kept = f"watermark {answer.watermark} and {call.reserved} reserved"
        return Difference(
            "allocate",
            f"a refusal: {answer.need} needed of {free} free, {kept}",
            "a grant: what was to stay free for others is taken",
            "watermark",
        )
    return Difference("allocate", f"a refusal: {answer.need} needed of {free} free", "a grant", "exact-count")
