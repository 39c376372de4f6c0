"""A live `Request` of vLLM, read at each call: its ledger, and the letters that its keys are made of.

vLLM's key of a block covers the tokens, and what lies over them: multimodal items and where they start,
embeddings of the prompt, the LoRA's name and path, and the cache salt. Each position gets a letter for its
token and all that lies over it, so that two blocks have one key exactly if they have the same letters (and
LoRA, and salt).
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

from slotproof.impl.vllm.live.events import Ledger


class Requests:
    """What was seen of each request so far, so that only what is new is told."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[weakref.ref[Any], int]] = {}
        """By id, which object it was and how many of its tokens were told."""

    def ledger(self, request: Any) -> Ledger:
        """The request now."""
        name, tokens = request.request_id, request._all_token_ids
        known = self._known.get(name)
        told = known[1] if known else 0
        begins = known is None or known[0]() is not request or len(tokens) < told
        if begins:
            told = 0
        letters = tuple(tokens[told:])
        if begins and (request.mm_features or request.prompt_embeds is not None):
            letters = _letters(request)
        self._known[name] = (weakref.ref(request), len(tokens))
        lora = request.lora_request
        return Ledger(
            name,
            len(tokens),
            request.num_computed_tokens,
            request.num_in_flight_tokens,
            request.status.name,
            request.num_prompt_tokens,
            begins,
            letters,
            (request.cache_salt or "") if begins else "",
            f"{lora.lora_name}\0{lora.lora_path}" if begins and lora else "",
            bool(request.skip_reading_prefix_cache),
            request.shared_prefix_boundary,
        )

    def forget(self, name: str) -> None:
        """The request has lost its blocks: if it comes again, all of it is told anew."""
        self._known.pop(name, None)


def _letters(request: Any) -> tuple[int | str, ...]:
    letters: list[int | str] = list(request._all_token_ids)
    for feature in request.mm_features:
        start, length = feature.mm_position.offset, feature.mm_position.length
        for i in range(start, min(start + length, len(letters))):
            letters[i] = f"{letters[i]} {feature.identifier}@{i - start}"
    if request.prompt_embeds is not None:
        rows = request.prompt_embeds.detach().cpu()
        for i in range(min(len(rows), len(letters))):
            row = hashlib.sha256(rows[i].contiguous().view(_bytes()).numpy().tobytes()).hexdigest()
            letters[i] = f"{letters[i]} {row}"
    return tuple(letters)


def _bytes() -> Any:
    import torch

    return torch.uint8
