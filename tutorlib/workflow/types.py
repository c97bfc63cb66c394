"""Values of one type as another: data in other types than those that a workflow was fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorlib.columns import (
    Ragged,
    as_lists,
    as_vectors,
    column_type,
    flat_values,
    is_array,
    parts_of,
    with_flat_values,
    with_nulls,
)
from tutorlib.schema import element_type


def converted(column: Any, kind: tuple[str, bool]) -> Any:
    """Return a column with the type `kind`, for which `type_mismatch` finds no remedy to be needed.

    Each value stays the number, time or text that it is. Integers that the type cannot hold keep
    their own; floating-point numbers are rounded.

    Raises:
        ValueError: for a time or an integer without an equal in the type, a floating-point number
            beyond its range, or a list whose length is not that of the vectors.

    Example:
        >>> converted(np.array(["1970-01-02"], "datetime64[D]"), ("datetime64[s]", False)).tolist()
        [datetime.datetime(1970, 1, 2, 0, 0)]
    """
    if column_type(column) == tuple(kind):
        return column
    dtype, length = element_type(kind[0])
    if length is not None and isinstance(column, Ragged):
        column = as_vectors(column, length)
    column = as_lists(column) if kind[1] else column
    flat = flat_values(column)
    values, valid = parts_of(flat)
    if not is_array(values) or values.dtype == dtype:
        return column
    used = values if valid is None else values[valid]
    if values.dtype.kind + np.dtype(dtype).kind in ("ii", "iu", "ui", "uu"):
        limits = np.iinfo(dtype)
        fits = not len(used) or (limits.min <= int(used.min()) and int(used.max()) <= limits.max)
        return with_flat_values(column, with_nulls(values.astype(dtype), valid)) if fits else column
    with np.errstate(over="ignore", invalid="ignore"):
        made = values.astype(dtype)
        if values.dtype.kind == "f":
            wrong = np.isinf(made) & ~np.isinf(values)
        else:  # compared as integers, so that not-a-time equals itself
            back, bits = made.astype(values.dtype), f"i{values.itemsize}"
            wrong = back.view(bits) != values.view(bits)
    wrong = wrong if valid is None else wrong & valid
    if bool(wrong.any()):
        place = int(wrong.argmax())
        lists = as_lists(column)
        ends = lists.offsets[1:] if isinstance(lists, Ragged) else np.arange(1, len(values) + 1)
        row = int(np.searchsorted(ends, place, side="right"))
        raise ValueError(f"{values[place]} at row {row} has no equal in it")
    return with_flat_values(column, with_nulls(made, valid))
