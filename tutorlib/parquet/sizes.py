"""Bytes of decoded rows, estimated from the footers of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.parquet.files import ParquetFiles, RowGroup


def number_width(kind: str) -> int:
    """Return the bytes of a number of a type such as "int32", 0 for a type that is no number."""
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        return 0


def decoded_row_bytes(
    stored: ParquetFiles, row_groups: Sequence[RowGroup], columns: Mapping[str, int]
) -> float:
    """Return the mean bytes of a stored row of columns that have no fixed width.

    Args:
        stored: the files.
        row_groups: row groups to average over.
        columns: {name: bytes of one value, 0 for strings}.
    """
    rows, nbytes = 0, 0.0
    for group in row_groups:
        rows += stored.num_rows(group)
        for name, leaf in stored.leaves(group, columns):
            nbytes += leaf.num_values * columns[name] or _string_bytes(leaf)
    return nbytes / max(1, rows)


def _string_bytes(leaf: Any) -> float:
    """Return about how many bytes the strings of a `ColumnChunkMetaData` have when decoded."""
    stored, statistics = leaf.total_uncompressed_size, leaf.statistics
    if statistics is None or not statistics.has_min_max:
        return stored
    ends = (statistics.min, statistics.max)
    lengths = [len(end.encode() if isinstance(end, str) else bytes(end)) for end in ends]
    return max(stored, leaf.num_values * sum(lengths) / 2)
