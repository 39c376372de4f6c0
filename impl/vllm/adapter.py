"""Real vLLM behind the protocol: an ordinary `KVCacheManager`, and requests as the ledger has them.

Nothing of vLLM is replaced or patched: calls go through the manager's public methods, snapshots read its
parts. vLLM is imported when an allocator is made, not when this module is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slotproof.impl.adapter import Adapter, Hit
from slotproof.impl.group_checks import check_groups
from slotproof.impl.ledger import Entry, Status
from slotproof.impl.protocol import (
    AddRequest,
    Allocate,
    Complete,
    Config,
    EvictBlocks,
    Finish,
    RemoveSkipped,
    ResetPrefixCache,
    Snapshot,
    TakeNewBlockIds,
)
from slotproof.impl.vllm import release
from slotproof.impl.vllm.parts import (
    block_hasher,
    block_ids,
    kv_cache_config,
    require_vllm,
    snapshot,
    tags,
    watermark,
)
from slotproof.impl.vllm.release import taken

if TYPE_CHECKING:
    from vllm.v1.request import Request

_STATUS = {
    Status.WAITING: "WAITING",
    Status.LOADING: "WAITING_FOR_REMOTE_KVS",
    Status.RUNNING: "RUNNING",
    Status.PREEMPTED: "PREEMPTED",
}


def new_manager(config: Config) -> Any:
    """A `KVCacheManager` with the attention groups, constructed as the scheduler does."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    manager = KVCacheManager(
        kv_cache_config(config),
        **taken(
            KVCacheManager,
            max_model_len=config.max_model_len,
            scheduler_block_size=config.scheduler_block_size,
            hash_block_size=config.hash_block_size,
            max_in_flight_tokens=config.max_in_flight_tokens,
            max_num_batched_tokens=config.max_in_flight_tokens,  # its name before 0.26.0
            enable_caching=config.enable_caching,
            use_eagle=any(group.is_eagle for group in config.all_groups),
            num_prefill_lookahead=config.num_prefill_lookahead,
            watermark=watermark(config),
        ),
    )
    if getattr(manager, "watermark_blocks", 0) != config.watermark_blocks:
        raise ValueError(
            f"watermark_blocks {config.watermark_blocks} cannot be said as a share of {config.num_blocks} "
            f"blocks (vLLM makes it {manager.watermark_blocks}): take a smaller one"
        )
    return manager


