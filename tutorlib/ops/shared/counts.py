"""Counts of integers and strings: how often each value occurs, added up in any order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.columns import (
    Array,
    EncodedStrings,
    Strings,
    array_namespace,
    column_to_arrow,
    integers_as_strings,
    strings_as_integers,
    to_host,
)
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.ops.shared.keys import narrow_range

_SAMPLE = 4096  # first values: if few of them differ, a table of counts is faster than sorting
_MIN_HELD = 65_536  # below this many values it does not pay to keep only the most frequent


def run_starts(ordered: Array) -> Array:
    """Return bool [n], True where a sorted array has another value than one before."""
    xp = array_namespace(ordered)
    starts = xp.ones(len(ordered), dtype=bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=starts[1:])
    return starts


def count_integers(values: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return (distinct values, int64 rising; the count of each).

    Example:
        >>> [part.tolist() for part in count_integers(np.array([7, 5, 7]))]
        [[5, 7], [1, 2]]
    """
    xp = array_namespace(values)
    if xp is np and (narrow := narrow_range(values)) is not None:
        lowest, size = narrow
        counts = np.bincount(values.astype(np.int64) - lowest, minlength=size)
        met = np.flatnonzero(counts)
        return met + lowest, counts[met]
    if xp is np and len(np.unique(values[:_SAMPLE])) <= min(len(values), _SAMPLE) // 2:
        return _counted_by_table(values)
    ordered = xp.sort(values)
    starts = xp.flatnonzero(run_starts(ordered))
    counts = xp.diff(xp.append(starts, len(ordered)))
    return to_host(ordered[starts]).astype(np.int64), to_host(counts)


def _counted_by_table(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `count_integers` does, by Arrow's hash table: faster if few values differ."""
    counted = pc.value_counts(pa.array(values))
    distinct = counted.field("values").to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(distinct)
    return distinct[order], counted.field("counts").to_numpy()[order]


def count_strings(values: Strings) -> tuple[pa.Array, np.ndarray]:
    """Return (distinct strings; the count of each)."""
    if isinstance(values, EncodedStrings):
        counts = np.bincount(values.codes, minlength=len(values.dictionary))
        met = np.flatnonzero(counts)
        if len(met) == len(counts):
            return values.dictionary, counts
        return values.dictionary.take(pa.array(met)), counts[met]
    counted = pc.value_counts(column_to_arrow(values))
    return counted.field("values"), counted.field("counts").to_numpy()


def add_string_counts(values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Return (distinct strings; the sum of the counts of each)."""
    integers = strings_as_integers(values)
    # 7 times as fast as Arrow's group_by on large strings
    encoded = (values if integers is None else integers).dictionary_encode()
    sums = np.zeros(len(encoded.dictionary), dtype=np.int64)
    np.add.at(sums, encoded.indices.to_numpy(), counts)
    distinct = encoded.dictionary
    return (distinct if integers is None else integers_as_strings(distinct)), sums


def add_integer_counts(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (distinct values, rising; the sum of the counts of each)."""
    if (narrow := narrow_range(values)) is not None:
        lowest, size = narrow
        sums = np.zeros(size, dtype=np.int64)
        np.add.at(sums, values - lowest, counts)
        met = np.flatnonzero(sums)
        return met + lowest, sums[met]
    order = np.argsort(values, kind="stable")  # of sorted runs: a merge, not a sort
    values = values[order]
    starts = np.flatnonzero(run_starts(values))
    return values[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts


def coarsened(values: np.ndarray, counts: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of rising values whose lowest `bits` bits are set to zero."""
    rounded = values >> bits << bits
    starts = np.flatnonzero(run_starts(rounded))
    return rounded[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def frequent(states: Iterable[GroupSums], lowest: int, most: int | None) -> GroupSums:
    """Return the keys that occur at least `lowest` times, of these the `most` frequent.

    Args:
        states: counted keys; all keys of a state are above those of the state before.
        lowest: smallest count.
        most: number of keys to keep, of equally frequent ones the smaller; a few more may be
            returned. None for all.
    """
    kept: list[GroupSums] = []
    held = 0
    for state in states:
        kept.append(state.take(np.flatnonzero(state.rows >= lowest)))
        held += len(kept[-1])
        if most is not None and held > 2 * most + _MIN_HELD:
            together = GroupSums.concat(kept)
            order = np.argsort(-together.rows, kind="stable")[:most]
            kept, held = [together.take(np.sort(order))], most
    return GroupSums.concat(kept)
