"""The catalogue of faults: what goes wrong when a rule of the model is missing, and which statement falls.

Each bends one rule, so that its name is the rule's. Those modelled on a public bug of vLLM have an alias
with the number of its issue or pull request.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotproof.model.language.rules import RULES, Rules

ISSUES = "https://github.com/vllm-project/vllm/issues/"
"""Where vLLM's issues and pull requests are, before their numbers."""


@dataclass(frozen=True)
class Fault:
    """A way to get `allocate_slots` or the pool under it wrong."""

    name: str
    rules: tuple[str, ...]
    """The rules it bends, as in `model.rules`."""
    statement: str
    """The statement that falls, as in `model.statements`."""
    description: str
    """What the faulty engine does, and what comes of it."""
    alias: str = ""
    """Another name, for a fault modelled on a public bug."""
    issues: tuple[int, ...] = ()
    """Numbers of vLLM's public issues and pull requests about it."""
    on_vllm: str = ""
    """What to know about telling its story to vLLM, if anything."""

    @property
    def stage(self) -> str:
        """Its place in the lesson: a stage, or the part of the engine around them."""
        return RULES[self.rules[0]]["stage"]

    @property
    def kind(self) -> str:
        """The kind of engines that it shows in, if only one."""
        return RULES[self.rules[0]]["kind"]

    @property
    def bent(self) -> Rules:
        """The rules with those that it bends switched off."""
        return Rules().without(*self.rules)


def _fault(
    rule: str,
    statement: str,
    description: str,
    alias: str = "",
    issues: tuple[int, ...] = (),
    on_vllm: str = "",
) -> Fault:
    return Fault(rule, (rule,), statement, description, alias, issues, on_vllm)


_COUNT_ALONE = (
    "The count is internal: where memory is plentiful vLLM shows nothing. The test reserves as many blocks "
    "as make the count decide."
)
_LOOKUP = "It shows in what get_computed_blocks answers, before anything is allocated."

