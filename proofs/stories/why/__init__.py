"""Why something is so: the arithmetic that decided a call, and the values that broke a claim, in words.

Imports `model` and the monitor. Start with `decisions.py` for a call and `broken.py` for a claim.
"""
