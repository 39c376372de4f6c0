"""The gate: the model and an implementation take the same calls and are compared after each.

Imports `model`, `impl`, `campaign` and `traces`. Start with `gate.py`; `compare.py` says what may not differ.
"""
