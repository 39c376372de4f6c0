"""A sequence of calls as a file: the record and its ITF layout.

Imports the protocol and `output`. Start with `trace.py`.
"""
