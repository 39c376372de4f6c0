"""What has to be proved: the pool's steps, the loops, the calls, the batch and the line of requests.

Imports the proof reading beside it. Start with `groups.py`, the list of all.
"""
