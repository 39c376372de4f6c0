"""What is true, in one definition that is run, proved and searched. Imports nothing of ours.

`language` is what rules are written in, `system` the pool and `allocate_slots`, `scheduling` those who call
and carry out, `claims` what is said of them all. Start with `system/allocate_slots.py`; `running.py` runs it.
"""
