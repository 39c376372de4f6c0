"""The shortest story: the search reading, bounded model checking, expressions about a state, questions.

Imports `model`, `campaign` and the proof reading's claims. Start with `explore.py`, then `bounded.py`.
"""
