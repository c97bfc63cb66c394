"""Attacks on what is read from outside, as long as one likes: `python -m tests.attack --help`.

A case damages one file of a target, such as a saved workflow, and reads it in a process of its own
with limits on memory and time. It is right if that works, or raises an error of the documented kind
that names the file. `edits.py` damages, `targets.py` says what is read, `process.py` limits.
"""
