"""Bytes of decoded rows, estimated from the footers of the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def number_width(kind: str) -> int:
    """Return the bytes of a number of a type such as "int32", 0 for a type that is no number."""
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        return 0


def decoded_bytes(leaves: Iterable[tuple[str, Any]], columns: Mapping[str, int]) -> float:
    """Return the bytes of decoded columns that have no fixed width, without offsets.

    Args:
        leaves: (name, `pyarrow.parquet.ColumnChunkMetaData`) of the columns.
        columns: {name: bytes of one value, 0 for strings}.
    """
    return sum(leaf.num_values * columns[name] or _string_bytes(leaf) for name, leaf in leaves)


def _string_bytes(leaf: Any) -> float:
    """Return about how many bytes the strings of a `ColumnChunkMetaData` have when decoded."""
    stored, statistics = leaf.total_uncompressed_size, leaf.statistics
    if statistics is None or not statistics.has_min_max:
        return stored
    ends = (statistics.min, statistics.max)
    lengths = [len(end.encode() if isinstance(end, str) else bytes(end)) for end in ends]
    return max(stored, leaf.num_values * sum(lengths) / 2)
