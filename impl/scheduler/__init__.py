"""The reference scheduler, with vLLM's two passes; its requests, its record of a step, its connector.

Imports the protocol, and of the allocator only statuses and errors. Start with `scheduler.py`.
"""
