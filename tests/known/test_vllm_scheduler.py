"""The cases of KNOWN.md about vLLM's `Scheduler`, told to it alone: nothing of slotproof is in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytestmark = pytest.mark.vllm

Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a `Scheduler` over a pool of `num_blocks` blocks of `block_size` tokens."""
    model = {
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
    (tmp_path / "config.json").write_text(json.dumps(model))

    def make(
        num_blocks: int, block_size: int, drafts: int = 0, steps_in_flight: int = 1, **limits: Any
    ) -> Any:
        import torch
        from vllm.config import (
            CacheConfig,
            DeviceConfig,
            ModelConfig,
            ParallelConfig,
            SchedulerConfig,
            SpeculativeConfig,
            VllmConfig,
        )
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        model = ModelConfig(
            model=str(tmp_path), skip_tokenizer_init=True, dtype="float32", max_model_len=256, seed=0
        )
        parallel = ParallelConfig(pipeline_parallel_size=steps_in_flight)
        speculative = None
        if drafts:
            speculative = SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=drafts,
                target_model_config=model,
                target_parallel_config=parallel,
            )
        cache = CacheConfig(block_size=block_size, enable_prefix_caching=True)
        config = VllmConfig(
            model_config=model,
            cache_config=cache,
            parallel_config=parallel,
            speculative_config=speculative,
            device_config=DeviceConfig("cpu"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=8,
                max_num_batched_tokens=256,
                max_model_len=256,
                is_encoder_decoder=False,
                async_scheduling=False,
                scheduler_reserve_full_isl=False,
                **limits,
            ),
        )
        cache.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=8, dtype=torch.float32)
        return Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_size,
        )

    return make


def come(scheduler: Any, name: str, num_tokens: int, priority: int = 0) -> Any:
    """A request arrives, with tokens that no other has."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    request = Request(
        request_id=name,
        prompt_token_ids=[(ord(name) * 7 + k) % 60 + 3 for k in range(num_tokens)],
        sampling_params=SamplingParams(max_tokens=50, ignore_eos=True),
        pooling_params=None,
        arrival_time=float(ord(name)),
        priority=priority,
        block_hasher=get_request_block_hasher(scheduler.block_size, sha256),
    )
    scheduler.add_request(request)
    return request


def answer(scheduler: Any, output: Any) -> None:
    """The step has run: who has no prompt left to compute has sampled a token, and a drafter adds one."""
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    decodes = [not scheduler.requests[name].is_prefill_chunk for name in names]
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if decode else [] for decode in decodes],
        ),
    )
    if scheduler.num_spec_tokens:
        scheduler.update_draft_token_ids(DraftTokenIds(names, [[9] if decode else [] for decode in decodes]))


def abort(scheduler: Any, name: str) -> None:
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def test_a_victim_of_the_pass_that_scheduled_it_leaves_hashes_of_what_nobody_wrote(make: Make) -> None:
    scheduler = make(9, 1, policy="priority", max_num_scheduled_tokens=3, long_prefill_token_threshold=2)
    victim = come(scheduler, "v", 7, priority=2)
    scheduled = []
    for arrival in (None, "a", None):
        if arrival is not None:
            come(scheduler, arrival, 1, priority=1)
        output = scheduler.schedule()
        scheduled.append(output.num_scheduled_tokens)
        answer(scheduler, output)
    assert scheduled == [{"v": 3}, {"v": 2, "a": 1}, {"a": 1}]  # 5 tokens of the victim have run
    assert victim.status.name == "PREEMPTED"
    assert scheduler.kv_cache_manager.get_computed_blocks(victim)[1] == 6
    abort(scheduler, "a")
    resumed = scheduler.schedule().scheduled_cached_reqs
    assert (resumed.req_ids, resumed.num_computed_tokens) == (["v"], [6])


def test_a_request_that_preempts_itself_ends_the_pass_for_those_behind_it(make: Make) -> None:
    scheduler = make(3, 4, policy="priority")
    come(scheduler, "a", 3, priority=2)
    answer(scheduler, scheduler.schedule())
    behind = come(scheduler, "b", 1, priority=1)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1, "b": 1}
    answer(scheduler, output)
    output = scheduler.schedule()  # the fifth token of "a" needs a block
    assert (output.preempted_req_ids, output.num_scheduled_tokens) == ({"a"}, {})
    assert (behind.status.name, behind.num_tokens, behind.num_computed_tokens) == ("RUNNING", 2, 1)
    assert len(scheduler.kv_cache_manager.get_blocks("b").blocks[0]) == 1  # room for four tokens


def test_a_padded_decode_that_the_threshold_cuts_stops_the_scheduler(make: Make) -> None:
    scheduler = make(8, 4, drafts=1, long_prefill_token_threshold=1)
    come(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    come(scheduler, "b", 1)
    with pytest.raises(AssertionError):
        scheduler.schedule()


def test_drafts_outlive_a_preemption_and_are_scheduled_without_the_token_before_them(make: Make) -> None:
    scheduler = make(3, 4, drafts=1, steps_in_flight=2, long_prefill_token_threshold=4)
    come(scheduler, "a", 8)
    victim = come(scheduler, "v", 1)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert (first.num_scheduled_tokens, second.num_scheduled_tokens) == ({"a": 4, "v": 1}, {"a": 4})
    assert second.preempted_req_ids == {"v"}
    answer(scheduler, first)  # its token for the victim is kept, and so is the draft that follows it
    answer(scheduler, second)
    abort(scheduler, "a")
    assert scheduler.schedule().num_scheduled_tokens == {"v": 2}  # this step samples the victim's third token
    assert victim.num_tokens == 2
    beside = scheduler.schedule()
    assert beside.num_scheduled_tokens == {"v": 1}
    assert beside.scheduled_spec_decode_tokens == {"v": [9]}
    assert beside.scheduled_cached_reqs.num_computed_tokens == [2]  # where the unknown token belongs


def test_a_delayed_load_of_the_whole_prompt_is_granted_and_its_last_token_computed_again(make: Make) -> None:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    scheduler = make(8, 4)
    scheduler.connector = Mock(
        supports_divergent_local_hybrid_hits=False,
        get_num_new_matched_tokens=lambda request, computed: (request.num_tokens - computed, True),
        get_loaded_kv_cache_group_ids=lambda request: (0,),
        take_events=lambda: None,
        get_kv_connector_stats=lambda: None,
    )
    request = come(scheduler, "a", 8)
    assert scheduler.schedule().num_scheduled_tokens == {}
    assert (request.status.name, request.num_computed_tokens) == (
        "WAITING_FOR_REMOTE_KVS",
        request.num_tokens,
    )
    arrived = ModelRunnerOutput([], {}, kv_connector_output=KVConnectorOutput(finished_recving={"a"}))
    scheduler.update_from_output(SchedulerOutput.make_empty(), arrived)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"a": 1}
    assert output.scheduled_new_reqs[0].num_computed_tokens == 7
    last = scheduler.kv_cache_manager.get_blocks("a").blocks[0][1]
    assert last.block_hash is not None  # published, and the eighth token's slot is in it


def test_an_admission_of_one_token_beside_a_decode_is_padded_with_drafts(make: Make) -> None:
    scheduler = make(8, 4, drafts=3)
    come(scheduler, "a", 1)
    answer(scheduler, scheduler.schedule())
    request = come(scheduler, "b", 1)
    assert scheduler.schedule().num_scheduled_tokens["b"] == 4
    assert request.num_tokens == 1
