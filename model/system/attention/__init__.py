"""The kinds of attention, a file each with the same functions, and the group that has one of them.

Imports `language` and the pool. Start with `group.py`; a new kind is a file beside `sliding_window.py`.
"""
