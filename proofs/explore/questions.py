"""One-line what-ifs: the lesson's "Try it" and "Check yourself", each with what to look for to answer it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Question:
    """A question, and what to look for: a state (`reach`), or what falls `without` a rule."""

    text: str
    reach: str = ""
    without: str = ""
    set: dict[str, int] = field(default_factory=dict)
    """Settings of the engine that the question is about."""


QUESTIONS = {
    "preempted-at-next-boundary": Question(
        "without a watermark, can an admission leave a running request no block for its next boundary?",
        reach="running(r0) and running(r1) and free == 0",
        set={"watermark_blocks": 0},
    ),
    "admission-up-to-the-watermark": Question(
        "with a watermark of one, can both requests run and no block be free?",
        reach="running(r0) and running(r1) and free == 0",
        set={"watermark_blocks": 1},
    ),
    "held-hit-costs-nothing": Question(
        "can two requests hold one block?", reach="shared > 0 and running(r0) and running(r1)"
    ),
    "full-of-cached-prefixes": Question(
        "can usage be zero while half of the pool holds cached prefixes?",
        reach="usage == 0 and 2 * idle_cached >= free",
    ),
    "lookahead-takes-early": Question(
        "can a lookahead give a request more blocks than its tokens fill?",
        reach="running(r0) and blocks(r0) > tokens(r0) + drafts(r0)",
    ),
    "release-before-count": Question(
        "why are a window's old blocks released before the count?", without="release_before_count"
    ),
    "idle-hit-counts": Question(
        "why does an idle hit count although no memory is used?", without="count_idle_hits"
    ),
    "drafts-are-not-hashed": Question(
        "why are blocks with drafts not hashed?", without="hash_final_tokens_only"
    ),
}
"""Every question by its name."""
