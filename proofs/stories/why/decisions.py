"""What decided a call: the arithmetic of its stages, one line each, from the model's own functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec import Struct, structs

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    EvictBlocks,
    Execute,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.model.integers.dense import Dense
from slotproof.model.language.state import HAND, NULL_BLOCK, State
from slotproof.model.running import Running
from slotproof.model.scheduling.worker import executed
from slotproof.model.system.allocate_slots import (
    Answer,
    Ask,
    allocate_slots,
    blocks_to_allocate,
    num_blocks_to_allocate,
)
from slotproof.model.system.attention.group import admission_cap, skipped_blocks
from slotproof.model.system.prefix_cache import NO_HITS
from slotproof.proofs.output.text import block_names
from slotproof.proofs.output.words import counted, verb

Label = Callable[[State, int], str | None]
"""The letter of a block's key in a state."""


class Line(Struct, frozen=True):
    """What one stage did or compared."""

    stage: str
    """The lesson's stage, or `caller`, `worker` or `pool`."""
    text: str
    decides: bool = False
    """The call was decided here."""
    fails: bool = False
    """The call could not be carried out here."""


class _Unfailing(Dense):
    """A reading that goes on where a step cannot be carried out."""

    def require(self, step: str, state: State, condition: bool) -> None:
        pass


@dataclass(frozen=True)
class Asked:
    """An `allocate`, as `allocate_slots` is asked in a state."""

    before: State
    request: int
    ask: Ask
    running: Running

    def answer_if_unfailing(self) -> Answer:
        """The answer of a call that fails half way, had its steps not failed: its counts are those by which
        the call was granted."""
        read = self.running.read
        unfailing = _Unfailing(read.num_blocks, ghosts=True)
        unfailing.texts = read.texts
        engine = replace(self.before.engine, read=unfailing)
        return allocate_slots(self.before.replace(engine=engine), self.request, self.ask)


def asked(running: Running, call: Allocate) -> Asked:
    """The call with the lookup that a scheduler makes for it."""
    hits = running.hits(call.request, call.skip_cache)
    fields = {name: value for name, value in structs.asdict(call).items() if name not in _NOT_ASKED}
    return Asked(running.state, call.request, Ask(hits=hits, **fields), running)


_NOT_ASKED = ("request", "skip_cache")


def failure(what: str, s: State, call: Call, answer: Answer | None) -> Line:
    """Why a step of the pool failed in the state where it began. `answer` is `answer_if_unfailing`'s."""
    stage = "stage 4" if what == "publish" else "stage 3" if answer is not None else "pool"
    return Line(stage, f"{what} fails: {_why(what, s, call, answer)}", decides=True, fails=True)


def _why(what: str, s: State, call: Call, answer: Answer | None) -> str:
    if what == "free":
        block = s.table(HAND, s.first(HAND))
        return f"block {block} has ref_cnt {s.ref_cnt(block)}, there is no reference to drop"
    r = getattr(call, "request", HAND)
    groups = range(s.engine.groups.num)
    if what == "publish":
        rows = [s.engine.row(r, g) for g in groups]
        row = next((row for row in rows if s.is_hashed(s.table(row, s.num_cached(row)))), rows[0])
        return f"block {s.table(row, s.num_cached(row))} has a hash already"
    if what == "take" and answer is not None:
        lengths = [(s.length(s.engine.row(r, g)), g) for g in groups]
        for end_of in (answer.new_low, answer.new_high):
            missing = [end_of(g) - length for length, g in lengths if length < end_of(g)]
            if missing:
                return f"{counted(missing[0], 'block')} to pop > free {s.num_free}"
    if what == "touch" and answer is not None:
        hits = answer.ask.hits
        ends = [(g, s.length(s.engine.row(r, g))) for g in groups]
        g, end = next(((g, end) for g, end in ends if end < hits.num(g)), (0, s.length(s.engine.row(r, 0))))
        block = hits.at(g, end)
        place = "in the free queue" if s.is_free(block) else "not in the free queue"
        return f"block {block} has ref_cnt {s.ref_cnt(block)} and is {place}"
    return "the state does not allow it"


def lines(
    call: Call, before: State, after: State, answer: Answer | None, failed: Line | None, label: Label
) -> tuple[Line, ...]:
    """The call's stages in order, each that had something to do or to compare."""
    if isinstance(call, Allocate):
        assert answer is not None
        told = _allocate(call, before, after, answer, label, failed)
    else:
        told = [] if failed else [_other(call, before, after, label)]
    if failed is None:
        return tuple(told)
    return (*[structs.replace(line, decides=False) for line in told], failed)


