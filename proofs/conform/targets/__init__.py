"""Implementations that `conform` follows, a file each: how they keep what the model speaks of.

Start with `target.py`; a new one is a file beside `torch.py`.
"""
