"""What is claimed: the invariants, the statements with their checks, and the first wordings that are false.

Imports the rest of the model; none of it imports this. Start with `statements.py`.
"""
