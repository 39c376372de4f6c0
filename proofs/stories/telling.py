"""A story as it is told: what each call was, what decided it, the state after it, and what broke.

The story is run in the model again. Keys of the prefix cache become letters, in the order in which blocks
are hashed.
"""

from __future__ import annotations

from string import ascii_uppercase

from msgspec import structs

from slotproof.impl.protocol import AddRequest, Allocate, Call, Config, Execute
from slotproof.model.claims.statements import STATEMENTS
from slotproof.model.claims.wordings import ALLOWANCES
from slotproof.model.language.rules import RULES, Rules
from slotproof.model.language.state import NULL_BLOCK, UNKNOWN, State
from slotproof.model.running import Running, Stuck
from slotproof.model.system.allocate_slots import Answer
from slotproof.proofs.campaign.calls import call_fields, call_name, model_config
from slotproof.proofs.campaign.monitor import Violation
from slotproof.proofs.campaign.story import Story
from slotproof.proofs.faults.catalogue import fault_of
from slotproof.proofs.gate.compare import expected_result, to_zero
from slotproof.proofs.output.text import block_names, call_line, config_line, result_line
from slotproof.proofs.stories.told import (
    Block,
    Broken,
    Change,
    Entry,
    Key,
    Request,
    Rule,
    Shown,
    Span,
    Step,
    Table,
    Told,
    in_blocks,
)
from slotproof.proofs.stories.why.broken import named, reason
from slotproof.proofs.stories.why.decisions import Asked, asked, failure, lines
from slotproof.proofs.stories.why.scene import Scene
from slotproof.proofs.stories.why.unwritten import filled_by, slots_written
from slotproof.proofs.traces.trace import usage_of

STATUS = ("finished", "waiting", "loading", "running", "preempted")
"""By the model's numbers; no request of a story is unknown before it arrives."""


def tell(story: Story, rules: Rules) -> Told:
    """The story under the rules by which it breaks its statement.

    Raises:
        ContractError: a call is outside the caller's contract: the story is of other rules.
    """
    about_writing = story.violation.statement == "published-is-written"
    teller = _Teller(story.config, rules, about_writing or _executes(story.calls))
    told = teller.tell(story.calls)
    allowed = next((a.text for a in ALLOWANCES.values() if a.check.name == story.violation.claim), "")
    fault = fault_of(rules)
    return structs.replace(
        told,
        broken=teller.broken(story.violation),
        allowed=allowed,
        about=fault.description if fault else "",
        issues=fault.issues if fault else (),
    )


def tell_reached(config: Config, calls: tuple[Call, ...], reached: str, rules: Rules | None = None) -> Told:
    """The story of calls that end in a state in which `reached`, an expression, holds.

    Raises:
        ContractError: a call is outside the caller's contract.
    """
    about_writing = "unwritten" in reached
    teller = _Teller(config, Rules() if rules is None else rules, about_writing or _executes(calls))
    return structs.replace(teller.tell(calls), reached=reached)


def tell_ending(config: Config, calls: tuple[Call, ...], ending: Broken) -> Told:
    """The model's story of calls, the last of which somebody else answered otherwise, as `ending` says.

    Raises:
        ContractError: a call is outside the caller's contract.
        Stuck: the model fails half way through a call.
    """
    return structs.replace(_Teller(config, Rules(), _executes(calls)).tell(calls), broken=ending)


def _executes(calls: tuple[Call, ...]) -> bool:
    return any(isinstance(call, Execute) for call in calls)


