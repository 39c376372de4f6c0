"""Real vLLM behind the protocol: an ordinary `KVCacheManager` and the scheduler's bookkeeping around it.

Nothing of vLLM is replaced or patched: calls go through the manager's public methods, snapshots read its
parts. vLLM is imported when an allocator is made, not when this module is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)
from slotproof.impl.vllm.parts import (
    block_hasher,
    block_ids,
    kv_cache_config,
    require_vllm,
    snapshot,
    tags,
    watermark,
)

if TYPE_CHECKING:
    from vllm.v1.request import Request


def _illegal(call: Call, why: str) -> ValueError:
    return ValueError(f"illegal {type(call).__name__}: {why}")


def _manager(config: Config) -> Any:
    """A `KVCacheManager` with one attention group, constructed as the scheduler does."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    manager = KVCacheManager(
        kv_cache_config(config),
        max_model_len=config.max_model_len,
        scheduler_block_size=config.block_size,
        hash_block_size=config.block_size,
        max_in_flight_tokens=config.max_in_flight_tokens,
        enable_caching=config.enable_caching,
        watermark=watermark(config),
    )
    if manager.watermark_blocks != config.watermark_blocks:
        raise ValueError(
            f"watermark_blocks {config.watermark_blocks} cannot be said as a share of {config.num_blocks} "
            f"blocks (vLLM makes it {manager.watermark_blocks}): take a smaller one"
        )
    return manager


