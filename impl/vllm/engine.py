"""vLLM's own `Scheduler`, built on the CPU without a model: its configuration asks for what a setup says."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slotproof.impl.protocol import Config
from slotproof.impl.scheduler.scheduler_config import SchedulerConfig
from slotproof.impl.vllm.parts import (
    kv_cache_config,
    require_vllm,
    watermark,
)

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 1 << 16,
}
"""A model that nobody loads: vLLM reads its shape from a `config.json`."""


def max_num_batched_tokens(config: SchedulerConfig) -> int:
    """What vLLM is told as the most inputs of a step: room for all running requests, and for the slot that
    a draft model takes of each. `max_num_scheduled_tokens` is the tighter bound."""
    return config.max_num_scheduled_tokens + 2 * config.max_num_running_reqs


def max_in_flight_tokens(config: SchedulerConfig, steps_in_flight: int) -> int:
    """What vLLM 0.32.0 makes of it: that many inputs for each step in flight."""
    return steps_in_flight * max_num_batched_tokens(config)


def real_scheduler(
    config: Config, scheduler_config: SchedulerConfig, steps_in_flight: int, has_connector: bool
) -> Any:
    """A `Scheduler`, or an `AsyncScheduler`, as vLLM's engine makes it.

    Steps in flight are those of pipeline parallelism, or the two of asynchronous scheduling. Drafts come
    from n-grams if they need no lookahead, else from a draft model.

    Args:
        config: The pool and its attention groups.
        scheduler_config: The scheduler's limits.
        steps_in_flight: Batches at once.
        has_connector: Whether it has a `VllmConnector`.

    Raises:
        ImportError: vLLM is not installed or does not import; the message names the remedy.
        ValueError: vLLM cannot be told this.
    """
    require_vllm("vllm.config", "vllm.v1.core.sched.async_scheduler", "vllm.v1.structured_output")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    vllm_config = _vllm_config(config, scheduler_config, steps_in_flight, has_connector)
    scheduler = (AsyncScheduler if scheduler_config.async_scheduling else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=kv_cache_config(config),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=config.scheduler_block_size,
        hash_block_size=config.hash_block_size,
    )
    manager = scheduler.kv_cache_manager
    asked = {
        "max_in_flight_tokens": (config.max_in_flight_tokens, vllm_config.max_in_flight_tokens),
        "watermark_blocks": (config.watermark_blocks, manager.watermark_blocks),
        "num_lookahead_tokens": (scheduler_config.num_lookahead_tokens, scheduler.num_lookahead_tokens),
        "max_num_scheduled_tokens": (
            scheduler_config.max_num_scheduled_tokens,
            scheduler.max_num_scheduled_tokens,
        ),
    }
    for name, (ours, theirs) in asked.items():
        if ours != theirs:
            raise ValueError(f"{name}: vLLM makes it {theirs}, not {ours}")
    return scheduler


def _vllm_config(
    config: Config, scheduler_config: SchedulerConfig, steps_in_flight: int, has_connector: bool
) -> Any:
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        KVTransferConfig,
        ModelConfig,
        ParallelConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.config import SchedulerConfig as VllmSchedulerConfig

    is_async = scheduler_config.async_scheduling
    with TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL))
        model = ModelConfig(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=config.max_model_len,
            seed=0,
        )
        parallel = ParallelConfig(pipeline_parallel_size=1 if is_async else steps_in_flight)
        speculative = None
        if scheduler_config.num_spec_tokens:
            drafter = {"model": folder} if scheduler_config.num_lookahead_tokens else {}
            speculative = SpeculativeConfig(
                method="draft_model" if drafter else "ngram",
                num_speculative_tokens=scheduler_config.num_spec_tokens,
                target_model_config=model,
                target_parallel_config=parallel,
                **drafter,
            )
        transfer = None
        if has_connector:
            transfer = KVTransferConfig(
                kv_connector="VllmConnector",
                kv_connector_module_path="slotproof.impl.vllm.connector",
                # With steps in flight a consumer's frees are deferred, for loads that are not ordered after
                # the steps. Those of the stub are.
                kv_role="kv_both" if steps_in_flight == 1 else "kv_producer",
            )
        cache = CacheConfig(block_size=config.block_size, enable_prefix_caching=config.enable_caching)
        made = VllmConfig(
            model_config=model,
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            parallel_config=parallel,
            speculative_config=speculative,
            kv_transfer_config=transfer,
            scheduler_config=VllmSchedulerConfig(
                policy=scheduler_config.policy.value,
                max_num_seqs=scheduler_config.max_num_running_reqs,
                max_num_batched_tokens=max_num_batched_tokens(scheduler_config),
                max_num_scheduled_tokens=scheduler_config.max_num_scheduled_tokens,
                long_prefill_token_threshold=scheduler_config.long_prefill_token_threshold,
                scheduler_reserve_full_isl=scheduler_config.scheduler_reserve_full_isl,
                watermark=watermark(config),
                max_model_len=config.max_model_len,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
        )
    made.scheduler_config.async_scheduling = is_async  # the CPU's platform would switch it off
    cache.num_gpu_blocks = config.num_blocks
    return made
