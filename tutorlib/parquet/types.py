"""RowGroup, RowRange, column types and ParquetError: the words of this room."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tutorlib.columns import time_dtype, vector_length
from tutorlib.inference import element_type, vector_type


class ParquetError(ValueError):
    """A Parquet file that cannot be used: the message names file, row group and column."""


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Row group `index` of file number `file`; `num_rows` counts the rows that pass a filter."""

    file: int
    index: int
    num_rows: int


@dataclasses.dataclass(frozen=True)
class RowRange:
    """Rows [start, stop) of row group number `row_group` of a source."""

    row_group: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows in the range."""
        return self.stop - self.start


def column_type(arrow_type: pa.DataType) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list).

    Fixed-size lists and tensors of numbers are vectors, of which NumPy has names too.

    Example:
        >>> column_type(pa.list_(pa.int32())), column_type(pa.large_string())
        (('int32', True), ('string', False))
        >>> column_type(pa.list_(pa.float32(), 8))
        ('(8,)float32', False)
    """
    length = vector_length(arrow_type)
    if length:
        stored = getattr(arrow_type, "storage_type", arrow_type)
        return vector_type(column_type(stored.value_type)[0], length), False
    if is_list(arrow_type):
        nested = is_list(arrow_type.value_type)
        return (str(arrow_type), False) if nested else (column_type(arrow_type.value_type)[0], True)
    if pa.types.is_dictionary(arrow_type):
        return column_type(arrow_type.value_type)
    if pa.types.is_temporal(arrow_type):
        return time_dtype(arrow_type), False
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return np.dtype(arrow_type.to_pandas_dtype()).name, False
    if pa.types.is_boolean(arrow_type):
        return "bool", False
    if str(arrow_type) in ("string", "large_string", "string_view"):
        return "string", False
    return str(arrow_type), False


def column_types(schema: pa.Schema, vectors: Mapping[str, int]) -> dict[str, tuple[str, bool]]:
    """Return {name: column type}; `vectors` are {name: length} of lists that are vectors."""
    types = {field.name: column_type(field.type) for field in schema}
    return types | {n: (vector_type(types[n][0], length), False) for n, length in vectors.items()}


def is_list(arrow_type: pa.DataType) -> bool:
    """Return whether each value of an Arrow type is a list, of any of Arrow's three kinds."""
    types = pa.types
    return (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )


def type_words(kind: tuple[str, bool]) -> str:
    """Return what error messages call a column type: "int64" or "a list of int64"."""
    dtype, length = element_type(kind[0])
    if length is not None:
        return f"a vector of {length} {dtype}"
    return f"a list of {kind[0]}" if kind[1] else kind[0]
