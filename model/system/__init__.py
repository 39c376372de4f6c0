"""The system under proof: the pool, the kinds of attention, the prefix cache, and `allocate_slots` on top.

Imports `language`. Start with `allocate_slots.py`, the lesson's five stages in order.
"""
