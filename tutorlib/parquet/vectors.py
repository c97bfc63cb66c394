"""Vectors: which columns of lists have as many values in every row, by the footers of the files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.types import ParquetError

FIRST_ROWS = 1024  # of which the lists are looked at: footers tell mean lengths only


def vector_lengths(files: ParquetFiles) -> dict[str, int]:
    """Return {column: length} of the lists of floats or booleans that are vectors.

    The first lists of the files must have one length, and the footers of all row groups must agree
    with it. A null or empty list is a missing vector. Fixed-size lists and tensors have their
    length in their type and are not among these.
    """
    lengths = {}
    for field in files.schema:
        if _may_be_vectors(field.type) and (length := _length(files, field.name)):
            lengths[field.name] = length
    return lengths


def _may_be_vectors(kind: pa.DataType) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    return types.is_floating(kind.value_type) or types.is_boolean(kind.value_type)


def _length(files: ParquetFiles, name: str) -> int | None:
    """Return the length that all lists of a column have, None if there is none."""
    groups = files.row_groups()
    counts = [
        _Counts(leaf, files.num_rows(g)) for g in groups for _, leaf in files.leaves(g, [name])
    ]
    if not counts or not all(count.nulls or count.values % count.rows == 0 for count in counts):
        return None
    try:
        rows = files.first_rows(groups[0], [name], FIRST_ROWS)
    except ParquetError:  # whoever reads the column gets it
        return None
    found = set(pc.unique(pc.list_value_length(rows[name])).to_pylist()) - {None, 0}
    length = found.pop() if len(found) == 1 else None
    return length if length and all(count.fits(length) for count in counts) else None


class _Counts:
    """Numbers of values, nulls and rows of a column chunk of lists, by the footer."""

    def __init__(self, leaf: Any, rows: int) -> None:
        statistics = leaf.statistics
        known = statistics is not None and statistics.has_null_count
        self.values, self.nulls, self.rows = (
            leaf.num_values,
            statistics.null_count if known else 0,
            rows,
        )

    def fits(self, length: int) -> bool:
        """Return whether all lists may have a length, except for null or empty ones.

        Each of these counts as one value, which is null.
        """
        if length == 1:
            return self.values == self.rows and not self.nulls
        missing, rest = divmod(self.rows * length - self.values, length - 1)
        return rest == 0 and 0 <= missing <= self.nulls