class _Teller:
    """The running reading, and what a story has shown so far.

    Which slots are written is shown where the story is `about_writing`.
    """

    def __init__(self, config: Config, rules: Rules, about_writing: bool) -> None:
        self.running = Running(**model_config(config), rules=rules, ghosts=True)
        self.running.read.watch = self._begin_step
        self.config = config
        self.rules = rules
        self.about_writing = about_writing
        self.keys: dict[int, Key] = {}
        self.prompts: dict[int, int] = {}
        self._begun = self.running.state
        """Where the last step of the pool began: where a call that fails half way stays."""
        self._last: Scene | None = None

    def _begin_step(self, step: str, state: State) -> None:
        self._begun = state

    def tell(self, calls: tuple[Call, ...]) -> Told:
        initial = self.shown(self.running.state)
        steps: list[Step] = []
        for number, call in enumerate(calls, 1):
            steps.append(self.step(number, call, steps[-1].state if steps else initial))
        return Told(
            config=self.config,
            engine=config_line(self.config),
            off=tuple(
                Rule(name, rule["stage"], rule["text"])
                for name, rule in RULES.items()
                if not getattr(self.rules, name)
            ),
            keys=tuple(self.keys.values()),
            initial=initial,
            steps=tuple(steps),
            broken=None,
        )

    def step(self, number: int, call: Call, shown: Shown) -> Step:
        running, before = self.running, self.running.state
        name, fields = call_fields(call)
        if isinstance(call, AddRequest):
            self.prompts[call.request] = len(call.tokens)
        ask = asked(running, call) if isinstance(call, Allocate) else None
        failed = None
        try:
            outcome = running.step(name, **fields)
        except Stuck as stuck:
            after, answer = self._begun, ask.answer_if_unfailing() if ask else None
            failed = failure(stuck.what, after, call, answer)
            result = "fails half way"
        else:
            after, answer = outcome.state, outcome.answer
            result = result_line(call, expected_result(before, call, outcome))
        self._last = Scene(call, before, after, answer, running, self.label, failed)
        state = self.shown(after, before, ask, answer)
        return Step(
            number=number,
            name=call_name(call),
            call=call_line(call),
            result=result,
            lines=lines(call, before, after, answer, failed, self.label),
            changes=tuple(_changes(shown, state)),
            state=state,
        )

    def broken(self, violation: Violation) -> Broken:
        scene = self._last
        assert scene is not None, "a story has calls"
        blocks, requests = named(violation, scene)
        return Broken(
            statement=violation.statement,
            text=STATEMENTS[violation.statement].text,
            claim=violation.claim,
            stage=violation.stage,
            reason=reason(violation, scene),
            blocks=blocks,
            requests=requests,
        )

    def label(self, state: State, block: int) -> str | None:
        """The letter of a block's key, a new one if the key is new."""
        if not state.is_hashed(block):
            return None
        key = state.block_hash(block)
        if key not in self.keys:
            size = _slots(state, block)
            reach = size * (state.writer_index(block) + 1)
            first = 0 if state.engine.rules.key_covers_prefix else reach - size
            self.keys[key] = Key(_letter(len(self.keys)), self._tokens(state, block, first, reach))
        return self.keys[key].label

    def _tokens(self, state: State, block: int, start: int, end: int) -> str:
        """Tokens of the request that a block was taken for, block by block, `?` for drafts; and its tags."""
        engine, row = state.engine, state.writer_row(block)
        text = self.running.read.texts[engine.owner(row)]
        known = [*map(str, text.tokens[start:end]), *["?"] * (end - max(start, len(text.tokens)))]
        tags = [f"{tag} {value}" for tag, value in (("salt", text.salt), ("lora", text.lora)) if value]
        if not engine.groups.is_one:
            tags.append(f"group {engine.group(row)}")
        return " ".join([in_blocks(known, _slots(state, block)), *[f"({tag})" for tag in tags]])

    def shown(
        self,
        s: State,
        before: State | None = None,
        ask: Asked | None = None,
        answer: Answer | None = None,
    ) -> Shown:
        """A state, `answer` being what the call that led to it from `before` was told."""
        for b in sorted(range(self.config.num_blocks), key=s.stamp):  # letters in the order of hashing
            self.label(s, b)
        requests = []
        for r in self.running.requests:
            mine = answer if ask is not None and ask.request == r else None
            requests.append(self._request(s, r, before, mine))
        return Shown(
            free_queue=tuple(s.at(i) for i in range(s.num_free)),
            blocks=tuple(self._block(s, b) for b in range(self.config.num_blocks)),
            requests=tuple(requests),
            to_zero=to_zero(s),
            usage=usage_of(self.config.num_blocks, s.num_free),
        )

    def _block(self, s: State, b: int) -> Block:
        key, size, i = self.label(s, b), _slots(s, b), s.writer_index(b)
        free = "cached" if key else "free"
        kind = "null" if b == NULL_BLOCK else free if s.is_free(b) else "held"
        position = s.rank(b) if s.is_free(b) else None
        holds = self._tokens(s, b, i * size, (i + 1) * size) if key else ""
        shown = Block(b, kind, s.ref_cnt(b), position, key, holds, slots=size)
        if not self.about_writing or kind in ("null", "free"):
            return shown
        filler = filled_by(s, b) if key else ""
        return structs.replace(shown, written=slots_written(s, b), filled_by=filler)

    def _request(self, s: State, r: int, before: State | None, answer: Answer | None) -> Request:
        num_tokens, computed, text = s.num_tokens(r), s.computed(r), self.running.read.texts[r]
        return Request(
            request=r,
            status=STATUS[s.status(r)],
            tokens=tuple(text.tokens),
            salt=text.salt,
            lora=text.lora,
            prompt=self.prompts[r],
            output=num_tokens - self.prompts[r],
            computed=computed,
            in_flight=s.in_flight(r),
            drafts=max(0, computed - num_tokens),
            tables=tuple(self._table(s, r, g, before, answer) for g in range(s.engine.groups.num)),
        )

    def _table(self, s: State, r: int, g: int, before: State | None, answer: Answer | None) -> Table:
        return Table(
            name="table" if s.engine.groups.is_one else f"table of group {g}",
            block_size=s.engine.tokens(1, g),
            entries=tuple(_entries(s, r, g, before, answer)),
            spans=() if s.status(r) == UNKNOWN else tuple(self._spans(s, r, g, before, answer)),
        )

    def _spans(self, s: State, r: int, g: int, before: State | None, answer: Answer | None) -> list[Span]:
        """The request's slots in a group, and its tokens, cut where their kind changes."""
        slots = s.engine.tokens(s.length(s.engine.row(r, g)), g)
        num_tokens, computed, lookahead = s.num_tokens(r), s.computed(r), 0
        ends = [("computed", computed - s.in_flight(r)), ("in flight", computed)]
        if before is not None and answer is not None and computed != before.computed(r):
            settled, scheduled, lookahead = before.computed(r), before.in_flight(r), answer.ask.lookahead
            hit = settled + answer.ask.hits.tokens
            ends = [("computed", settled - scheduled), ("in flight", settled)]
            ends += [("hit", hit), ("external", answer.total), ("new", computed)]
        ends += [("todo", num_tokens), ("lookahead", min(computed + lookahead, slots)), ("spare", slots)]
        spans, start = [], 0
        for kind, end in ends:
            final = min(max(start, num_tokens), end)
            slot_only = kind in ("lookahead", "spare")
            for low, high, draft in ((start, final, False), (final, end, not slot_only)):
                if low < high:
                    spans.append(Span(low, high, kind, draft))
            start = max(start, end)
        return spans