FAULTS = (
    _fault(
        "whole_prompt_must_fit",
        "admission-suffices",
        "Admission looks at the first chunk alone. A prompt that can never fit is let in, and holds its "
        "blocks until it is preempted.",
    ),
    _fault(
        "whole_prompt_pays_watermark",
        "watermark",
        "The whole-prompt check leaves the watermark out: an admission can lay claim to the last free "
        "block, and running requests are preempted at their next block boundary.",
    ),
    _fault(
        "whole_prompt_caps_window",
        "admission-suffices",
        "The admission gate counts a sliding window's blocks as if they were never given back. A prompt "
        "longer than the pool waits for ever, and all behind it, though its window would fit.",
        "vllm-39734",
        (39734, 40946),
    ),
    _fault(
        "watermark_on_admission",
        "watermark",
        "Nothing is kept free when a request is admitted: the next request that crosses a block boundary "
        "has to preempt somebody.",
    ),
    _fault(
        "watermark_spares_running",
        "watermark",
        "A running request pays the watermark too. It is refused, and preempted, with free blocks in the "
        "pool.",
    ),
    _fault(
        "watermark_spares_lone_admission",
        "watermark",
        "An admission pays the watermark though nothing else is scheduled. A prompt of the pool's size "
        "never starts.",
    ),
    _fault(
        "release_before_count",
        "exact-count",
        "A window's old blocks are given back after the count instead of before it. The request is refused "
        "memory that it is about to return, or takes other blocks and evicts their hashes.",
    ),
    _fault(
        "release_processed_only",
        "window-kept",
        "The window moves on with scheduled tokens, not with processed ones. Under asynchronous scheduling "
        "it gives up blocks that a step in flight still reads, or that rejected drafts roll back into; "
        "another request writes over them.",
        "vllm-47728",
        (47728,),
    ),
    _fault(
        "count_idle_hits",
        "no-rollback",
        "Capacity is checked without the hits that sit in the free queue. Touching them uses up the very "
        "blocks the check had counted as free, and taking the new ones fails half way. The review of "
        "vllm#11565 names this as what moving the check alone would bring.",
        "vllm-11565-count",
        (11565,),
    ),
    _fault(
        "count_hits_in_window_only",
        "exact-count",
        "Idle hits that the window has left behind are counted, but never adopted: a request is refused for "
        "want of blocks that it does not need. External tokens on top of a hit move the window so far.",
        on_vllm=_COUNT_ALONE,
    ),
    _fault(
        "count_step_uncapped",
        "no-rollback",
        "The cap for a window's admission is used for the step's count too. It promises less than the step "
        "then takes: the engine dies with 'Cannot get N free blocks from the pool'.",
        "vllm-45856",
        (45856,),
    ),
    _fault(
        "keep_reserved",
        "watermark",
        "The reserved blocks are handed out. An external load takes what a prefill in progress relies on.",
    ),
    _fault(
        "lookahead_gets_slots",
        "enough-slots",
        "A drafter's lookahead tokens get no slots: their KV is written where no block is.",
        "vllm-16613",
        (16613,),
    ),
    _fault(
        "slots_end_at_max_model_len",
        "enough-slots",
        "Lookahead runs past max_model_len: the block table grows longer than the row the worker has for it.",
        "vllm-10730",
        (10730,),
    ),
    _fault(
        "check_before_commit",
        "refusal-leaves-no-trace",
        "Hits are touched before capacity is checked. A refused request keeps references to blocks that it "
        "does not run on: they count as used, until nothing can be scheduled at all.",
        "vllm-11565-touch",
        (11562, 11565),
    ),
    _fault(
        "adopt_all_before_external",
        "two-phase",
        "The groups are gone through once: each adopts its hits and at once takes blocks for the external "
        "tokens. They may be the very blocks that the next group is about to adopt, which then holds another "
        "group's KV.",
        "vllm-33775",
        (33775,),
    ),
    _fault(
        "touch_references",
        "ref-count",
        "A hit adds no reference. When the first holder ends, the block is freed under the second.",
    ),
    _fault(
        "touch_leaves_queue",
        "free-count",
        "A touched idle hit stays in the free queue: it is handed out as new while a request reads it.",
    ),
    _fault(
        "new_from_front",
        "queue-order",
        "New blocks come from the back of the free queue, so that what was used last is evicted first.",
    ),
    _fault(
        "popping_evicts",
        "no-aliased-write",
        "A popped block keeps its hash. New tokens are written into a block that lookups still find by its "
        "old ones.",
    ),
    _fault(
        "hash_final_tokens_only",
        "drafts-never-hashed",
        "Hashes reach over draft tokens. If the drafts are rejected, the prefix cache offers KV of tokens "
        "that the request never had. vllm#18668 reworked how far hashes may reach beside drafts "
        "(they had stopped too early); 0.32.0 stops at request.num_tokens.",
        "vllm-18668",
        (18668,),
        "vLLM has no key for tokens that are not final: with the fault it would invent one, or fail to find "
        "it.",
    ),
    _fault(
        "hash_full_blocks_only",
        "drafts-never-hashed",
        "A block is hashed before it is full: a hit on it offers slots that nobody has written.",
        on_vllm="vLLM has no key for a block that is not full: with the fault it would invent one, or fail "
        "to find it.",
    ),
    _fault(
        "delay_cache_blocks",
        "published-is-written",
        "A delayed load's blocks are hashed when they are allocated. Until the load has arrived, and for "
        "ever if it never does, whoever hits them reads slots that nobody has written.",
    ),
    _fault(
        "retention_keeps_resumed",
        "mask-serves-replay",
        "Few blocks of a window are kept, and none of them where the prompt ends: sent again, it is computed "
        "from the last place that was kept, or from its first token.",
    ),
    _fault(
        "null_block_set_aside",
        "null-block",
        "The null block is in the free queue. A request gets it for its tokens, and shares it with every "
        "window.",
    ),
    _fault(
        "free_tail_first",
        "queue-order",
        "A request's blocks are freed from the head. The head is evicted first, and what is left of the "
        "prefix cannot be hit any more.",
    ),
    _fault(
        "unhashed_to_front",
        "queue-order",
        "Freed blocks without a hash go to the back of the queue: cached blocks are evicted while useless "
        "ones wait.",
    ),
    _fault(
        "free_unreferenced_only",
        "free-count",
        "A block is freed with its first reference, not with its last: it is taken from under whoever "
        "shares it.",
    ),
    _fault(
        "lookup_leaves_a_token",
        "hash-soundness",
        "A hit may cover the whole prompt: no token is left to compute, and none to sample from.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "lookup_stops_at_miss",
        "window-kept",
        "A hit goes on behind a missing block: attention reads the null block where the prompt should be.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "lookup_run_covers_window",
        "window-kept",
        "A window's hit is rounded down to whole blocks. Its first tokens lie in a null block.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "lookup_drops_last_block",
        "consistent-hit",
        "A hit keeps its last block. The draft head wrote into it with the token that then followed, and "
        "another one follows now.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "lookup_agrees_on_a_length",
        "consistent-hit",
        "The first group's hit counts for all. Where another group has evicted a block of it, the request "
        "skips tokens whose KV that group does not have.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "lookup_is_aligned",
        "consistent-hit",
        "A hit may end inside a block. The group with the larger blocks has no whole block for the last "
        "tokens, and they count as computed.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "key_covers_prefix",
        "hash-soundness",
        "A key covers its own block alone: equal blocks behind different beginnings are taken for one "
        "another.",
    ),
    _fault(
        "key_covers_salt",
        "salt-isolation",
        "The cache salt is not in the key: users who asked to be kept apart share blocks, and can time each "
        "other.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "key_covers_group",
        "one-group",
        "The group is not in the key: a group finds the block of another, and attends to the KV of layers "
        "that are not its own.",
        on_vllm=_LOOKUP,
    ),
    _fault(
        "key_tags_kinds",
        "salt-isolation",
        "LoRA name and cache salt go into the key as bare strings. A request of the base model whose salt "
        "is an adapter's name hits that adapter's KV.",
        "vllm-44701",
        (44701, 44706),
        on_vllm=_LOOKUP,
    ),
    _fault(
        "key_covers_lora_path",
        "salt-isolation",
        "The name of a LoRA goes into the key, and not its path. When another adapter is loaded under the "
        "name, its requests hit KV that the first one has computed.",
        "vllm-30931",
        (30931,),
        on_vllm=_LOOKUP,
    ),
)
"""Every fault, in the order of the lesson."""

NAMED: dict[str, Fault] = {name: fault for fault in FAULTS for name in (fault.name, fault.alias) if name}
"""Faults by name and by alias."""

LEFT_OUT = {
    42571: "A freed list that names one block twice. With one attention group every live entry of a block "
    "table has a block of its own, and all that is freed is such a table; the list came from a "
    "connector that offloads KV and holds blocks by itself. The model has no such caller yet.",
}
"""Public bugs that the model cannot tell yet, by the number of their issue or pull request, and why."""


def fault_of(rules: Rules) -> Fault | None:
    """The fault that has exactly these rules; None if none has."""
    return next((fault for fault in FAULTS if fault.bent == rules), None)