class VllmAllocator(Adapter):
    """`Allocator` over one real `KVCacheManager`. `new_blocks` is what `allocate_slots` returned: blocks it
    took for external tokens are not among them.

    Raises:
        ImportError: vLLM is not installed or does not import.
        ValueError: a count of the configuration is too small, vLLM cannot take its watermark, or it does with
            such groups what is not in the model.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("num_blocks", "block_size", "max_model_len", "sliding_window"):
            count = getattr(config, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}: make it at least 1")
        check_groups(config)
        if config.groups and config.enable_caching:
            _check_units(config)
        for name in ("watermark_blocks", "max_in_flight_tokens"):
            if getattr(config, name) < 0:
                raise ValueError(f"{name} is {getattr(config, name)}: make it at least 0")
        require_vllm("vllm.lora.request", "vllm.v1.core.kv_cache_manager")
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request, RequestStatus

        self._status = {ours: RequestStatus[theirs] for ours, theirs in _STATUS.items()}
        self._new_request = Request
        self._sampling_params = SamplingParams(max_tokens=1)
        self._block_hasher = block_hasher(config)
        self._manager = new_manager(config)
        self._groups = self._manager.coordinator.single_type_managers

    def add(self, entry: Entry) -> None:
        entry.own = self._new_request(
            request_id=str(entry.number),
            prompt_token_ids=list(entry.tokens),
            sampling_params=self._sampling_params,
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self._block_hasher,
            **tags(entry.salt, entry.lora),
        )

    def find(self, entry: Entry) -> Hit:
        request = self._request(entry)
        found, num_tokens, *more = self._manager.get_computed_blocks(request)
        if more:  # the scheduler notes it
            request.shared_prefix_boundary = more[0]
        return Hit(block_ids(found), num_tokens, found)

    def allocate(self, entry: Entry, call: Allocate, hit: Hit) -> tuple[int, ...] | None:
        request, found = self._request(entry), hit.own or self._manager.empty_kv_cache_blocks
        if entry.waits and entry.computed == 0 and hit.own is None:
            request.shared_prefix_boundary = 0
        fits = getattr(self._manager, "can_fit_full_sequence", None)  # up to 0.20.2 a call of its own
        if fits and call.must_fit and not fits(request, hit.num_tokens, found, call.external):
            return None
        granted = self._manager.allocate_slots(
            request,
            call.new,
            num_new_computed_tokens=hit.num_tokens,
            new_computed_blocks=found,
            num_lookahead_tokens=call.lookahead,
            num_external_computed_tokens=call.external,
            delay_cache_blocks=call.delay_cache,
            **taken(
                self._manager.allocate_slots,
                full_sequence_must_fit=call.must_fit,
                reserved_blocks=call.reserved,
                has_scheduled_reqs=call.has_scheduled,
                skip_zeroing_group_ids=tuple(range(len(self._groups))) if call.skip_zeroing else (),
            ),
        )
        return None if granted is None else block_ids(granted)

    def publish(self, entry: Entry, num_tokens: int) -> None:
        self._manager.cache_blocks(self._request(entry), num_tokens)

    def release(self, entry: Entry) -> None:
        prompt = taken(self._manager.remove_skipped_blocks, num_prompt_tokens=entry.num_prompt_tokens)
        self._manager.remove_skipped_blocks(str(entry.number), entry.settled, **prompt)

    def free(self, entry: Entry) -> None:
        self._manager.free(self._request(entry))

    def evict(self, blocks: tuple[int, ...]) -> None:
        self._manager.evict_blocks(set(blocks))

    def reset(self) -> bool:
        return bool(self._manager.reset_prefix_cache())

    def take_new_block_ids(self) -> tuple[int, ...]:
        return tuple(self._manager.take_new_block_ids())

    def snapshot(self) -> Snapshot:
        """The state now, read from vLLM's pool and its attention groups."""
        return snapshot(self._manager)

    def _request(self, entry: Entry) -> Request:
        """vLLM's request, as the ledger has it now: its scheduler keeps these fields."""
        request = entry.own
        if request.num_tokens < len(entry.tokens):
            request.append_output_token_ids(entry.tokens[request.num_tokens :])
        request.status = self._status[entry.status]
        request.num_computed_tokens = entry.computed
        request.num_in_flight_tokens = entry.in_flight
        return request


def _check_units(config: Config) -> None:
    """Raises ValueError for groups of full attention that key a prompt's partial last block."""
    for g, group in enumerate(config.all_groups):
        is_full = group.sliding_window is None and group.attention_chunk_size is None
        if is_full and group.block_size != (unit := config.hash_block_size):
            raise ValueError(
                f"group {g}: block_size is {group.block_size}: vLLM, which hashes {unit} token(s) at a time, "
                f"keys a prompt's partial last block there, which is not in the model: make it {unit}"
            )


class VllmFactory:
    """Makes allocators of the installed vLLM, and says which it is and what it lacks.

    Raises:
        ImportError: vLLM is not installed, does not import, or is none that this adapter fits; the message
            names the remedy.
    """

    def __init__(self) -> None:
        require_vllm("vllm.lora.request", "vllm.v1.core.kv_cache_manager")
        self.release = release.VERSION or ""
        self.installed = f"vLLM {self.release}"
        if missing := release.missing():
            raise release.does_not_fit(missing)
        self.lacks = release.lacks()
        self.has_groups = True
        self.has_more = self.release == "0.32.0"  # others were never compared
        try:
            self._try_out()
        except (AttributeError, ImportError, TypeError) as error:
            raise release.does_not_fit([" ".join(str(error).split())]) from error

    def __call__(self, config: Config) -> VllmAllocator:
        return VllmAllocator(config)

    def _try_out(self) -> None:
        """A request comes and goes: whatever an adapter calls and reads is there."""
        allocator = self(Config(num_blocks=4, block_size=1, max_model_len=3, sliding_window=2))
        for call in (AddRequest(0, (1, 2)), Allocate(0, 2), Complete(0, 2), RemoveSkipped(0)):
            allocator.step(call)
        allocator.snapshot()
        for last in (Finish(0), EvictBlocks((1,)), ResetPrefixCache(), TakeNewBlockIds()):
            allocator.step(last)


def vllm_allocator(config: Config) -> VllmAllocator:
    """The factory: real vLLM with one pool and its attention groups.

    Raises:
        ImportError: vLLM is not installed or does not import; the message names the remedy.
        ValueError: vLLM cannot take the configuration.
    """
    return VllmAllocator(config)
