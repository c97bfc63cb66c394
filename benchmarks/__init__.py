"""Benchmarks: what is measured, turn by turn in one process, with its machine and versions."""
