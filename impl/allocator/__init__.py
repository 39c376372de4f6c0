"""Our allocator, with vLLM's layers and names: manager, coordinator, attention group, pool, queue, tables.

Imports the protocol's `Config` and torch. Start with `kv_cache_manager.py`; `adapter.py` puts it behind the
protocol.
"""
