"""The running model under drawn calls: what is drawn, the statements evaluated on every call, and what fell.

Imports `model` and the protocol. Start with `calls.py`; `monitor.py` sees a statement fall, `stories.py`
keeps it short.
"""
