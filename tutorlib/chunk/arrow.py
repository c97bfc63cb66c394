"""Columns of a chunk from Arrow arrays, and back; numbers are not copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorlib.chunk.columns import (
    Masked,
    Ragged,
    Strings,
    flat_values,
    is_vectors,
    to_host,
    with_flat_values,
    with_null_rows,
)
from tutorlib.schema import remedy_for


def column_from_arrow(array: Any) -> Any:
    """Return an Arrow array as a column of a chunk.

    Raises:
        TypeError: for a type that a chunk cannot hold, such as a map, a struct or nested lists.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
    if str(array.type) == "string_view":
        array = array.cast(pa.large_string())
    if isinstance(array.type, pa.FixedShapeTensorType):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return column_from_arrow(array.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _ragged_from_arrow(array)
    if pa.types.is_fixed_size_list(kind):
        if vector_length(kind):
            return _vectors_from_arrow(array)
        return _ragged_from_arrow(array.cast(pa.large_list(kind.value_type)))
    if pa.types.is_temporal(kind):
        counts = column_from_arrow(array.cast(pa.int64() if kind.bit_width == 64 else pa.int32()))
        return _with_unit(counts, time_dtype(kind))
    if pa.types.is_floating(array.type):
        if array.null_count:
            array = pc.fill_null(array, float("nan"))
        return array.to_numpy(zero_copy_only=False)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (text or pa.types.is_integer(array.type) or pa.types.is_boolean(kind)):
        raise TypeError(
            f"Arrow type {kind} is not supported; {remedy_for(str(kind))}, or leave the column out"
        )
    valid = None
    if array.null_count:
        valid = valid_rows(array)
        array = pc.fill_null(array, "" if text else 0 if array.type != pa.bool_() else False)
    values = Strings.from_arrow(array) if text else array.to_numpy(zero_copy_only=False)
    return values if valid is None else Masked(values, valid)


def valid_rows(array: Any) -> np.ndarray:
    """Return bool [n], False at the nulls of an Arrow array that has some.

    Ten times as fast as `array.is_valid().to_numpy(False)`.

    Example:
        >>> import pyarrow as pa
        >>> valid_rows(pa.array([3, None, 5, 7])[1:]).tolist()
        [False, True, True]
    """
    first, skipped = divmod(array.offset, 8)
    bits = np.frombuffer(array.buffers()[0], np.uint8, offset=first)
    valid = np.unpackbits(bits, count=skipped + len(array), bitorder="little")
    return valid[skipped:].view(bool)


def vector_length(arrow_type: Any) -> int | None:
    """Return k for an Arrow type of which each value is a vector of k numbers, else None.

    Example:
        >>> import pyarrow as pa
        >>> vector_length(pa.list_(pa.float32(), 8)), vector_length(pa.list_(pa.float32()))
        (8, None)
    """
    import pyarrow as pa

    if isinstance(arrow_type, pa.FixedShapeTensorType):
        arrow_type = arrow_type.storage_type
    if not pa.types.is_fixed_size_list(arrow_type):
        return None
    kind, types = arrow_type.value_type, pa.types
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return arrow_type.list_size or None if numbers else None


def _vectors_from_arrow(array: Any) -> Any:
    rows, length = len(array), array.type.list_size
    column = column_from_arrow(array.values.slice(array.offset * length, rows * length))
    vectors = with_flat_values(np.empty((rows, length), bool), column)
    if not array.null_count:
        return vectors
    return with_null_rows(vectors, array.is_valid().to_numpy(zero_copy_only=False))


def time_dtype(kind: Any) -> str:
    """Return the NumPy name of an Arrow type of dates, times or durations, without time zone.

    Example:
        >>> import pyarrow as pa
        >>> time_dtype(pa.timestamp("ms", "UTC")), time_dtype(pa.time32("s"))
        ('datetime64[ms]', 'timedelta64[s]')
    """
    import pyarrow as pa

    if pa.types.is_date(kind):
        return "datetime64[D]" if pa.types.is_date32(kind) else "datetime64[ms]"
    return f"{'datetime' if pa.types.is_timestamp(kind) else 'timedelta'}64[{kind.unit}]"


def _with_unit(counts: Any, dtype: str) -> Any:
    """Return integers as NumPy's dates or durations."""
    if isinstance(counts, Masked):
        return Masked(_with_unit(counts.values, dtype), counts.valid)
    return counts.astype(np.int64, copy=False).view(dtype)


def _ragged_from_arrow(array: Any) -> Ragged:
    import pyarrow as pa
    import pyarrow.compute as pc

    valid = None
    if array.null_count:  # a null list may span values
        valid = valid_rows(array)
        array = pc.if_else(pc.is_valid(array), array, pa.scalar([], array.type))
    offsets = array.offsets.to_numpy().astype(np.int64)
    values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    column = column_from_arrow(values)
    if isinstance(column, Ragged):
        raise TypeError(
            f"Arrow type {array.type} is not supported; {remedy_for(str(array.type))}, or leave "
            "the column out"
        )
    return Ragged(column, offsets - offsets[0], valid)


def column_to_arrow(column: Any) -> Any:
    """Return a column as a `pyarrow.Array`; NaN remains NaN, a `Masked` null becomes null."""
    import pyarrow as pa

    if is_vectors(column):
        length = (column.values if isinstance(column, Masked) else column).shape[1]
        return pa.FixedSizeListArray.from_arrays(column_to_arrow(flat_values(column)), length)
    if isinstance(column, Ragged):
        return pa.LargeListArray.from_arrays(
            pa.array(to_host(column.offsets)),
            column_to_arrow(column.values),
            mask=None if column.valid is None else pa.array(~to_host(column.valid)),
        )
    if isinstance(column, Strings):
        return Strings(to_host(column.data), to_host(column.offsets)).to_arrow()
    if isinstance(column, Masked):
        import pyarrow.compute as pc

        values = column_to_arrow(column.values)
        return pc.if_else(pa.array(to_host(column.valid)), values, pa.scalar(None, values.type))
    return pa.array(to_host(column))
