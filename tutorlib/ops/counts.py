"""Counts of integers and texts: how often each stands there, as states that merge in any order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.chunk import Array, Strings, array_namespace, column_to_arrow, to_host
from tutorlib.encoded_strings import EncodedStrings

_SAMPLE = 4096  # values of which so few may differ that counting them beats sorting
_LEAST_HELD = 65_536  # counted values that are not worth looking through for the most frequent


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
    if xp is np and len(np.unique(values[:_SAMPLE])) <= min(len(values), _SAMPLE) // 2:
        return _counted(values)
    ordered = xp.sort(values)
    starts = xp.flatnonzero(run_starts(ordered))
    counts = xp.diff(xp.append(starts, len(ordered)))
    return to_host(ordered[starts]).astype(np.int64), to_host(counts)


def _counted(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what `count_integers` does, by a table of the values met: faster if few differ."""
    counted = pc.value_counts(pa.array(values))
    different = counted.field("values").to_numpy(zero_copy_only=False).astype(np.int64)
    order = np.argsort(different)
    return different[order], counted.field("counts").to_numpy()[order]


def count_strings(values: Strings) -> tuple[pa.Array, np.ndarray]:
    """Return (different texts, each once; how often each stands there)."""
    if isinstance(values, EncodedStrings):
        counts = np.bincount(values.codes, minlength=len(values.dictionary))
        met = np.flatnonzero(counts)
        if len(met) == len(counts):
            return values.dictionary, counts
        return values.dictionary.take(pa.array(met)), counts[met]
    counted = pc.value_counts(column_to_arrow(values))
    return counted.field("values"), counted.field("counts").to_numpy()


def add_string_counts(values: pa.Array, counts: np.ndarray) -> tuple[pa.Array, np.ndarray]:
    """Return (different texts; the sum of the counts of each)."""
    encoded = values.dictionary_encode()  # 7 times as fast as Arrow's group_by on large strings
    sums = np.zeros(len(encoded.dictionary), dtype=np.int64)
    np.add.at(sums, encoded.indices.to_numpy(), counts)
    return encoded.dictionary, sums


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


# ---- counts that come from files, or go there ----------------------------------------------------


def counted_table(values: Any, counts: np.ndarray) -> pa.Table:
    """Return counted values as a table: `key_0`, or the parts of combinations, and `count`."""
    struct = isinstance(values, pa.StructArray)
    parts = values.flatten() if struct else [values]
    return pa.table({**{f"key_{k}": part for k, part in enumerate(parts)}, "count": counts})


def counted_from(table: pa.Table, *, combinations: bool) -> tuple[Any, np.ndarray]:
    """Return (values, counts) of such a table."""
    *parts, counts = (_in_one_piece(column) for column in table.columns)
    if combinations:
        values = pa.StructArray.from_arrays(parts, [str(k) for k in range(len(parts))])
    else:
        values = parts[0].to_numpy() if pa.types.is_integer(parts[0].type) else parts[0]
    return values, counts.to_numpy()


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def frequent(
    states: Iterable[tuple[Any, np.ndarray]], lowest: int, most: int | None
) -> tuple[Any, np.ndarray]:
    """Return the values that stand `lowest` times or more, the `most` frequent of them.

    Args:
        states: counted values, each state behind the one before in the order of the values.
        lowest: count.
        most: how many, of equally frequent ones the smaller; some more may come. None for all.

    Example:
        >>> states = [(np.array([1, 5]), np.array([2, 1])), (np.array([9]), np.array([2]))]
        >>> [part.tolist() for part in frequent(states, 2, None)]
        [[1, 9], [2, 2]]
    """
    kept: list[tuple[Any, np.ndarray]] = []
    held = 0
    for values, counts in states:
        kept.append(_rows(values, counts, np.flatnonzero(counts >= lowest)))
        held += len(kept[-1][1])
        if most is not None and held > 2 * most + _LEAST_HELD:
            values, counts = _joined(kept)
            order = np.argsort(-counts, kind="stable")[:most]
            kept, held = [_rows(values, counts, np.sort(order))], most
    return _joined(kept)


def _rows(values: Any, counts: np.ndarray, rows: np.ndarray) -> tuple[Any, np.ndarray]:
    return rows_of(values, rows), counts[rows]


def rows_of(values: Any, rows: np.ndarray) -> Any:
    """Return some values of an array or Arrow array."""
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _joined(parts: Sequence[tuple[Any, np.ndarray]]) -> tuple[Any, np.ndarray]:
    values, counts = zip(*parts, strict=True)
    join = np.concatenate if isinstance(values[0], np.ndarray) else pa.concat_arrays
    return join(values), np.concatenate(counts)
