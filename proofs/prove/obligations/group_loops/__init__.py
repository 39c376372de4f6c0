"""The loops over a request's groups, each with its invariant: that is how "any number of groups" is proved.

What is done to one row is made of the pool's steps and of the loops in `loops.py`, of which it is known that
they keep the stepwise invariants. So of a loop over groups it is left to show what the rows before and behind
the k-th look like. Sums over groups are unknown functions with `S(0) = 0` and `S(k + 1) = S(k) + amount(k)`.

Start with `group_loop.py`; a loop is a file, `ends.py` lists them, `induction.py` proves them.
"""
