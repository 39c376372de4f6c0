""" "Allocating Slots: One Call, Traced", computed by the model: its trace, and its questions with answers.

Imports `model` alone. Start with `trace.py`.
"""
