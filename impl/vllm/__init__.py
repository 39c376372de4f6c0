"""All that touches real vLLM: its manager and its scheduler, on the CPU, behind our protocol.

Imports the protocol and the scheduler's records; vLLM itself only when asked for. Start with `adapter.py`.
"""
