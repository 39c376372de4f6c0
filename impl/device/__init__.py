"""The worker's side: KV tensors, zeroing and copies, paged attention, and the oracle of contents.

Imports the allocator's tables and the scheduler's record of a step. Start with `worker.py`.
"""
