"""What people get: one line for an error, exit codes, files that are whole or not there, calls as lines.

Imports the protocol and the names of calls. Start with `errors.py`.
"""
