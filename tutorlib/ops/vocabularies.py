"""Vocabularies: values, or combinations of values, in the order of their ids, as a table.

A table has a column `value`, or `value_0`, `value_1`, ... of a combination's parts, and if it was
learned a column `count`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.chunk import Chunk, Masked, Ragged, column_from_arrow
from tutorlib.ops.columns import column_type
from tutorlib.ops.keys import CombinationIndex


def vocabulary_index(name: str, table: Chunk) -> CombinationIndex:
    """Return what finds values, or combinations, in a vocabulary.

    Raises:
        ValueError: if one stands twice.
    """
    try:
        return CombinationIndex(parts_of_keys(table))
    except ValueError as error:
        raise ValueError(f"column {name!r}: Categorify: vocabulary: {error}") from error


def parts_of_keys(table: Chunk) -> list[Any]:
    """Return the values of a vocabulary, or the parts of its combinations."""
    return [column for name, column in table.items() if name != "count"]


def order_of(values: pa.Array) -> np.ndarray:
    """Return int64 [n]: the order of texts by their bytes, or of structs part by part."""
    if not pa.types.is_struct(values.type):
        return pc.array_sort_indices(values).to_numpy()
    parts = pa.table({str(place): part for place, part in enumerate(values.flatten())})
    by = [(name, "ascending") for name in parts.column_names]
    return pc.sort_indices(parts, by).to_numpy()


def learned_vocabulary(values: Any) -> Chunk:
    """Return learned values as a vocabulary: `value`, or of structs `value_0`, `value_1`, ..."""
    if isinstance(values, np.ndarray):
        return Chunk({"value": values})
    if not pa.types.is_struct(values.type):
        return Chunk({"value": column_from_arrow(values)})
    return Chunk({f"value_{k}": column_from_arrow(v) for k, v in enumerate(values.flatten())})


def given_vocabulary(name: str, values: Any) -> Chunk:
    """Return a vocabulary given by the user."""
    if isinstance(values, Chunk):
        return values
    keys = _column(name, values)
    if isinstance(keys, Masked):
        raise TypeError(f"column {name!r}: Categorify: a vocabulary holds no null")
    return Chunk({"value": keys})


def given_combinations(name: str, values: Any) -> Chunk:
    """Return a vocabulary of tuples given by the user."""
    if isinstance(values, Chunk):
        return values
    rows = list(values)
    lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
    if len(lengths) != 1 or min(lengths) < 2:
        raise ValueError(
            f"column {name!r}: Categorify: a vocabulary of combinations holds tuples of one "
            f"length, 2 or more, got lengths {sorted(lengths)}"
        )
    if any(all(value is None for value in row) for row in rows):
        raise ValueError(
            f"column {name!r}: Categorify: a vocabulary cannot hold a tuple of nulls alone, which "
            "is null"
        )
    parts = zip(*rows, strict=True)
    return Chunk({f"value_{k}": _column(name, list(part)) for k, part in enumerate(parts)})


def _column(name: str, values: Any) -> Any:
    """Return values given by the user as int64 array or `Strings`, `Masked` if there are nulls."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    column = column_from_arrow(array.cast(pa.int64()) if pa.types.is_null(array.type) else array)
    if isinstance(column, Ragged) or column_type(column)[0] in (
        "bool",
        "float16",
        "float32",
        "float64",
    ):
        raise TypeError(
            f"column {name!r}: Categorify: a vocabulary holds integers or strings, got {array.type}"
        )
    return column
