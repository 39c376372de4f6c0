"""Every statement, for every size: the proof reading, the obligations, Z3's answers and what they amount to.

Imports `model` and `campaign` (which shows that a proof is about something). Start with `prover.py`, then
`symbols.py`.
"""
