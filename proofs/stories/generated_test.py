"""A story as a stand-alone test of vLLM: the calls up to where the fault shows, and what is right there.

Where it shows is found by telling the story twice, to the model with all its rules and to the model without
some: the first call after which the two differ in something that can be seen from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple, TypeAlias

import jinja2
import msgspec

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Execute,
    Finish,
    Group,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    TakeNewBlockIds,
)
from slotproof.impl.vllm.release import KNOWN
from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.language.behaviours import PROFILES
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.language.state import UNKNOWN
from slotproof.model.running import ContractError, Running, Stuck
from slotproof.model.scheduling.caller import waits
from slotproof.proofs.campaign.calls import model_config
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.faults.catalogue import fault_of
from slotproof.proofs.gate.compare import expected_snapshot
from slotproof.proofs.gate.oracle import expect
from slotproof.proofs.output.errors import UserError
from slotproof.proofs.output.files import write_file

WIDTH = 96


Blocks: TypeAlias = list[int] | list[list[int]]
"""Blocks of the one group; of several, by group."""


@dataclass(frozen=True)
class Shown:
    """What can be seen of an engine after a call."""

    result: Blocks | None
    """`allocate`: the new blocks, None if slots are refused. Other calls: none."""
    tables: dict[int, Blocks]
    """Request -> its block table, of requests that are known."""
    hits: dict[int, Blocks]
    """Request -> what a lookup finds for it, of requests that wait with nothing computed."""
    ref_cnt: dict[int, int]
    """Block -> references, of blocks that have any."""
    keys: dict[int, int]
    """Block -> the first block with the same key, of hashed blocks."""
    free_queue: list[int]


@dataclass(frozen=True)
class Decision:
    """Where a fault shows: the calls up to there, and what is seen then with all rules and without some."""

    calls: tuple[Call, ...]
    right: Shown
    wrong: Shown | None
    """None if the faulty engine breaks down."""

    @property
    def differing(self) -> tuple[str, ...]:
        """The fields that tell the two apart: the result, if it does; else all that differ."""
        if self.wrong is None:
            answers = isinstance(self.calls[-1], Allocate)
            return ("result",) if answers else ("free_queue",)
        names = (field.name for field in fields(Shown))
        differ = tuple(name for name in names if getattr(self.right, name) != getattr(self.wrong, name))
        return differ[:1] if "result" in differ else differ


def decision(story: Story, rules: Rules) -> Decision | None:
    """The first call of the story after which the model with all its rules shows something else than the
    model under `rules`; None if none does.

    What is wrong without coming to light is made to decide: a count by reserving more for the last call, what
    is kept of a prompt by sending it again.
    """
    told = (story.calls, *_made_to_decide(story))
    found = (_first_difference(story.config, calls, rules) for calls in told)
    return next((decision for decision in found if decision is not None), None)


def _made_to_decide(story: Story) -> Iterator[tuple[Call, ...]]:
    *before, last = story.calls
    if isinstance(last, Allocate):
        for reserved in range(1, story.config.num_blocks):
            yield *before, msgspec.structs.replace(last, reserved=reserved)
    if isinstance(last, AddRequest):
        r = last.request
        runs = Allocate(r, len(last.tokens)), Finish(r)
        yield *story.calls, *runs, msgspec.structs.replace(last, request=r + 1)


def _first_difference(config: Config, calls: tuple[Call, ...], rules: Rules) -> Decision | None:
    right = Running(**model_config(config))
    wrong = Running(**model_config(config), rules=rules)
    start = Decision((), _shown(right), _shown(wrong))
    if start.differing:
        return start
    for index, call in enumerate(calls):
        told = calls[: index + 1]
        answer = _answer(right, call)  # legal: so far the two are alike
        try:
            found = Decision(told, _shown(right, answer), _shown(wrong, _answer(wrong, call)))
        except Stuck:
            return Decision(told, _shown(right, answer), None)
        if found.differing:
            return found
    return None


def _answer(running: Running, call: Call) -> Blocks | None:
    e = expect(running, call)
    answer, s = e.outcome.answer, running.state
    if not (isinstance(call, Allocate) and e.result.granted and answer is not None):
        return None

    def taken(g: int) -> list[int]:
        row = s.engine.row(call.request, g)
        return [s.table(row, i) for i in range(answer.new_low(g), answer.new_high(g))]

    return _by_group(s.engine.groups.num, taken)


def _by_group(num_groups: int, blocks: Callable[[int], list[int]]) -> Blocks:
    return blocks(0) if num_groups == 1 else [blocks(g) for g in range(num_groups)]


def _shown(running: Running, result: Blocks | None = None) -> Shown:
    s, snapshot = running.state, expected_snapshot(running)
    known = [r for r in running.requests if s.status(r) != UNKNOWN]
    looking = [r for r in known if waits(s, r) and s.computed(r) == 0 and running.engine.enable_caching]
    keys, num = snapshot.hashes, s.engine.groups.num

    def table(r: int) -> Blocks:
        return _by_group(num, lambda g: list(snapshot.tables.get(s.engine.row(r, g), ())))

    def hit(r: int) -> Blocks:
        found = running.hits(r)
        return _by_group(num, lambda g: [found.at(g, i) for i in range(found.num(g))])

    return Shown(
        result=result,
        tables={r: table(r) for r in known},
        hits={r: hit(r) for r in looking},
        ref_cnt={b: n for b, n in enumerate(snapshot.ref_cnt) if n},
        keys={b: keys.index(key) for b, key in enumerate(keys) if key is not None},
        free_queue=list(snapshot.free_queue),
    )


def write_test(path: Path, story: Story, rules: Rules) -> None:
    """Write a stand-alone pytest file that fails on a vLLM with the story's fault, and passes on one without.

    It imports vLLM and torch alone, and pytest if some release has to skip it.

    Args:
        path: the file; `-` is standard output.
        rules: those of the faulty model, under which the story's statement falls.

    Raises:
        UserError: the story shows nothing that vLLM could be tested for, or the file cannot be written.
    """
    write_file(path, text_of(story, rules).encode())


def text_of(story: Story, rules: Rules) -> str:
    """The text of the file that `write_test` writes. Raises UserError as it does, but for the file."""
    found = decision(story, rules)
    if found is None:
        raise UserError(
            "a test for vLLM cannot be written: what this story shows is the same with and without the fault"
        )
    config = story.config
    lines = list(_lines(found, _elsewhere(config, found.calls, rules)))
    return _template().render(
        docstring=_docstring(story, rules),
        config=config,
        unit=config.hash_block_size,
        aligned=config.scheduler_block_size,
        options=list(_options(config)),
        specs=[_spec(group) for group in config.all_groups],
        heads=[g for g, group in enumerate(config.all_groups) if group.is_eagle],
        uses=_uses(config, found),
        needed=_needed(config, found),
        name=f"test_{'_'.join(_missing(rules))}",
        dated=any("__version__" in line for line in lines),
        lines=lines,
    )


@cache
def _template() -> jinja2.Template:
    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    return environment.get_template("story_test.py.j2")


def _missing(rules: Rules) -> list[str]:
    return [name for name in RULES if not getattr(rules, name)]


def _docstring(story: Story, rules: Rules) -> str:
    violation, fault = story.violation, fault_of(rules)
    missing = [f"{RULES[name]['text']} ({name}, {RULES[name]['stage']})" for name in _missing(rules)]
    said = [f"Fails on a vLLM without this rule: {'; '.join(missing)}."]
    if fault is not None:
        numbers = ", ".join(f"#{number}" for number in fault.issues)
        said.append(fault.description + (f" See vllm-project/vllm {numbers}." if numbers else ""))
    where = f"{violation.claim}, {violation.detail}" if violation.detail else violation.claim
    said.append(f"What falls is {violation.statement}: {STATEMENTS[violation.statement].text} ({where}).")
    said.append(f"For vLLM {KNOWN[0]} to {KNOWN[1]}; written by slotproof. Run it with pytest.")
    return "\n\n".join(fill(text, WIDTH, break_on_hyphens=False) for text in said)


def _spec(group: Group) -> tuple[str, str]:
    """The class of a group's specification, and what it takes beside shape and block size."""
    if group.attention_chunk_size is not None:
        return "ChunkedLocalAttentionSpec", f", attention_chunk_size={group.attention_chunk_size}"
    if group.sliding_window is None:
        return "FullAttentionSpec", ""
    kept = f", extra_retained_tokens={group.extra_retained_tokens}" if group.extra_retained_tokens else ""
    return "SlidingWindowSpec", f", sliding_window={group.sliding_window}{kept}"


