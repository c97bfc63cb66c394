"""Columns as ops see them: types, values and nulls, settings by column, schema of the output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import (
    Array,
    Masked,
    Ragged,
    Strings,
    array_namespace,
    is_vectors,
    take,
    with_null_rows,
)
from tutorlib.schema import Column, role_of, vector_type

PADDING_ID, NULL_ID, FIRST_OOV_ID = 0, 1, 2


def column_type(column: Any) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list) of a column."""
    if isinstance(column, Ragged):
        return column_type(column.values)[0], True
    values = parts_of(column)[0]
    if is_vectors(values):
        return vector_type(values.dtype.name, values.shape[1]), False
    return ("string" if isinstance(values, Strings) else values.dtype.name), False


def parts_of(column: Any) -> tuple[Any, Array | None]:
    """Return (values, valid) of a column without lists; valid is None if there are no nulls."""
    return (column.values, column.valid) if isinstance(column, Masked) else (column, None)


def with_nulls(values: Any, valid: Array | None) -> Any:
    """Return a column of values with nulls: NaN in floating point (in place), else `Masked`."""
    if valid is None or bool(valid.all()):
        return values
    if not isinstance(values, Strings) and values.dtype.kind == "f":
        values[~valid] = np.nan
        return values
    return Masked(values, valid)


def take_or_null(column: Any, positions: Array) -> Any:
    """Return rows of a column by position from 1; at position 0 a null or an empty list."""
    xp = array_namespace(positions)
    if is_vectors(column):
        return with_null_rows(take(column, xp.maximum(positions - 1, 0)), positions > 0)
    if isinstance(column, Ragged):  # an empty list after the last row
        offsets = xp.append(xp.asarray(column.offsets), column.offsets[-1])
        rows = xp.where(positions > 0, positions - 1, len(column))
        return Ragged(column.values, offsets).take(rows)
    values, valid = parts_of(column)
    rows = xp.maximum(positions - 1, 0)
    there = positions > 0
    if valid is not None:
        there &= valid[rows]
    return with_nulls(take(values, rows), there)


def missing_in(column: Any) -> Array:
    """Return bool [n], True where a column without lists has a null or a NaN."""
    values, valid = parts_of(column)
    if isinstance(values, Strings) or values.dtype.kind != "f":
        if valid is not None:
            return ~valid
        anchor = values.offsets if isinstance(values, Strings) else values
        return array_namespace(anchor).zeros(len(values), dtype=bool)
    nan = array_namespace(values).isnan(values)
    return nan if valid is None else ~valid | nan


def per_column(setting: Any, name: str, default: Any = None) -> Any:
    """Return a column's setting, from {name: setting} or from one setting for all columns."""
    return setting.get(name, default) if isinstance(setting, Mapping) else setting


def float_dtype(dtype: Any, op: str) -> str:
    """Return the NumPy name of a floating-point dtype; ValueError for another one."""
    name = np.dtype(dtype).name
    if name not in ("float16", "float32", "float64"):
        raise ValueError(f"{op}: dtype must be float16, float32 or float64, got {name}")
    return name


def id_dtype(cardinality: int) -> str:
    """Return the dtype of ids in [0, cardinality): "int32", or "int64" beyond 2**31."""
    return "int32" if cardinality <= 2**31 else "int64"


def as_ids(columns: Sequence[Column], cardinality: Callable[[str], int]) -> list[Column]:
    """Return the columns as categorical ones; `cardinality(name)` is the number of ids."""
    sizes = [cardinality(column.name) for column in columns]
    return [
        dataclasses.replace(with_lists(c), role="categorical", dtype=id_dtype(n), cardinality=n)
        for c, n in zip(columns, sizes, strict=True)
    ]


def with_lists(column: Column) -> Column:
    """Return a column of vectors as one of lists, which ids are; any other column as it is."""
    multi_hot = column.multi_hot or column.length is not None
    return dataclasses.replace(column, multi_hot=multi_hot, length=None)


def of_dtype(columns: Sequence[Column], dtype: str) -> list[Column]:
    """Return the columns with another dtype and its default role."""
    role = role_of(dtype)
    if role == "categorical":
        columns = [with_lists(column) for column in columns]
    return [dataclasses.replace(c, role=role, dtype=dtype, cardinality=None) for c in columns]
