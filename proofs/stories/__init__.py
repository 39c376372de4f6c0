"""How a sequence of calls is told: as records first, then on a terminal, as a page, as a test for vLLM.

Imports `campaign`, the gate's comparison and the catalogue of faults. Start with `telling.py`.
"""