def _allocate(
    call: Allocate, s: State, after: State, answer: Answer, label: Label, failed: Line | None
) -> list[Line]:
    r, told = call.request, []
    if call.must_fit and s.engine.rules.whole_prompt_must_fit:
        told.append(Line("stage 0", _whole_prompt(s, r, answer), decides=not answer.fits))
    if not answer.fits:
        return told
    released = _released(s, answer.released, r)
    if released:
        told.append(Line("stage 1", f"gives back {block_names(released)}, out of the window"))
    told.append(Line("stage 2", _step(s, r, answer), decides=True))
    if answer.granted:
        did = [text for g in range(s.engine.groups.num) for text in _commits(s, after, r, g, answer)]
        if did:
            told.append(Line("stage 3", "; ".join(did)))
        published = _published(s, after, r, label)
        if published and not failed:
            told.append(Line("stage 4", f"hashes {published}"))
    return told


def _commits(s: State, after: State, r: int, g: int, answer: Answer) -> list[str]:
    """What a group adopts and takes."""
    row, who = s.engine.row(r, g), "" if s.engine.groups.is_one else f"group {g} "
    start, adopted = s.length(row), _adopted(s, r, g, answer)
    entries = [after.table(row, i) for i in range(start, after.length(row))]
    touched = [b for b in entries[: adopted - start] if b != NULL_BLOCK]
    taken = entries[adopted - start :]
    did = [f"{who}touches {block_names(touched)}"] if touched else []
    return did + ([f"{who}takes {block_names(taken)}"] if taken else [])


def _whole_prompt(s: State, r: int, answer: Answer) -> str:
    rules = s.engine.rules
    whole = min(s.num_tokens(r), s.engine.max_model_len)
    capped = rules.whole_prompt_caps_window
    need = num_blocks_to_allocate(s, r, answer.ask, whole, answer.total, capped=capped)
    margin = answer.watermark if rules.whole_prompt_pays_watermark else 0
    return f"whole prompt {_compared(need, margin, s.num_free, 0, answer.fits)}"


def _step(s: State, r: int, answer: Answer) -> str:
    """Stage 2: the comparison, and the parts of the count."""
    reserved = answer.ask.reserved if s.engine.rules.keep_reserved else 0
    compared = _compared(answer.need, answer.watermark, answer.released.num_free, reserved, answer.granted)
    return f"need {compared}; {_count(s, r, answer)}"


def _count(s: State, r: int, answer: Answer) -> str:
    """Stage 2's count from its parts: `2 = ceil(7/3) - 1 covered`, of several groups one after the other."""
    engine, rules, ask = s.engine, s.engine.rules, answer.ask
    tokens = answer.total + ask.new + (ask.lookahead if rules.lookahead_gets_slots else 0)
    tokens = min(tokens, engine.max_model_len) if rules.slots_end_at_max_model_len else tokens
    if engine.groups.is_one:
        return f"{answer.need} = {_count_of(r, 0, tokens, answer, answer.need)}"
    told, counting = [], ask if rules.check_before_commit else replace(ask, hits=NO_HITS)
    for g in range(engine.groups.num):
        capped = not rules.count_step_uncapped
        row, state = engine.row(r, g), answer.released
        need = blocks_to_allocate(state, row, counting, tokens, answer.total, capped)
        told.append(f"{need} in group {g} = {_count_of(r, g, tokens, answer, need)}")
    return f"{answer.need} = {', '.join(told)}"


def _count_of(r: int, g: int, tokens: int, answer: Answer, need: int) -> str:
    """One group's count from its parts."""
    engine, ask = answer.released.engine, answer.ask
    rules = engine.rules
    required, cap = engine.blocks(tokens, g), admission_cap(engine, g)
    text = f"ceil({tokens}/{engine.tokens(1, g)})"
    if cap is not None and not rules.count_step_uncapped:
        required, text = min(required, cap), f"min({text}, cap {cap})"
    hits = ask.hits.num(g) if rules.check_before_commit else 0
    held = answer.released.length(engine.row(r, g))
    covered = max(skipped_blocks(engine, g, answer.total), held + hits)
    text += f" - {covered} covered" if covered else ""
    text = f"max(0, {text})" if required < covered else text
    idle = need - max(0, required - covered)
    return text + (f" + {counted(idle, 'idle hit')}" if idle else "")