class VllmAllocator:
    """`Allocator` over one real `KVCacheManager`.

    The caller's side (status, computed tokens, tokens in flight) is kept on real `Request` objects, as
    vLLM's scheduler keeps it.

    Raises:
        ImportError: vLLM is not installed or does not import.
        ValueError: a count of the configuration is too small, or vLLM cannot take its watermark.
    """

    def __init__(self, config: Config) -> None:
        for name in ("num_blocks", "block_size", "max_model_len", "sliding_window"):
            count = getattr(config, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}: make it at least 1")
        for name in ("watermark_blocks", "max_in_flight_tokens"):
            if getattr(config, name) < 0:
                raise ValueError(f"{name} is {getattr(config, name)}: make it at least 0")
        require_vllm("vllm.lora.request", "vllm.v1.core.kv_cache_manager")
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request, RequestStatus

        self._config = config
        self._status = RequestStatus
        self._new_request = Request
        self._sampling_params = SamplingParams(max_tokens=1)
        self._block_hasher = block_hasher(config)
        self._manager = _manager(config)
        self._group = self._manager.coordinator.single_type_managers[0]
        self._requests: dict[int, Request] = {}
        self._used_ids: set[int] = set()
        self._steps: dict[type, Callable[[Any], Result]] = {
            AddRequest: self._add_request,
            Allocate: self._allocate,
            Execute: lambda _: Result(),
            Complete: self._complete,
            CacheBlocks: self._cache_blocks,
            RemoveSkipped: self._remove_skipped,
            Preempt: self._preempt,
            Finish: self._finish,
            EvictBlocks: self._evict_blocks,
            ResetPrefixCache: self._reset_prefix_cache,
            TakeNewBlockIds: self._take_new_block_ids,
        }

    def step(self, call: Call) -> Result:
        """Make one call.

        `hits` is what the lookup found, also when slots are then refused. `new_blocks` is what
        `allocate_slots` returned: blocks it took for external tokens are not among them.

        Raises:
            ValueError: the caller's contract forbids the call; nothing has changed.
            Exception: whatever vLLM raises.
        """
        return self._steps[type(call)](call)

    def snapshot(self) -> Snapshot:
        """The state now, read from vLLM's pool and its one attention group."""
        return snapshot(self._manager)

    def _request(self, call: Any) -> Request:
        request = self._requests.get(call.request)
        if request is None:
            raise _illegal(call, f"request {call.request} is not known")
        return request

    def _add_request(self, call: AddRequest) -> Result:
        if call.request in self._used_ids:
            raise _illegal(call, f"request id {call.request} was used before")
        if not 1 <= len(call.tokens) <= self._config.max_model_len:
            limit = self._config.max_model_len
            raise _illegal(call, f"{len(call.tokens)} tokens, must be 1 to max_model_len {limit}")
        if call.salt < 0 or call.lora < 0:
            raise _illegal(call, f"salt {call.salt} and lora {call.lora} must not be negative")
        self._requests[call.request] = self._new_request(
            request_id=str(call.request),
            prompt_token_ids=list(call.tokens),
            sampling_params=self._sampling_params,
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._block_hasher,
            **tags(call.salt, call.lora),
        )
        self._used_ids.add(call.request)
        return Result()

    def _allocate(self, call: Allocate) -> Result:
        request = self._request(call)
        if min(call.new, call.lookahead, call.external, call.reserved) < 0:
            raise _illegal(call, "new, lookahead, external and reserved must not be negative")
        computed = request.num_computed_tokens
        found, hit_tokens = self._manager.empty_kv_cache_blocks, 0
        if request.status == self._status.RUNNING:
            if call.new < 1 or call.external or call.delay_cache:
                raise _illegal(call, f"request {call.request} runs: new >= 1, no external, no delay_cache")
            if computed + call.new > self._config.max_model_len:
                raise _illegal(call, f"{computed} computed + {call.new} new tokens exceed max_model_len")
        elif request.status in (self._status.WAITING, self._status.PREEMPTED):
            if computed == 0 and not call.skip_cache:
                found, hit_tokens, _ = self._manager.get_computed_blocks(request)
            self._check_admission(call, request, hit_tokens)
        else:
            raise _illegal(call, f"request {call.request} waits for its load: cache_blocks first")
        hits = block_ids(found)
        granted = self._manager.allocate_slots(
            request,
            call.new,
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=found,
            num_lookahead_tokens=call.lookahead,
            num_external_computed_tokens=call.external,
            delay_cache_blocks=call.delay_cache,
            full_sequence_must_fit=call.must_fit,
            reserved_blocks=call.reserved,
            has_scheduled_reqs=call.has_scheduled,
            skip_zeroing_group_ids=(0,) if call.skip_zeroing else (),
        )
        if granted is None:
            return Result(granted=False, hits=hits)
        request.num_computed_tokens = computed + hit_tokens + call.external + call.new
        request.num_in_flight_tokens += call.new
        status = self._status
        request.status = status.WAITING_FOR_REMOTE_KVS if call.delay_cache else status.RUNNING
        return Result(hits=hits, new_blocks=block_ids(granted))

    @staticmethod
    def _check_admission(call: Allocate, request: Request, hit_tokens: int) -> None:
        computed = request.num_computed_tokens
        if computed and call.external:
            raise _illegal(call, f"request {call.request} has computed tokens: no external ones on top")
        total = computed + hit_tokens + call.external
        if call.delay_cache:
            if call.new or not call.external:
                raise _illegal(call, "delay_cache goes with new == 0 and external > 0")
            if total >= request.num_tokens:
                raise _illegal(call, f"{total} computed tokens leave none of {request.num_tokens} to compute")
        elif call.new < 1:
            raise _illegal(call, "new is 0: only a delayed load may ask for no new tokens")
        elif total + call.new > request.num_tokens:
            raise _illegal(call, f"{total} computed + {call.new} new exceed {request.num_tokens} tokens")

    def _complete(self, call: Complete) -> Result:
        request = self._request(call)
        if request.status != self._status.RUNNING:
            raise _illegal(call, f"request {call.request} does not run")
        computed, in_flight = request.num_computed_tokens, request.num_in_flight_tokens
        if not 1 <= call.processed <= in_flight:
            raise _illegal(call, f"processed {call.processed} must be 1 to {in_flight} tokens in flight")
        if not 0 <= call.rejected <= call.processed:
            raise _illegal(call, f"rejected {call.rejected} must be 0 to processed {call.processed}")
        ran = computed - in_flight + call.processed
        if ran - call.rejected < min(ran, request.num_tokens):
            raise _illegal(
                call, f"rejected {call.rejected}: only drafts past {request.num_tokens} tokens can be"
            )
        settled = ran - call.rejected
        limit = min(self._config.max_model_len, settled + 1)
        if call.sampled and request.num_tokens + len(call.sampled) > limit:
            raise _illegal(call, f"{request.num_tokens} + {len(call.sampled)} sampled tokens exceed {limit}")
        request.num_in_flight_tokens = in_flight - call.processed
        request.num_computed_tokens = computed - call.rejected
        if call.sampled:
            request.append_output_token_ids(list(call.sampled))
        return Result()

    def _cache_blocks(self, call: CacheBlocks) -> Result:
        request = self._request(call)
        if call.tokens is not None:
            ran = request.num_computed_tokens - request.num_in_flight_tokens
            if request.status != self._status.RUNNING:
                raise _illegal(call, f"request {call.request} does not run")
            if not 1 <= call.tokens <= min(ran, request.num_tokens):
                raise _illegal(call, f"{ran} of the {request.num_tokens} tokens have run")
            self._manager.cache_blocks(request, call.tokens)
            return Result()
        if request.status != self._status.WAITING_FOR_REMOTE_KVS:
            raise _illegal(call, f"request {call.request} waits for no load")
        self._manager.cache_blocks(request, request.num_computed_tokens)
        request.status = self._status.WAITING
        return Result()

    def _remove_skipped(self, call: RemoveSkipped) -> Result:
        request = self._request(call)
        if not self._group.req_to_blocks.get(request.request_id):
            raise _illegal(call, f"request {call.request} has no block table")
        settled = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        self._manager.remove_skipped_blocks(request.request_id, settled, request.num_prompt_tokens)
        return Result()

    def _preempt(self, call: Preempt) -> Result:
        request = self._request(call)
        if request.status != self._status.RUNNING:
            raise _illegal(call, f"request {call.request} does not run")
        self._manager.free(request)
        request.num_computed_tokens = request.num_in_flight_tokens = 0
        request.status = self._status.PREEMPTED
        return Result()

    def _finish(self, call: Finish) -> Result:
        self._manager.free(self._request(call))
        del self._requests[call.request]
        return Result()

    def _evict_blocks(self, call: EvictBlocks) -> Result:
        for block in call.blocks:
            if not 0 <= block < self._config.num_blocks:
                raise _illegal(call, f"block {block} is not in a pool of {self._config.num_blocks}")
        self._manager.evict_blocks(set(call.blocks))
        return Result()

    def _reset_prefix_cache(self, call: ResetPrefixCache) -> Result:
        return Result(granted=self._manager.reset_prefix_cache())

    def _take_new_block_ids(self, call: TakeNewBlockIds) -> Result:
        return Result(new_blocks=tuple(self._manager.take_new_block_ids()))


def vllm_allocator(config: Config) -> VllmAllocator:
    """The factory: real vLLM with one pool and one attention group.

    Raises:
        ImportError: vLLM is not installed or does not import; the message names the remedy.
        ValueError: vLLM cannot take the configuration.
    """
    return VllmAllocator(config)
