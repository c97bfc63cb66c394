"""Chunk: some rows of a data set as a dict of arrays, on the CPU (NumPy) or on a GPU (CuPy)."""

from tutorlib.chunk.arrow import column_from_arrow, column_to_arrow
from tutorlib.chunk.chunk import Chunk
from tutorlib.chunk.columns import (
    Array,
    Masked,
    Ragged,
    Strings,
    array_namespace,
    concat_columns,
    copied,
    gather_rows,
    is_array,
    row_ids,
    slice_rows,
    take,
    to_host,
    to_namespace,
)

__all__ = [
    "Array",
    "Chunk",
    "Masked",
    "Ragged",
    "Strings",
    "array_namespace",
    "column_from_arrow",
    "column_to_arrow",
    "concat_columns",
    "copied",
    "gather_rows",
    "is_array",
    "row_ids",
    "slice_rows",
    "take",
    "to_host",
    "to_namespace",
]
