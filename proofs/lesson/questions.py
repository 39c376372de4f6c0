"""The lesson's questions, each answered by running the model."""

from __future__ import annotations

from statistics import mean

from slotproof.model.language.rules import Rules
from slotproof.model.running import Running
from slotproof.proofs.lesson.trace import (
    BLOCK_SIZE,
    CACHED,
    FIRST,
    LOOKAHEAD,
    OTHER,
    SECOND,
    SECOND_PROMPT,
    WATERMARK,
    Answer,
    Line,
    Pool,
    admit_first,
    first_request,
    prefill_first,
    start,
    trace,
)

DECODE_TOKENS = 40 * BLOCK_SIZE
DRAFTS = 3


def try_it() -> tuple[Answer, ...]:
    """The lesson's "Try it"."""
    return (without_watermark(), all_hits_held(), lookahead_on_every_step())


def check_yourself() -> tuple[Answer, ...]:
    """The lesson's "Check yourself", as far as it can be run."""
    return (release_comes_first(), hit_on_idle_blocks(), drafts_get_no_hash())


def without_watermark() -> Answer:
    without, _ = start(watermark=0)
    second = trace(without)[-1]
    pool, tokens, boundary = longest_admission(watermark=0)
    pool.running.step("preempt", request=pool.running.requests[-1])
    again = next_block(pool)
    _, tokens_beside_watermark, spared = longest_admission(watermark=WATERMARK)
    return Answer(
        question="With watermark 0, is the second request admitted, and what of the first one's next block?",
        answer=(
            f"{_yes(second)}: {second.arithmetic}. A prompt of {tokens} tokens would be, and would leave"
            f" {boundary.available} blocks: the first request's next block, at {boundary.name}, is"
            f" {_word(boundary)} ({boundary.arithmetic}). Once the newcomer is preempted it is {_word(again)}"
            f" ({again.arithmetic}). With the watermark the longest prompt is {tokens_beside_watermark}"
            f" tokens, and {spared.name} is {_word(spared)} ({spared.arithmetic})."
        ),
        lines=(second, boundary, again, spared),
    )


def longest_admission(watermark: int) -> tuple[Pool, int, Line]:
    """In place of the second request the longest prompt, in whole blocks, that is admitted, all of it in one
    step; and then the first request's next block."""
    pool, _ = start(watermark=watermark)
    first_request(pool)
    lengths = range(SECOND_PROMPT // BLOCK_SIZE * BLOCK_SIZE, 0, -BLOCK_SIZE)
    for request, tokens in enumerate(lengths, start=SECOND):
        pool.arrive(request, tokens)
        if pool.ask("newcomer", request, tokens).granted:
            return pool, tokens, next_block(pool)
    raise LookupError("no prompt of whole blocks is admitted")


def next_block(pool: Pool) -> Line:
    """The first request decodes until a step needs a block, or is refused."""
    line = pool.decode(FIRST)
    while line.granted and line.need == 0:
        line = pool.decode(FIRST)
    return line


def all_hits_held() -> Answer:
    pool, found = start(held_hits=CACHED // BLOCK_SIZE)
    line = admit_first(pool)
    return Answer(
        question="With all eight hit blocks held by another request, how many blocks does admission consume?",
        answer=(
            f"{line.taken} (free {found.free} -> {line.free}): {line.new_blocks} new ones, and"
            f" {line.taken - line.new_blocks} for the {found.hits} hits, of which {found.idle_hits} are idle."
        ),
        lines=(line,),
    )


def lookahead_on_every_step() -> Answer:
    without, with_lookahead = mean_table(0), mean_table(LOOKAHEAD)
    return Answer(
        question="With a lookahead of 16 on every decode step, how many more blocks does the request hold?",
        answer=(
            f"{with_lookahead - without:g} more on average, over {DECODE_TOKENS} decoded tokens"
            f" ({with_lookahead:g} against {without:g})."
        ),
    )


def mean_table(lookahead: int) -> float:
    """The mean length of the first request's block table over a long decode; the other request has ended."""
    pool, _ = start()
    prefill_first(pool)
    pool.running.step("finish", request=OTHER)
    return mean(pool.decode(FIRST, lookahead=lookahead).table for _ in range(DECODE_TOKENS))


def release_comes_first() -> Answer:
    before, after = window_step(Rules()), window_step(Rules().without("release_before_count"))
    return Answer(
        question="Why is remove_skipped_blocks called before the allocation rather than after?",
        answer=(
            "So that a request may live on what it gives back. In a full pool, the next step of a request"
            f" whose window left {before.available} blocks behind is {_word(before)} ({before.arithmetic});"
            f" with the release after the allocation it is {_word(after)} ({after.arithmetic})."
        ),
        lines=(before, after),
    )


def window_step(rules: Rules) -> Line:
    """A decode step in a pool that one request fills, two blocks more than its window."""
    running = Running(
        num_blocks=5, block_size=BLOCK_SIZE, max_model_len=128, sliding_window=2 * BLOCK_SIZE, rules=rules
    )
    pool = Pool(running, [])
    prompt = 4 * BLOCK_SIZE
    pool.arrive(FIRST, prompt)
    pool.ask("prompt", FIRST, prompt, alone=True)
    pool.settle(FIRST, samples=True)
    return pool.decode(FIRST)


def hit_on_idle_blocks() -> Answer:
    pool, found = start(held_hits=0)
    line = admit_first(pool)
    return Answer(
        question="A hit lands on eight idle blocks: how far does the free count drop, what memory is new?",
        answer=(
            f"The {found.idle_hits} idle hits cost {line.taken - line.new_blocks} free blocks and no new"
            f" memory; the {line.new_blocks} new blocks beside them are the chunk's own."
        ),
        lines=(line,),
    )


def drafts_get_no_hash() -> Answer:
    capped, uncapped = hashed_guesses(Rules()), hashed_guesses(Rules().without("hash_final_tokens_only"))
    return Answer(
        question="Why are blocks containing speculative draft tokens not given hashes?",
        answer=(
            f"They may be rejected. After {DRAFTS} rejected guesses the prefix cache offers {capped} blocks"
            f" that hold them; without the cap at request.num_tokens, {uncapped}."
        ),
    )


def hashed_guesses(rules: Rules) -> int:
    """The hashed blocks of a request whose only full block was filled by drafts, all of them rejected."""
    running = Running(num_blocks=4, block_size=BLOCK_SIZE, max_model_len=64, rules=rules)
    pool = Pool(running, [])
    prompt = BLOCK_SIZE - DRAFTS
    pool.arrive(FIRST, prompt)
    pool.ask("prompt", FIRST, prompt, alone=True)
    pool.settle(FIRST, samples=True)
    pool.ask("drafts", FIRST, 1 + DRAFTS)
    pool.settle(FIRST, samples=True, rejected=DRAFTS)
    s = running.state
    return sum(s.is_hashed(b) for b in range(1, running.engine.num_blocks))


def _yes(line: Line) -> str:
    return "Yes" if line.granted else "No"


def _word(line: Line) -> str:
    return "granted" if line.granted else "refused"
