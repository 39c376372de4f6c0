"""What every rule is written in: the algebra, the engine, the state, the keys, and the rules' names.

Imports nothing but itself. Start with `state.py`; a new rule gets its name in `rules.py`.
"""
