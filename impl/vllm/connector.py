"""The KV connector that vLLM's scheduler is given: it has what `ConnectorStub` has.

vLLM's connector factory imports this module; nothing else may without vLLM.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from slotproof.impl.scheduler.connector import Connector
from slotproof.impl.scheduler.scheduler_output import Load
from slotproof.impl.vllm.parts import tables


class VllmConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The scheduler's side alone; `source` is what answers, and must be set before the first step."""

    source: Connector
    number: dict[str, int]
    """The protocol's number of each request."""
    num_groups: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._matches: dict[str, tuple[int, bool]] = {}
        self._loads: list[Load] = []

    @property
    def requires_kv_delivery(self) -> bool:
        """It only brings."""
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """What the source has after `num_computed_tokens` tokens, and whether it arrives later."""
        if request.skip_reading_prefix_cache:
            return 0, False
        number = self.number[request.request_id]
        match = self.source.get_num_new_matched_tokens(number, request.num_tokens, num_computed_tokens)
        self._matches[request.request_id] = num_computed_tokens, match.is_async
        return match.num_tokens, match.is_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The request has its blocks: they are loaded."""
        if num_external_tokens:
            start, is_async = self._matches[request.request_id]
            end = start + num_external_tokens
            number = self.number[request.request_id]
            first, *more = tables(blocks.get_block_ids())
            self._loads.append(Load(number, start, end, first, is_async, tuple(more)))

    def take_loads(self) -> tuple[Load, ...]:
        """The loads of the step that was scheduled last."""
        loads, self._loads = tuple(self._loads), []
        return loads

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All groups."""
        return tuple(range(self.num_groups))

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Its blocks may be freed at once."""
        return False, None

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Nothing: there is no worker's side."""
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """No worker's side."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No worker's side."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """No worker's side."""

    def wait_for_save(self) -> None:
        """No worker's side."""
