"""Counts of integers: how often each stands in a column, as states that merge in any order."""

from __future__ import annotations

import numpy as np

from tutorlib.chunk import Array, array_namespace, to_host


def run_starts(ordered: Array) -> Array:
    """Return bool [n]: where a sorted array has a value that differs from the one before."""
    xp = array_namespace(ordered)
    starts = xp.ones(len(ordered), dtype=bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    return starts


def count_integers(values: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (different values int64, rising; how often each stands there).

    Example:
        >>> [part.tolist() for part in count_integers(np.array([7, 5, 7]))]
        [[5, 7], [1, 2]]
    """
    xp = array_namespace(values)
    ordered = xp.sort(values)
    starts = xp.flatnonzero(run_starts(ordered))
    counts = xp.diff(xp.append(starts, len(ordered)))
    return to_host(ordered[starts]).astype(np.int64), to_host(counts)


def added_up(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (different values, rising; the sum of the counts of each)."""
    order = np.argsort(values, kind="stable")  # sorted runs: a merge, not a sort
    values = values[order]
    starts = np.flatnonzero(run_starts(values))
    return values[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts


def coarsened(values: np.ndarray, counts: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of values whose lowest `bits` bits are set to zero, rising."""
    rounded = values >> bits << bits
    starts = np.flatnonzero(run_starts(rounded))
    return rounded[starts], np.add.reduceat(counts, starts) if len(starts) else counts
