"""Who is timed: our allocator call by call and in batches, vLLM's, and a loop that only counts.

Of a contender `lookup`, `allocate`, `decode` and `free` are timed. The rest is its caller's bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias

from slotproof.impl.allocator.decode_batch import BatchSlots
from slotproof.impl.allocator.kv_cache_coordinator import KVCacheBlocks
from slotproof.impl.allocator.kv_cache_manager import KVCacheManager
from slotproof.impl.allocator.request import Request, RequestStatus
from slotproof.impl.protocol import Config
from slotproof.impl.vllm.parts import (
    block_hasher,
    block_ids,
    kv_cache_config,
    require_vllm,
)

Taken: TypeAlias = list[tuple[int, int]]
"""What a decode step took: the position of a request in the step, and its block."""


class Contender(Protocol):
    """A KV-cache manager with a caller. Requests and answers are what the contender makes of them."""

    name: str

    def request(self, name: str, tokens: Sequence[int]) -> Any:
        """A request has arrived; its tokens are hashed."""
        ...

    def lookup(self, request: Any) -> Any:
        """Timed: the request's hit in the prefix cache."""
        ...

    def allocate(self, request: Any, hit: Any) -> None:
        """Timed: slots for all of the request's tokens."""
        ...

    def table(self, request: Any) -> list[int]:
        """The request's block tables, one after the other."""
        ...

    def advance(self, requests: Sequence[Any], token: int) -> None:
        """What the requests have slots for is computed, and each goes on with this token, which is hashed."""
        ...

    def decode(self, requests: Sequence[Any]) -> Any:
        """Timed: a slot for the next token of each; always the same requests."""
        ...

    def taken(self, answer: Any) -> Taken:
        """What `decode` answered."""
        ...

    def free(self, request: Any) -> None:
        """Timed: the request gives its blocks back."""
        ...


class Single:
    """Ours, one call for each request."""

    name = "ours"

    def __init__(self, config: Config) -> None:
        self.manager = KVCacheManager(config)
        self._block_sizes = [group.block_size for group in config.all_groups]

    def request(self, name: str, tokens: Sequence[int]) -> Request:
        return Request(name, tokens, block_size=self._block_sizes)

    def lookup(self, request: Request) -> tuple[KVCacheBlocks, int]:
        return self.manager.get_computed_blocks(request)

    def allocate(self, request: Request, hit: tuple[KVCacheBlocks, int]) -> None:
        blocks, num_tokens = hit
        self.manager.allocate_slots(request, request.num_tokens - num_tokens, num_tokens, blocks)

    def table(self, request: Request) -> list[int]:
        return list(chain.from_iterable(self.manager.get_block_ids(request.request_id)))

    def advance(self, requests: Sequence[Request], token: int) -> None:
        for request in requests:
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids([token])

    def decode(self, requests: Sequence[Request]) -> Any:
        allocate_slots = self.manager.allocate_slots
        return [allocate_slots(request, 1) for request in requests]

    def taken(self, answer: Any) -> Taken:
        return [(index, block) for index, blocks in enumerate(answer) for block in chain(*blocks)]

    def free(self, request: Request) -> None:
        self.manager.free(request)


class Batched(Single):
    """Ours, one call for a decode step."""

    name = "ours, batched"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._batch = self.manager.decode_batch()

    def advance(self, requests: Sequence[Request], token: int) -> None:
        super().advance(requests, token)
        if len(self._batch):
            self._batch.num_computed_tokens += 1
            self._batch.num_tokens += 1
        else:
            self._batch.add(requests)

    def decode(self, requests: Sequence[Request]) -> BatchSlots:
        return self.manager.allocate_slots_batch(self._batch)

    def taken(self, answer: BatchSlots) -> Taken:
        return list(zip(answer.indices, answer.block_ids, strict=True))


