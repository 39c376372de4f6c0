"""The code that runs, proved: real functions on integers that are Z3 terms, compared path by path.

Imports `model`, and `prove` for its terms. Start with `conform.py`, then `paths.py`, which forks a run; a
pool's methods are in `pools.py`. What is of one implementation is its file in `targets`.
"""