def _options(config: Config) -> Iterator[str]:
    if config.max_in_flight_tokens < config.max_model_len:
        yield f"max_in_flight_tokens={config.max_in_flight_tokens},"
        yield f"max_num_batched_tokens={config.max_in_flight_tokens},  # its name up to 0.25.1"
    if not config.enable_caching:
        yield "enable_caching=False,"
    if any(group.is_eagle for group in config.all_groups):
        yield "use_eagle=True,"
    if config.num_prefill_lookahead:
        yield f"num_prefill_lookahead={config.num_prefill_lookahead},"
    if config.watermark_blocks:  # a share of the pool, rounded down; half a block survives floats
        share = f"{config.watermark_blocks + 0.5} / {config.num_blocks}"
        yield f"watermark={share},  # blocks: {config.watermark_blocks}"


def _uses(config: Config, found: Decision) -> set[str]:
    """The parts that the file needs."""
    uses = set(found.differing)
    if config.enable_caching:
        uses.add("caching")
    for call in found.calls:
        uses.add(str(type(call).__struct_config__.tag))
        if isinstance(call, AddRequest):
            uses.add("requests")
        uses |= {
            name
            for name in ("salt", "lora", "external", "skip_cache", "delay_cache", "must_fit")
            if getattr(call, name, 0)
        }
    return uses