def _slots(s: State, b: int) -> int:
    """The slots of a block, in the group that it was taken for."""
    return int(s.engine.tokens(1, s.engine.group(s.writer_row(b))))


def _entries(s: State, r: int, g: int, before: State | None, answer: Answer | None) -> list[Entry]:
    """The block table of a group, each entry with what this call added it for."""
    row = s.engine.row(r, g)
    old = s.length(row) if before is None or answer is None else before.length(row)
    entries = []
    for i in range(s.length(row)):
        kind = "held"
        if s.table(row, i) == NULL_BLOCK:
            kind = "null"
        elif i >= old and answer is not None:
            ahead = s.engine.tokens(i, g) >= answer.total + answer.ask.new
            new = "lookahead" if ahead else "new"
            kind = "hit" if i < answer.ask.hits.num(g) else "external" if i < answer.new_low(g) else new
        entries.append(Entry(s.table(row, i), kind))
    return entries


def _changes(before: Shown, after: Shown) -> list[Change]:
    """What differs, field by field: the pool, then its blocks, then the requests."""
    changes: list[Change] = []

    def compare(subject: str, old: dict[str, str], new: dict[str, str]) -> None:
        changes.extend(
            Change(subject, field, old.get(field, "-"), text)
            for field, text in new.items()
            if old.get(field, "-") != text
        )

    compare("pool", _pool_fields(before), _pool_fields(after))
    for was, block in zip(before.blocks, after.blocks, strict=True):
        old, new = _block_fields(was), _block_fields(block)
        compare(f"block {block.block}", old, new)
    known = {request.request: request for request in before.requests}
    for request in after.requests:
        earlier = known.get(request.request)
        old = _request_fields(earlier) if earlier else _no_request(request)
        compare(f"request {request.request}", old, _request_fields(request))
    return changes


def _pool_fields(state: Shown) -> dict[str, str]:
    return {"free queue": block_names(state.free_queue), "to zero": block_names(state.to_zero)}


def _block_fields(block: Block) -> dict[str, str]:
    fields = {"kind": block.kind, "ref_cnt": str(block.ref_cnt), "key": block.key or "-"}
    return fields if block.written is None else {**fields, "written": block.filling}


def _request_fields(request: Request) -> dict[str, str]:
    counts = {name: str(getattr(request, name)) for name in ("prompt", "output", "computed", "drafts")}
    counts["in flight"] = str(request.in_flight)
    tables = {table.name: block_names(e.block for e in table.entries) for table in request.tables}
    return {"status": request.status, **counts, **tables}


def _no_request(request: Request) -> dict[str, str]:
    counts = dict.fromkeys(("prompt", "output", "computed", "drafts", "in flight"), "0")
    return counts | {table.name: block_names(()) for table in request.tables}


def _letter(index: int) -> str:
    """A, B, … Z, AA, AB, …"""
    return (_letter(index // 26 - 1) if index >= 26 else "") + ascii_uppercase[index % 26]
