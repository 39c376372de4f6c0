"""A model without weights: its K and V are fingerprints, and its next token follows from all before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from slotproof.impl.device.content import ContentError, ContentOracle, Text
from slotproof.impl.device.fingerprint import POISON_BITS
from slotproof.impl.device.worker import Attend, LoadedKV, Span, Worker, loaded_positions
from slotproof.impl.scheduler.scheduler_output import (
    Load,
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
)

VOCABULARY = 3


class Choices(Protocol):
    """Decides what a model and its drafter leave open."""

    def accepted(self, request: int, most: int) -> int:
        """How many of a request's `most` drafts turn out right."""
        ...

    def proposed(self, request: int, most: int) -> int:
        """How many drafts, `most` at most, are proposed for its next step."""
        ...


class ModelRunner:
    """Runs steps on a worker, with the content oracle beside it.

    Args:
        workers: What does the work, one for each group; they share the memory.
        oracle: What knows the requests' tokens, and is told what has been written.
        choices: Decides how many drafts are right, and how many the drafter proposes.
        num_spec_tokens: Drafts that it proposes, at most.
        num_lookahead_tokens: Slots after the computed tokens that it writes its own KV to; 0 for a drafter
            that needs none, as one that looks for n-grams.
        poison: Whether the contents of freed blocks are spoilt.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        oracle: ContentOracle,
        choices: Choices,
        num_spec_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        poison: bool = True,
    ) -> None:
        self.workers = workers
        self.oracle = oracle
        self.choices = choices
        self._num_spec_tokens = num_spec_tokens
        self._num_lookahead_tokens = num_lookahead_tokens
        self._poison = poison
        self.loading: dict[int, tuple[LoadedKV, ...]] = {}
        """Asynchronous loads that have not arrived, by request: what each group is brought."""
        self.accepted: list[tuple[int, int]] = []
        """Of each request with drafts in the last step: how many drafts, and how many were accepted."""
        self.drafted: list[Span] = []
        """What the drafter has written in the last step."""

    def execute(self, output: SchedulerOutput, attend: Attend | None = None) -> ModelRunnerOutput:
        """Run a step. The answer may be kept back: what the device has done does not depend on it.

        Raises:
            ContentError: tokens are scheduled that nobody knows, or that have no block.
        """
        oracle = self.oracle
        self._spoil_dead_blocks()
        self._admit(output)
        starts: list[int] = []
        contents: list[list[list[int]]] = []
        sampled: dict[int, tuple[int, ...]] = {}
        self.accepted.clear()
        self.drafted = []
        for scheduled in output.scheduled:
            text = oracle.texts[scheduled.request]
            starts.append(text.num_computed_tokens)
            contents.append(self._contents(text, scheduled, sampled))
            if len(contents[-1][0]) != scheduled.num_scheduled_tokens:
                place = f"{scheduled.num_scheduled_tokens} tokens of request {scheduled.request}"
                known = f"{len(contents[-1][0])} of them, from position {starts[-1]} on"
                why = f"step {output.step}"
                raise ContentError(place, "known tokens, then drafts", known, why, scheduled.request)
        synchronous = [load for load in output.loads if not load.is_async]
        for g, worker in enumerate(self.workers):
            loaded = [self._load_values(load, g) for load in synchronous]
            key_values = self._values([content for of_request in contents for content in of_request[g]])
            worker.execute(output.of_group(g), starts, key_values, loaded, attend)
        oracle.zeroed(output.new_block_ids_to_zero)
        for load in synchronous:
            self._loaded(load)
        for scheduled, start, written in zip(output.scheduled, starts, contents, strict=True):
            for g, of_group in enumerate(written):
                oracle.wrote(scheduled.request, g, start, of_group, "written")
        if self._num_lookahead_tokens and starts:
            self._draft(output, starts)
        most = self._num_spec_tokens
        drafts = {request: self.choices.proposed(request, most) if most else 0 for request in sampled}
        return ModelRunnerOutput(sampled, drafts)

    def arrive(self, requests: list[int]) -> ModelRunnerOutput:
        """Asynchronous loads have arrived; what is told to the scheduler."""
        for request in requests:
            brought = self.loading.pop(request)
            for worker, of_group in zip(self.workers, brought, strict=True):
                worker.load(*of_group)
            load = brought[0].load
            text = self.oracle.texts.get(request)
            if text is not None:  # a scheduler that lets go of it too early is found out by its blocks
                text.admit(len(text.tokens), load.end)
                self._loaded(load)
        return ModelRunnerOutput(finished_recving=tuple(requests))

    def _admit(self, output: SchedulerOutput) -> None:
        for load in output.loads:
            text = self.oracle.texts[load.request]
            text.admit(len(text.tokens), load.start)
            if load.is_async:
                text.num_computed_tokens = 0  # none to look into: the window is that of after the load
                groups = range(len(self.workers))
                self.loading[load.request] = tuple(self._load_values(load, g) for g in groups)
        for scheduled in output.scheduled:
            if scheduled.tokens is not None:
                text = self.oracle.texts[scheduled.request]
                text.admit(len(scheduled.tokens), scheduled.num_computed_tokens)

    def _contents(
        self, text: Text, scheduled: ScheduledRequest, sampled: dict[int, tuple[int, ...]]
    ) -> list[list[int]]:
        """By group, what a request's tokens write; it moves on by the tokens that count, and those it
        samples."""
        start, num_drafts = text.num_computed_tokens, scheduled.num_draft_tokens
        known = start + scheduled.num_scheduled_tokens - num_drafts
        contents = text.known(start, known)
        text.num_computed_tokens = known
        if known < len(text.tokens):
            return contents
        accepted = self.choices.accepted(scheduled.request, num_drafts) if num_drafts else 0
        tokens = []
        for _ in range(accepted + 1):
            tokens.append(text.next_token(VOCABULARY))
            text.append(tokens[-1:])
        right = text.known(known, known + accepted)
        wrong = text.guess(known + accepted, (tokens[-1] + 1) % VOCABULARY, num_drafts - accepted)
        text.num_computed_tokens += accepted
        sampled[scheduled.request] = tuple(tokens)
        if num_drafts:
            self.accepted.append((num_drafts, accepted))
        return [a + b + c for a, b, c in zip(contents, right, wrong, strict=True)]

    def _draft(self, output: SchedulerOutput, starts: list[int]) -> None:
        """A draft model reads the step's tokens and the one after them, and then its own drafts, but for the
        last; as 0.32.0's does, for chunks of a prompt too. It stops at the end of the model."""
        spans: list[Span] = []
        contents: list[list[list[int]]] = []
        for scheduled, start in zip(output.scheduled, starts, strict=True):
            text = self.oracle.texts[scheduled.request]
            known = text.num_computed_tokens + 1
            drafts = text.guess(known, text.next_token(VOCABULARY), self._num_lookahead_tokens - 1)
            most = self.oracle.config.max_model_len - start
            by_group = zip(text.known(start, known), drafts, strict=True)
            contents.append([(read + own)[:most] for read, own in by_group])
            spans.append(Span(scheduled.request, start, start + len(contents[-1][0])))
        self.drafted = spans
        for g, worker in enumerate(self.workers):
            of_group = [content for of_request in contents for content in of_request[g]]
            worker.draft(spans, self._values(of_group))
        for span, written in zip(spans, contents, strict=True):
            for g, of_group in enumerate(written):
                self.oracle.drafted(span.request, g, span.start, of_group)

    def _loaded(self, load: Load) -> None:
        for g in range(len(self.workers)):
            positions = self._positions(load, g)
            if positions:
                contents = self._known(load, g)
                self.oracle.wrote(load.request, g, positions[0], contents, "loaded")
                self.oracle.drafted(load.request, g, positions[0], contents, "loaded for the drafter")

    def _load_values(self, load: Load, group: int) -> LoadedKV:
        """What a load brings to one group."""
        return LoadedKV(load.of_group(group), self._values(self._known(load, group)))

    def _known(self, load: Load, group: int) -> list[int]:
        contents = self.oracle.texts[load.request].slots[group].contents
        return [contents[p] for p in self._positions(load, group)]

    def _positions(self, load: Load, group: int) -> list[int]:
        return loaded_positions(load.of_group(group), self.oracle.config.all_groups[group].block_size)

    def _values(self, contents: list[int]) -> torch.Tensor:
        values = self.oracle.fingerprints.values(torch.tensor(contents, dtype=torch.int64))
        device = self.workers[0].device
        return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)

    def _spoil_dead_blocks(self) -> None:
        if self._poison and (dead := self.oracle.take_dead()):
            blocks = torch.tensor(dead, device=self.workers[0].device)
            self.workers[0].kv_cache.fill(blocks, POISON_BITS)
