"""Those around the system: the caller with its contract, the worker, a decode step as one call.

Imports `language` and `system`. Start with `caller.py`: every action, and what each one needs.
"""