def _needed(config: Config, found: Decision) -> str:
    """The arguments without which a release cannot show the fault, as the test's text has them."""
    allocates = [call for call in found.calls if isinstance(call, Allocate)]
    needed = ["(KVCacheManager, 'watermark')"] if config.watermark_blocks else []
    if any(group.is_eagle for group in config.all_groups):
        needed.append("(KVCacheGroupSpec, 'is_eagle_group')")
    if any(group.extra_retained_tokens for group in config.all_groups):
        needed.append("(SlidingWindowSpec, 'extra_retained_tokens')")
    if config.retention_interval is not None:
        needed.append("(KVCacheConfig, 'prefix_cache_retention_interval')")
    if any(call.reserved for call in allocates):
        needed.append("(KVCacheManager.allocate_slots, 'reserved_blocks')")
    return f"[{', '.join(needed)}]".replace("'", '"') if needed else ""


_BROKEN: Any = object()


class _Seen(NamedTuple):
    """What is seen at the end of the calls in a release and those after it: with all rules, without some."""

    release: str
    right: Shown
    wrong: Shown | None
    """None if the faulty engine breaks down."""


def _elsewhere(config: Config, calls: tuple[Call, ...], rules: Rules) -> list[_Seen]:
    """What can be seen in each release, the oldest first."""
    seen = []
    for release, behaviours in PROFILES.items():
        there = msgspec.structs.replace(config, behaviours=behaviours)
        right, wrong = Running(**model_config(there)), Running(**model_config(there), rules=rules)
        answer = other = None
        broken = False
        for call in calls:
            answer = _answer(right, call)
            try:
                other = _answer(wrong, call)
            except (Stuck, ContractError):
                broken = True
        seen.append(_Seen(release, _shown(right, answer), None if broken else _shown(wrong, other)))
    return seen


@dataclass(frozen=True)
class _Form:
    """How a value is looked at, so that it is the same in every release."""

    text: str
    of: Callable[[Any], Any]


_FORMS = (
    _Form("{}", lambda value: value),
    _Form("sorted({})", lambda value: value if value is None else sorted(value)),
    _Form("({}) is not None", lambda value: value is not None),
)


class _Claim(NamedTuple):
    """An assertion, and since which release it tells the fault."""

    line: Iterator[str]
    since: str


def _claim(expression: str, of: Callable[[Shown], Any], found: Decision, seen: list[_Seen]) -> _Claim:
    """What is right of the expression, in a form that tells the fault in as many releases as can be."""

    def wrong_of(shown: Shown | None) -> Any:
        return _BROKEN if shown is None else of(shown)

    def since(form: _Form) -> str:
        """The first release from which on the form tells right from wrong."""
        right, first = form.of(of(found.right)), ""
        for here in reversed(seen):
            wrong = wrong_of(here.wrong)
            if form.of(of(here.right)) != right or (wrong is not _BROKEN and form.of(wrong) == right):
                return first
            first = here.release
        return next(iter(PROFILES))

    form = min(_FORMS, key=lambda form: list(PROFILES).index(since(form)) if since(form) else len(PROFILES))
    wrong = wrong_of(found.wrong)
    line = _assertion(
        form.text.format(expression),
        form.of(of(found.right)),
        wrong if wrong is _BROKEN else form.of(wrong),
    )
    return _Claim(line, since(form))


