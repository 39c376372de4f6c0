"""How much the checks see: small faults in the model's source, each judged by campaign, gate and proof.

Imports `prove` and the command line. Start with `faults.py`; the judges run in a copy of the tree.
"""
