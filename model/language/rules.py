"""The subtle rules of the algorithm, by name, each of which can be switched off.

A *fault* is a model with a rule off. The sources are the lesson ("Allocating Slots: One Call, Traced")
and vLLM 0.32.0; `vllm#N` is the public vLLM issue or pull request about a bug of that kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace


def _rule(stage: str, text: str, kind: str = "") -> bool:
    """A rule, on unless switched off; of one kind of attention only, if a kind is given."""
    default: bool = field(default=True, metadata={"stage": stage, "text": text, "kind": kind})
    return default


_WINDOW = "sliding-window"
_HYBRID = "hybrid"


@dataclass(frozen=True)
class Rules:
    """Every rule, on unless switched off."""

    whole_prompt_must_fit: bool = _rule("stage 0", "an admission is refused unless its whole prompt fits")
    whole_prompt_pays_watermark: bool = _rule("stage 0", "the whole-prompt check adds the watermark too")
    whole_prompt_caps_window: bool = _rule(
        "stage 0", "the whole-prompt check asks no more than a window can hold at once (vllm#39734)", _WINDOW
    )
    watermark_on_admission: bool = _rule("stage 0", "waiting and preempted requests pay the watermark")
    watermark_spares_running: bool = _rule("stage 0", "a running request never pays the watermark")
    watermark_spares_lone_admission: bool = _rule(
        "stage 0", "the watermark is not asked when nothing else is scheduled"
    )

    release_before_count: bool = _rule(
        "stage 1", "a window's old blocks are given back before the count", _WINDOW
    )
    release_processed_only: bool = _rule(
        "stage 1", "the window is released on processed tokens, not on tokens in flight (vllm#47728)", _WINDOW
    )

    count_idle_hits: bool = _rule(
        "stage 2", "a hit that sits in the free queue counts as a block (vllm#11565)"
    )
    count_hits_in_window_only: bool = _rule(
        "stage 2", "a hit outside the window is neither counted nor adopted", _WINDOW
    )
    count_step_uncapped: bool = _rule(
        "stage 2",
        "the step's count is what the step will take, without the window's cap (vllm#45856)",
        _WINDOW,
    )
    keep_reserved: bool = _rule("stage 2", "the reserved blocks stay free")
    lookahead_gets_slots: bool = _rule("stage 2", "lookahead tokens get slots as new ones do (vllm#16613)")
    slots_end_at_max_model_len: bool = _rule("stage 2", "no slots are given past max_model_len")
    check_before_commit: bool = _rule(
        "stage 2", "nothing is touched before the check has passed (vllm#11565)"
    )

    adopt_all_before_external: bool = _rule(
        "stage 3", "every group adopts its hits before any takes external blocks (vllm#33775)", _HYBRID
    )
    touch_references: bool = _rule("stage 3", "touching a hit adds a reference")
    touch_leaves_queue: bool = _rule("stage 3", "touching an idle hit removes it from the free queue")
    new_from_front: bool = _rule("stage 3", "new blocks come from the front of the free queue")
    popping_evicts: bool = _rule("stage 3", "a block loses its hash when it is popped")

    hash_final_tokens_only: bool = _rule("stage 4", "hashes stop at request.num_tokens (vllm#18668)")
    hash_full_blocks_only: bool = _rule("stage 4", "only full blocks are hashed")
    delay_cache_blocks: bool = _rule(
        "stage 4", "a delayed load's blocks are hashed when it has arrived, not before"
    )

    retention_keeps_resumed: bool = _rule(
        "stage 4", "sparse retention keeps the blocks by which a prompt can be taken up again", _HYBRID
    )

    null_block_set_aside: bool = _rule("pool", "the null block never enters the free queue")
    free_tail_first: bool = _rule("pool", "a request's blocks are freed from its tail")
    unhashed_to_front: bool = _rule("pool", "freed blocks without a hash go to the front of the queue")
    free_unreferenced_only: bool = _rule("pool", "a block is free only when its last reference is dropped")

    lookup_leaves_a_token: bool = _rule("lookup", "a hit covers at most num_tokens - 1 tokens")
    lookup_stops_at_miss: bool = _rule("lookup", "a hit has no gap")
    lookup_run_covers_window: bool = _rule(
        "lookup", "a window's hit spans the whole window before the next token", _WINDOW
    )

    lookup_drops_last_block: bool = _rule(
        "lookup", "a group with a draft head leaves out the last block that it finds", _HYBRID
    )
    lookup_agrees_on_a_length: bool = _rule(
        "lookup", "the groups' hits are of one length, and each group has what it needs there", _HYBRID
    )
    lookup_is_aligned: bool = _rule(
        "lookup", "a hit of several groups ends where a block of each ends", _HYBRID
    )

    key_covers_prefix: bool = _rule("keys", "a block's key covers every token before it")
    key_covers_salt: bool = _rule("keys", "a block's key covers the cache salt")
    key_covers_group: bool = _rule("keys", "a block's key covers the group that it was taken for", _HYBRID)
    key_tags_kinds: bool = _rule(
        "keys", "a LoRA name and a cache salt of one text differ in a key (vllm#44701)"
    )
    key_covers_lora_path: bool = _rule(
        "keys", "two LoRAs of one name and different paths differ in a key (vllm#30931)"
    )

    def without(self, *names: str) -> Rules:
        """These rules with some switched off. Raises KeyError for a name that is no rule."""
        for name in names:
            if name not in RULES:
                raise KeyError(name)
        return replace(self, **dict.fromkeys(names, False))


RULES: dict[str, dict[str, str]] = {rule.name: dict(rule.metadata) for rule in fields(Rules)}
"""Every rule's name, with its `stage`, its `text`, and the `kind` of attention it is about, if only one."""