def _lines(found: Decision, seen: list[_Seen]) -> Iterator[str]:
    """The body of the test: the calls, and what is right after the last."""
    claims = list(_claims(found, seen))
    since = max((claim.since for claim in claims), key=list(PROFILES).index, default="")
    if since and since != next(iter(PROFILES)):
        numbers = [int(number) for number in since.split(".")[:2]]
        yield f'if "dev" not in __version__ and [int(n) for n in __version__.split(".")[:2]] < {numbers}:'
        yield f'    pytest.skip("before {since} something else is right")'
    for call in found.calls[:-1]:
        yield from _line(call)
    if found.wrong is None:
        yield "# With the fault, this call breaks down."
    if found.calls and "result" not in found.differing:
        yield from _line(found.calls[-1])
    for claim in claims:
        yield from claim.line


def _claims(found: Decision, seen: list[_Seen]) -> Iterator[_Claim]:
    for name in found.differing:
        right, wrong = getattr(found.right, name), getattr(found.wrong, name, _BROKEN)
        if name == "result":
            (line,) = _line(found.calls[-1])
            yield _claim(line, attrgetter(name), found, seen)
        elif name in _OF_REQUEST:
            for r in right:
                if right[r] != wrong.get(r, []):

                    def of_request(shown: Shown, name: str = name, r: int = r) -> list[int]:
                        blocks: list[int] = getattr(shown, name).get(r, [])
                        return blocks

                    yield _claim(f"{_OF_REQUEST[name]}(manager, r{r})", of_request, found, seen)
        else:
            yield _claim(f"{_OF_POOL[name]}(manager)", attrgetter(name), found, seen)


_OF_REQUEST = {"tables": "table", "hits": "lookup"}
_OF_POOL = {"free_queue": "free_queue", "ref_cnt": "references", "keys": "hashed"}
"""The test's functions for what is shown."""


def _assertion(expression: str, right: Any, wrong: Any) -> Iterator[str]:
    line = f"assert {expression} " + ("is None" if right is None else f"== {right}")
    if right is True:
        line = f"assert {expression}"
    if wrong is _BROKEN:
        yield line
    elif len(line) + len(str(wrong)) < WIDTH - 24:
        yield f"{line}  # with the fault: {wrong}"
    else:
        yield from (f"# With the fault: {wrong}", line)


def _line(call: Call) -> Iterator[str]:
    """The call in the test's words, if it matters there."""
    if isinstance(call, AddRequest):
        tags = "".join(f', {k}="{v}"' for k, v in (("lora", call.lora), ("salt", call.salt)) if v)
        yield f'r{call.request} = new_request("{call.request}", {list(call.tokens)}{tags})'
    elif isinstance(call, Allocate):
        yield f"allocate(manager, r{call.request}, {', '.join(_asked(call))})"
    elif isinstance(call, Execute):
        yield "# The step runs."
    elif isinstance(call, Complete):
        more = f", rejected={call.rejected}" if call.rejected else ""
        more += f", sampled={list(call.sampled)}" if call.sampled else ""
        yield f"complete(r{call.request}, {call.processed}{more})"
    elif isinstance(call, CacheBlocks):
        if call.tokens is None:
            yield f"load_arrived(manager, r{call.request})"
        else:
            yield f"manager.cache_blocks(r{call.request}, {call.tokens})"
    elif isinstance(call, RemoveSkipped):
        r = f"r{call.request}"
        settled = f"{r}.num_computed_tokens - {r}.num_in_flight_tokens"
        yield f"manager.remove_skipped_blocks({r}.request_id, {settled})"
    elif isinstance(call, Preempt):
        yield f"preempt(manager, r{call.request})"
    elif isinstance(call, Finish):
        yield f"manager.free(r{call.request})"
    elif isinstance(call, EvictBlocks):
        blocks = ", ".join(str(block) for block in sorted(set(call.blocks)))
        yield f"manager.evict_blocks({{{blocks}}})"
    elif isinstance(call, ResetPrefixCache):
        yield "manager.reset_prefix_cache()"
    else:
        assert isinstance(call, TakeNewBlockIds)  # nothing is recorded for zeroing here


def _asked(call: Allocate) -> Iterator[str]:
    yield f"new={call.new}"
    if call.external:
        yield f"external={call.external}"
    if call.skip_cache:
        yield "look_up=False"
    if call.lookahead:
        yield f"num_lookahead_tokens={call.lookahead}"
    if call.delay_cache:
        yield "delay_cache_blocks=True"
    if call.must_fit:
        yield "full_sequence_must_fit=True"
    if call.reserved:
        yield f"reserved_blocks={call.reserved}"
    if not call.has_scheduled:
        yield "has_scheduled_reqs=False"
