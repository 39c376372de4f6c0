"""Python's integers: the readings that run the model, and the tables that its fields are kept in.

Imports `language`. `dense.py` works every field out after each call, `sparse.py` only what changed.
"""
