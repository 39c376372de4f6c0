"""An implementation held against the statements by what it answers and shows itself, the model aside.

Imports the comparison and isolation of the gate. Start with `consistency.py`, one call; `follow.py` draws
calls by its own answers, `blame.py` says which statement falls by a difference to the model.
"""
