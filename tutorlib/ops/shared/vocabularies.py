"""Vocabularies: keys in the order of their ids, as a table.

A vocabulary has a column `value`, or `value_0`, `value_1`, ... for the parts of combinations, and
a column `count` if it was learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tutorlib.columns import Chunk, Masked, Ragged, column_from_arrow
from tutorlib.ops.shared.columns import column_type
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.ops.shared.keys import CombinationIndex


def vocabulary_index(name: str, table: Chunk) -> CombinationIndex:
    """Return the index that finds keys in a vocabulary; ValueError if a key occurs twice."""
    try:
        return CombinationIndex(parts_of_vocabulary(table))
    except ValueError as error:
        raise ValueError(f"column {name!r}: Categorify: vocabulary: {error}") from error


def parts_of_vocabulary(table: Chunk) -> list[Any]:
    """Return the values of a vocabulary, or the parts of its combinations, one column each."""
    return [column for name, column in table.items() if name != "count"]


def learned_vocabulary(counted: GroupSums) -> Chunk:
    """Return counted keys, in the order of their ids, as a vocabulary."""
    return Chunk({**_named(map(column_from_arrow, counted.keys)), "count": counted.rows})


def _named(parts: Iterable[Any]) -> dict[str, Any]:
    columns = list(parts)
    if len(columns) == 1:
        return {"value": columns[0]}
    return {f"value_{k}": column for k, column in enumerate(columns)}


def given_vocabulary(name: str, values: Any) -> Chunk:
    """Return the user's integers or strings as a vocabulary; TypeError for others and nulls."""
    if isinstance(values, Chunk):
        return values
    column = _column(name, values)
    if isinstance(column, Masked):
        raise TypeError(f"column {name!r}: Categorify: a vocabulary holds no null")
    return Chunk(_named([column]))


def given_combinations(name: str, values: Any) -> Chunk:
    """Return tuples given by the user as a vocabulary of combinations.

    Raises:
        ValueError: if tuples differ in length or have fewer than 2 values, or one is all null.
        TypeError: if values are neither integers nor strings.
    """
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
            f"column {name!r}: Categorify: a vocabulary cannot hold a tuple of nulls alone: that "
            "combination is null"
        )
    return Chunk(_named(_column(name, list(part)) for part in zip(*rows, strict=True)))


def _column(name: str, values: Any) -> Any:
    """Return the user's values as int64 or `Strings`, `Masked` if there are nulls."""
    array = values if isinstance(values, pa.Array) else pa.array(values)
    column = column_from_arrow(array.cast(pa.int64()) if pa.types.is_null(array.type) else array)
    dtype = column_type(column)[0]
    if isinstance(column, Ragged) or dtype == "bool" or dtype.startswith("float"):
        raise TypeError(
            f"column {name!r}: Categorify: a vocabulary holds integers or strings, got {array.type}"
        )
    return column