def _compared(need: int, watermark: int, free: int, reserved: int, fits: bool) -> str:
    """`3 + watermark 1 <= free 4`."""
    left = f"{need}{f' + watermark {watermark}' if watermark else ''}"
    right = f"free {free}{f' - reserved {reserved}' if reserved else ''}"
    return f"{left} {'<=' if fits else '>'} {right}"


def _adopted(s: State, r: int, g: int, answer: Answer) -> int:
    """Where the new entries of a group's table begin."""
    held = s.length(s.engine.row(r, g))
    return int(held or max(skipped_blocks(s.engine, g, answer.total), answer.ask.hits.num(g)))


def _rows(s: State, r: int) -> list[int]:
    """The rows of a request's block tables."""
    return [s.engine.row(r, g) for g in range(s.engine.groups.num)]


def _other(call: Call, s: State, after: State, label: Label) -> Line:
    match call:
        case AddRequest(request=r):
            return Line("caller", f"a prompt of {counted(after.num_tokens(r), 'token')}")
        case Execute():
            return Line("worker", _writes(s, after))
        case Complete(request=r, processed=processed, rejected=rejected, sampled=sampled):
            parts = [f"in flight {s.in_flight(r)} - {processed} = {after.in_flight(r)}"]
            parts += [f"computed {s.computed(r)} - {rejected} rejected = {after.computed(r)}"] * bool(
                rejected
            )
            parts += [f"tokens {s.num_tokens(r)} + {len(sampled)} = {after.num_tokens(r)}"] * bool(sampled)
            return Line("caller", "; ".join(parts))
        case CacheBlocks(request=r):
            return Line("stage 4", f"hashes {_published(s, after, r, label) or 'nothing'}")
        case RemoveSkipped(request=r):
            released = _released(s, after, r)
            gives = f"{block_names(released)}, out of the window" if released else "nothing"
            return Line(
                "stage 1", f"computed {s.computed(r)} - {s.in_flight(r)} in flight: gives back {gives}"
            )
        case Preempt(request=r) | Finish(request=r):
            order = "tail first" if s.engine.rules.free_tail_first else "head first"
            freed = [s.table(row, i) for row in _rows(s, r) for i in range(s.first(row), s.length(row))]
            return Line("pool", f"frees {block_names(freed)}, {order}" if freed else "has no blocks to free")
        case EvictBlocks():
            gone = [b for b in range(s.engine.num_blocks) if s.is_hashed(b) and not after.is_hashed(b)]
            lose = verb(len(gone), "loses its hash", "lose their hashes")
            return Line("pool", f"{block_names(gone)} {lose}" if gone else "none had a hash")
        case ResetPrefixCache():
            compared = f"held {s.num_held} {'=' if s.num_held == 0 else '>'} 0"
            return Line("pool", f"{compared}: {'refused' if s.num_held else 'every hash is dropped'}")
        case TakeNewBlockIds():
            drained = sum(s.num_to_zero(g) for g in range(s.engine.groups.num))
            return Line("caller", f"drains {drained} to zero")
        case _:
            raise AssertionError(f"{call} is an allocate")


def _writes(s: State, after: State) -> str:
    """What the step writes: `writes token 4 of request 0, tokens 0 to 2 of request 1`."""
    spans = []
    for r in sorted({s.engine.owner(s.writer_row(b)) for b in range(s.engine.num_blocks)}):
        low, high = executed(s, r), executed(after, r)
        if low < high:
            tokens = f"token {low}" if high == low + 1 else f"tokens {low} to {high - 1}"
            spans.append(f"{tokens} of request {r}")
    return f"writes {', '.join(spans)}" if spans else "writes nothing: nothing is scheduled"


def _released(s: State, after: State, r: int) -> list[int]:
    """The live entries of r's tables that became the null block."""
    return [
        s.table(row, i)
        for row in _rows(s, r)
        for i in range(s.first(row), min(after.first(row), s.length(row)))
    ]


def _published(s: State, after: State, r: int, label: Label) -> str:
    """The blocks of r's tables that have a new hash: `b4 = A, b5 = B`."""
    found = []
    entries = [(row, i) for row in _rows(s, r) for i in range(after.first(row), after.length(row))]
    for b in [after.table(row, i) for row, i in entries]:
        if after.is_hashed(b) and (after.stamp(b) != s.stamp(b) or not s.is_hashed(b)):
            found.append(f"{block_names((b,))} = {label(after, b)}")
    return ", ".join(found)