class Vllm:
    """An installed vLLM's `KVCacheManager`, made as its scheduler does.

    Raises:
        ImportError: vLLM is not installed, or does not import; the message names the remedy.
    """

    name = "vLLM"

    def __init__(self, config: Config) -> None:
        require_vllm("vllm.v1.core.kv_cache_manager")
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.request import Request, RequestStatus

        self._new_request = Request
        self._running = RequestStatus.RUNNING
        self._sampling_params = SamplingParams(max_tokens=1)
        self._block_hasher = block_hasher(config)
        self.manager = KVCacheManager(
            kv_cache_config(config),
            max_model_len=config.max_model_len,
            scheduler_block_size=config.scheduler_block_size,
            hash_block_size=config.hash_block_size,
            enable_caching=config.enable_caching,
        )

    def request(self, name: str, tokens: Sequence[int]) -> Any:
        return self._new_request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=self._sampling_params,
            pooling_params=None,
            block_hasher=self._block_hasher,
        )

    def lookup(self, request: Any) -> Any:
        return self.manager.get_computed_blocks(request)

    def allocate(self, request: Any, hit: Any) -> None:
        blocks, num_tokens, _ = hit
        self.manager.allocate_slots(request, request.num_tokens - num_tokens, num_tokens, blocks)

    def table(self, request: Any) -> list[int]:
        return list(chain.from_iterable(self.manager.get_block_ids(request.request_id)))

    def advance(self, requests: Sequence[Any], token: int) -> None:
        for request in requests:
            request.status = self._running
            request.num_computed_tokens = request.num_tokens
            request.append_output_token_ids([token])

    def decode(self, requests: Sequence[Any]) -> Any:
        allocate_slots = self.manager.allocate_slots
        return [allocate_slots(request, 1) for request in requests]

    def taken(self, answer: Any) -> Taken:
        return [(index, block) for index, blocks in enumerate(answer) for block in block_ids(blocks)]

    def free(self, request: Any) -> None:
        self.manager.free(request)


class Counting:
    """The leanest loop in plain Python: counts and block tables, and nothing else.

    No prefix cache, no references, no checks: below this no allocator gets that looks at every request. Its
    requests are positions in its lists.
    """

    name = "counting loop"

    def __init__(self, config: Config) -> None:
        self._block_size = config.block_size
        self._free = deque(range(1, config.num_blocks))
        self._num_tokens: list[int] = []
        self._num_computed_tokens: list[int] = []
        self._num_slots: list[int] = []
        self._tables: list[list[int]] = []

    def request(self, name: str, tokens: Sequence[int]) -> int:
        self._num_tokens.append(len(tokens))
        self._num_computed_tokens.append(0)
        self._num_slots.append(0)
        self._tables.append([])
        return len(self._tables) - 1

    def lookup(self, request: int) -> None:
        return None

    def allocate(self, request: int, hit: None) -> None:
        popleft = self._free.popleft
        num_blocks = -(-self._num_tokens[request] // self._block_size)
        self._tables[request] += [popleft() for _ in range(num_blocks)]
        self._num_slots[request] = num_blocks * self._block_size

    def table(self, request: int) -> list[int]:
        return self._tables[request].copy()

    def advance(self, requests: Sequence[int], token: int) -> None:
        for request in requests:
            self._num_computed_tokens[request] = self._num_tokens[request]
            self._num_tokens[request] += 1

    def decode(self, requests: Sequence[int]) -> Taken:
        num_computed_tokens, num_slots, tables = self._num_computed_tokens, self._num_slots, self._tables
        taken = []
        for request in requests:
            if num_computed_tokens[request] == num_slots[request]:
                block = self._free.popleft()
                tables[request].append(block)
                num_slots[request] += self._block_size
                taken.append((request, block))
        return taken

    def taken(self, answer: Taken) -> Taken:
        return answer

    def free(self, request: int) -> None:
        table = self._tables[request]
        self._free.extend(reversed(table))
        table.clear()
