"""What goes wrong without a rule: the catalogue, and the same faults patched into real vLLM.

Imports nothing of the other jobs. Start with `catalogue.py`.
"""
