"""A manager that somebody else drives, followed by the model: in a test, or from a recording.

`follower.py` takes its calls in the model, `alike.py` compares what it shows, `summary.py` counts what was
followed and what not; `recording.py` reads what an engine wrote down. Start with `follower.py`.
"""
