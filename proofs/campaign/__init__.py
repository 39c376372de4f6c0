"""The running model under drawn calls: what is drawn, the statements evaluated on every call, and what fell.

Imports `model` and the protocol. Start with `calls.py`; `monitor.py` sees a statement fall, `find.py`
looks for stories in which one does, and `shrink.py` keeps them short.
"""
