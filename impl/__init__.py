"""What runs: our implementation on PyTorch, real vLLM, and the protocol that a gate drives either by.

Imports nothing of `model` or `proofs`: that independence is what agreement is worth. `allocator` decides,
`device` holds the KV, `scheduler` calls, `vllm` is all that touches vLLM. Start with `protocol.py`;
`adapter.py` and `ledger.py` are what every adapter shares.
"""
