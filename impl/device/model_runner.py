"""A model without weights: its K and V are fingerprints, and its next token follows from all before it."""

from __future__ import annotations

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
        worker: What does the work.
        oracle: What knows the requests' tokens, and is told what has been written.
        choices: Decides how many drafts are right, and how many the drafter proposes.
        num_spec_tokens: Drafts that it proposes, at most.
        num_lookahead_tokens: Slots after the computed tokens that it writes its own KV to; 0 for a drafter
            that needs none, as one that looks for n-grams.
        poison: Whether the contents of freed blocks are spoilt.
    """

    def __init__(
        self,
        worker: Worker,
        oracle: ContentOracle,
        choices: Choices,
        num_spec_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        poison: bool = True,
    ) -> None:
        self.worker = worker
        self.oracle = oracle
        self.choices = choices
        self._num_spec_tokens = num_spec_tokens
        self._num_lookahead_tokens = num_lookahead_tokens
        self._poison = poison
        self.loading: dict[int, LoadedKV] = {}
        """Asynchronous loads that have not arrived, by request."""
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
        contents: list[list[int]] = []
        sampled: dict[int, tuple[int, ...]] = {}
        self.accepted.clear()
        self.drafted = []
        for scheduled in output.scheduled:
            text = oracle.texts[scheduled.request]
            starts.append(text.num_computed_tokens)
            contents.append(self._contents(text, scheduled, sampled))
            if len(contents[-1]) != scheduled.num_scheduled_tokens:
                place = f"{scheduled.num_scheduled_tokens} tokens of request {scheduled.request}"
                known = f"{len(contents[-1])} of them, from position {starts[-1]} on"
                why = f"step {output.step}"
                raise ContentError(place, "known tokens, then drafts", known, why, scheduled.request)
        loaded = [LoadedKV(load, self._load_values(load)) for load in output.loads if not load.is_async]
        key_values = self._values([content for of_request in contents for content in of_request])
        self.worker.execute(output, starts, key_values, loaded, attend)
        oracle.zeroed(output.new_block_ids_to_zero)
        for load, _ in loaded:
            self._loaded(load)
        for scheduled, start, written in zip(output.scheduled, starts, contents, strict=True):
            oracle.wrote(scheduled.request, start, written, "written")
        if self._num_lookahead_tokens and starts:
            self._draft(output, starts)
        most = self._num_spec_tokens
        drafts = {request: self.choices.proposed(request, most) if most else 0 for request in sampled}
        return ModelRunnerOutput(sampled, drafts)

    def arrive(self, requests: list[int]) -> ModelRunnerOutput:
        """Asynchronous loads have arrived; what is told to the scheduler."""
        for request in requests:
            load, brought = self.loading.pop(request)
            self.worker.load(load, brought)
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
                self.loading[load.request] = LoadedKV(load, self._load_values(load))
        for scheduled in output.scheduled:
            if scheduled.tokens is not None:
                text = self.oracle.texts[scheduled.request]
                text.admit(len(scheduled.tokens), scheduled.num_computed_tokens)

    def _contents(
        self, text: Text, scheduled: ScheduledRequest, sampled: dict[int, tuple[int, ...]]
    ) -> list[int]:
        """What a request's tokens write; it moves on by the tokens that count, and those it samples."""
        start, num_drafts = text.num_computed_tokens, scheduled.num_draft_tokens
        known = start + scheduled.num_scheduled_tokens - num_drafts
        contents = text.contents[start:known]
        text.num_computed_tokens = known
        if known < len(text.tokens):
            return contents
        accepted = self.choices.accepted(scheduled.request, num_drafts) if num_drafts else 0
        tokens = []
        for _ in range(accepted + 1):
            tokens.append(text.next_token(VOCABULARY))
            text.append(tokens[-1:])
        contents += text.contents[known : known + accepted]
        wrong = text.guess(known + accepted, (tokens[-1] + 1) % VOCABULARY, num_drafts - accepted)
        text.num_computed_tokens += accepted
        sampled[scheduled.request] = tuple(tokens)
        if num_drafts:
            self.accepted.append((num_drafts, accepted))
        return contents + wrong

    def _draft(self, output: SchedulerOutput, starts: list[int]) -> None:
        """A draft model reads the step's tokens and the one after them, and then its own drafts, but for the
        last; as 0.32.0's does, for chunks of a prompt too. It stops at the end of the model."""
        spans: list[Span] = []
        contents: list[list[int]] = []
        for scheduled, start in zip(output.scheduled, starts, strict=True):
            text = self.oracle.texts[scheduled.request]
            known = text.num_computed_tokens + 1
            drafts = text.guess(known, text.next_token(VOCABULARY), self._num_lookahead_tokens - 1)
            most = self.oracle.config.max_model_len - start
            contents.append((text.contents[start:known] + drafts)[:most])
            spans.append(Span(scheduled.request, start, start + len(contents[-1])))
        self.drafted = spans
        self.worker.draft(spans, self._values([content for of_request in contents for content in of_request]))
        for span, written in zip(spans, contents, strict=True):
            self.oracle.drafted(span.request, span.start, written)

    def _loaded(self, load: Load) -> None:
        positions = loaded_positions(load, self.oracle.config.block_size)
        if positions:
            contents = [self.oracle.texts[load.request].contents[p] for p in positions]
            self.oracle.wrote(load.request, positions[0], contents, "loaded")
            self.oracle.drafted(load.request, positions[0], contents, "loaded for the drafter")

    def _load_values(self, load: Load) -> torch.Tensor:
        contents = self.oracle.texts[load.request].contents
        return self._values([contents[p] for p in loaded_positions(load, self.oracle.config.block_size)])

    def _values(self, contents: list[int]) -> torch.Tensor:
        values = self.oracle.fingerprints.values(torch.tensor(contents, dtype=torch.int64))
        device = self.worker.device
        return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)

    def _spoil_dead_blocks(self) -> None:
        if self._poison and (dead := self.oracle.take_dead()):
            blocks = torch.tensor(dead, device=self.worker.device)
            self.worker.kv_cache.fill(blocks, POISON_BITS)
