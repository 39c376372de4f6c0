"""The kinds of attention, a manager each, on what all of them share.

Imports the pool, the tables and the counts. Start with `single_type.py`; a new kind is a file beside it.
"""
