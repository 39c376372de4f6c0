"""vLLM's `Scheduler`, alone: nothing of slotproof is in between, and a connector is what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

Offer = Callable[[Any, int], tuple[int, bool]]
"""What a connector has for a request, of which some tokens were found: how many more, and whether later."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}
"""A model that nobody loads."""


def new_scheduler(
    folder: Path,
    num_blocks: int,
    block_size: int,
    drafts: int = 0,
    steps_in_flight: int = 1,
    window: int | None = None,
    max_model_len: int = 256,
    is_async: bool = False,
    offer: Offer | None = None,
    policy_of_loads: str = "recompute",
    **limits: Any,
) -> Any:
    """A scheduler over a pool of `num_blocks` blocks of `block_size` tokens.

    Args:
        folder: Where the model's configuration is written.
        num_blocks: The null block is one of them.
        block_size: Tokens in a block.
        drafts: Drafts of an n-gram drafter.
        steps_in_flight: Stages of a pipeline.
        window: A sliding window, in tokens.
        max_model_len: Tokens of a request, at most.
        is_async: Make an `AsyncScheduler`.
        offer: A connector, which has this.
        policy_of_loads: `kv_load_failure_policy`.
        limits: More of `SchedulerConfig`.
    """
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.structured_output import StructuredOutputManager

    (folder / "config.json").write_text(json.dumps(MODEL))
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=max_model_len, seed=0
    )
    parallel = ParallelConfig(pipeline_parallel_size=steps_in_flight)
    speculative = transfer = None
    if drafts:
        speculative = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=drafts,
            target_model_config=model,
            target_parallel_config=parallel,
        )
    if offer is not None:
        transfer = KVTransferConfig(
            kv_connector="ExampleConnector", kv_role="kv_both", kv_load_failure_policy=policy_of_loads
        )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        parallel_config=parallel,
        speculative_config=speculative,
        kv_transfer_config=transfer,
        device_config=DeviceConfig("cpu"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            async_scheduling=False,
            scheduler_reserve_full_isl=False,
            **limits,
        ),
    )
    config.scheduler_config.async_scheduling = is_async  # the CPU's platform would switch it off
    cache.num_gpu_blocks = num_blocks
    shape = {"block_size": block_size, "num_kv_heads": 2, "head_size": 8, "dtype": torch.float32}
    spec = FullAttentionSpec(**shape) if window is None else SlidingWindowSpec(**shape, sliding_window=window)
    scheduler = (AsyncScheduler if is_async else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )
    if offer is not None:
        scheduler.connector = Mock(
            supports_divergent_local_hybrid_hits=False,
            get_num_new_matched_tokens=offer,
            get_loaded_kv_cache_group_ids=lambda request: (0,),
            has_pending_block_frees=lambda: False,
            request_finished=lambda request, blocks: (False, None),
            take_events=lambda: None,
            get_kv_connector_stats=lambda: None,
        )
    return scheduler


def come(
    scheduler: Any,
    name: str,
    tokens: int | Iterable[int],
    priority: int = 0,
    max_tokens: int = 50,
    resumable: bool = False,
) -> Any:
    """A request arrives; with a number of tokens, they are such as no other has. A name that is known and
    resumable brings more input."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    if isinstance(tokens, int):
        tokens = [(ord(name[0]) * 7 + k) % 60 + 3 for k in range(tokens)]
    request = Request(
        request_id=name,
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        arrival_time=float(ord(name[0])),
        priority=priority,
        block_hasher=get_request_block_hasher(scheduler.block_size, sha256),
        resumable=resumable,
    )
    scheduler.add_request(request)
    return request


def answer(
    scheduler: Any,
    output: Any,
    bad: Collection[int] = (),
    failed: Collection[str] = (),
    arrived: Collection[str] = (),
    sampled: dict[str, list[int]] | None = None,
) -> None:
    """The step has run: who has no prompt left to compute has sampled a token, and a drafter adds its own.

    Args:
        scheduler: Whose step it is.
        output: The step.
        bad: Blocks that a load did not bring.
        failed: Requests whose load failed.
        arrived: Requests whose load has come to its end.
        sampled: What requests have sampled, if not token 7.
    """
    from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    decodes = [n not in scheduler.requests or not scheduler.requests[n].is_prefill_chunk for n in names]
    answers = {} if sampled is None else sampled
    transfers = KVConnectorOutput(
        invalid_block_ids=set(bad), failed_recving=set(failed), finished_recving=set(arrived)
    )
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[
                answers.get(n, [7]) if decode else [] for n, decode in zip(names, decodes, strict=True)
            ],
            kv_connector_output=transfers if bad or failed or arrived else None,
        ),
    )
    if scheduler.num_spec_tokens:
        drafts = [9] * scheduler.num_spec_tokens
        scheduler.update_draft_token_ids(
            DraftTokenIds(names, [drafts if decode else [] for decode in decodes])
        )


def hear(scheduler: Any, **of_loads: Collection[Any]) -> None:
    """A connector tells what became of loads, beside no step (see `answer`)."""
    from vllm.v1.core.sched.output import SchedulerOutput

    answer(scheduler, SchedulerOutput.make_empty(), **of_loads)  # type: ignore[arg-type]


def abort(scheduler: Any, name: str) -> None:
    """Nobody waits for the request any more."""
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def blocks(scheduler: Any, name: str) -> list[int]:
    """A request's block table."""
    table: list[int] = scheduler.kv_cache_manager.get_block_ids(name)[0]
    return table


def num_free(scheduler: Any) -> int:
    """Free blocks."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def found(scheduler: Any, request: Any) -> int:
    """Tokens that a lookup finds for the request."""
    return int(scheduler.kv_cache_manager.get_computed_blocks(request)[1])
