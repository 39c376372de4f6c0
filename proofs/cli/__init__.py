"""The command line: `main.py` is the entry, and a module in `commands` is a subcommand.

Imports every job; nothing imports this.
"""
