"""Chunk: some rows of a data set as columns by name, and the kinds of column that it holds.

There are five kinds, laid out as in Arrow and cuDF, so that conversion copies no number:

* an array `values[n]`: one number a row, no nulls (in floating point, a null is NaN);
* an array `values[n, k]`: one vector a row, of k numbers, no nulls;
* `Ragged`: one list a row, as `values[nnz]` and `offsets[n + 1]`;
* `Strings`: one string a row, as UTF-8 bytes and `offsets[n + 1]`;
* `Masked`: values of which some are null, and `valid[n]`.

They nest: `Ragged` may hold `Masked` `Strings`. Arrays are NumPy's; of what a GPU decodes, which is
arrays and `Ragged` of them alone, they are CuPy's.

Code that works on values asks no column for its kind. It takes the values apart and puts others in
their place, by the functions of this file, which are the protocol of columns:

* `flat_values`, `with_flat_values`: the values of all lists or vectors, and others in their lists;
* `parts_of`, `with_nulls`, `missing_in`: values and which of them are valid;
* `take`, `slice_rows`, `concat_columns`: rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.arrays import (
    Array,
    gather_rows,
    list_parts,
    one_array,
    valid_rows,
    with_wide_offsets,
)
from tutorlib.schema import is_number, remedy_for, type_row, vector_type


class Chunk(Mapping[str, Any]):
    """Some rows of a data set: columns of equal length by name.

    Args:
        columns: {name: column} of the kinds above, all of one length.

    Raises:
        ValueError: if the columns differ in length.

    Example:
        >>> tags = Ragged(np.arange(3), np.array([0, 1, 3]))
        >>> chunk = Chunk({"id": np.array([7, 8]), "tags": tags})
        >>> chunk.num_rows, chunk.take(np.array([1, 0]))["tags"].tolist()
        (2, [[1, 2], [0]])
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a chunk must have equal lengths, got {lengths}")
        self.num_rows = next(iter(lengths.values()), 0)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; the chunk has {self.names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"Chunk({self.num_rows} rows x {self.names})"

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    def select(self, names: Sequence[str]) -> Chunk:
        """Return the named columns, in the order of `names`."""
        return Chunk({name: self[name] for name in names})

    def with_columns(self, columns: Mapping[str, Any]) -> Chunk:
        """Return a chunk with the given columns added or replaced."""
        return Chunk({**self.columns, **columns})

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows [start, stop); values are shared, not copied."""
        return Chunk({name: slice_rows(column, start, stop) for name, column in self.items()})

    def take(self, rows: Array) -> Chunk:
        """Return the given rows (int64 [m]), in the given order."""
        return Chunk({name: take(column, rows) for name, column in self.items()})

    @staticmethod
    def concat(chunks: Sequence[Chunk]) -> Chunk:
        """Return the rows of several chunks, concatenated.

        Raises:
            ValueError: if the chunks have different columns.
        """
        names = chunks[0].names
        for chunk in chunks:
            if set(chunk.names) != set(names):
                raise ValueError(f"chunks have different columns: {names} and {chunk.names}")
        return Chunk({name: concat_columns([chunk[name] for chunk in chunks]) for name in names})

    @classmethod
    def from_arrow(cls, table: Any) -> Chunk:
        """Return the rows of a `pyarrow.Table` or `RecordBatch`; numbers are not copied."""
        return cls({name: column_from_arrow(table[name]) for name in table.schema.names})

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""
        return pa.table({name: column_to_arrow(column) for name, column in self.items()})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Give the rows to whatever takes a table by Arrow's C interface, such as a loader."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; lists become arrays."""
        return self.to_arrow().to_pandas()


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy."""
    return isinstance(value, np.ndarray)


# The kinds of column beside arrays. Each is a dataclass of arrays and of other columns.


class _Compound:
    """Base of the kinds that are made of several arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return sum(part.nbytes for part in parts if part is not None)


@dataclasses.dataclass(eq=False)
class Ragged(_Compound):
    """One list a row.

    Args:
        values: column of length nnz: an array, `Strings` or `Masked`.
        offsets: int64 [n + 1] from 0 to nnz; row i holds values[offsets[i]:offsets[i + 1]].
        valid: bool [n], False at a null list, which has no values; None if no list is null. Ops
            that make lists of lists return an empty list for a null one.
    """

    values: Any
    offsets: Array
    valid: Array | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Array) -> Ragged:
        """Return the given rows, in the given order."""
        positions, offsets = gather_rows(self.offsets, rows)
        valid = None if self.valid is None else self.valid[rows]
        return Ragged(take(self.values, positions), offsets, valid)

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows [start, stop); values are shared, offsets copied."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        valid = None if self.valid is None else self.valid[start:stop]
        return Ragged(slice_rows(self.values, first, last), offsets - first, valid)

    def tolist(self) -> list[Any]:
        """Return the rows as lists, None at a null list."""
        flat = self.values.tolist()
        lists = [flat[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]
        if self.valid is None:
            return lists
        return [row if ok else None for row, ok in zip(lists, self.valid.tolist(), strict=True)]


@dataclasses.dataclass(eq=False)
class Strings(_Compound):
    """One string a row.

    Args:
        data: uint8 [nbytes], UTF-8.
        offsets: int64 [n + 1] from 0 to nbytes.
    """

    data: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Array) -> Strings:
        """Return the given rows, in the given order."""
        positions, offsets = gather_rows(self.offsets, rows)
        return Strings(take(self.data, positions), offsets)

    def slice(self, start: int, stop: int) -> Strings:
        """Return rows [start, stop); bytes are shared, offsets copied."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Strings(self.data[first:last], offsets - first)

    def tolist(self) -> list[str]:
        """Return the strings."""
        return self.to_arrow().to_pylist()

    def to_arrow(self) -> pa.LargeStringArray:
        """Return a `pyarrow.LargeStringArray` over the same memory."""
        parts = map(np.ascontiguousarray, (self.offsets, self.data))
        return pa.LargeStringArray.from_buffers(len(self), *map(pa.py_buffer, parts))

    @staticmethod
    def from_arrow(array: Any) -> Strings:
        """Return the strings of a `pyarrow` array without nulls."""
        array = array.cast(pa.large_string())
        _, offsets, data = array.buffers()
        offsets = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        data = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return Strings(data[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclasses.dataclass(eq=False)
class Masked(_Compound):
    """Values of which some are null.

    Args:
        values: array [n] or [n, k], or `Strings`; the value at a null is undefined.
        valid: bool of the shape of the values, False at a null.
    """

    values: Any
    valid: Array

    def __len__(self) -> int:
        return len(self.valid)

    def take(self, rows: Array) -> Masked:
        """Return the given rows, in the given order."""
        return Masked(take(self.values, rows), self.valid[rows])

    def slice(self, start: int, stop: int) -> Masked:
        """Return rows [start, stop)."""
        return Masked(slice_rows(self.values, start, stop), self.valid[start:stop])

    def tolist(self) -> list[Any]:
        """Return the values, None at a null."""
        if is_vectors(self):
            return as_lists(self).tolist()
        valid = self.valid.tolist()
        return [v if ok else None for v, ok in zip(self.values.tolist(), valid, strict=True)]


# Nulls: a value is missing where `valid` is False, and in floating point where it is NaN.


def parts_of(column: Any) -> tuple[Any, Array | None]:
    """Return (values, valid) of a column without lists; valid is None if there are no nulls."""
    return (column.values, column.valid) if isinstance(column, Masked) else (column, None)


def with_nulls(values: Any, valid: Array | None) -> Any:
    """Return a column of values with nulls: NaN in floating point (in place), else `Masked`."""
    if valid is None or bool(valid.all()):
        return values
    if is_array(values) and values.dtype.kind == "f":
        values[~valid] = np.nan
        return values
    return Masked(values, valid)


def missing_in(column: Any) -> Array:
    """Return bool [n], True where a column without lists has a null or a NaN."""
    values, valid = parts_of(column)
    missing = np.zeros(len(values), dtype=bool) if valid is None else ~valid
    return missing | np.isnan(values) if is_array(values) and values.dtype.kind == "f" else missing


def column_type(column: Any) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list) of a column."""
    values, _ = parts_of(flat_values(column))
    name = values.dtype.name if is_array(values) else "string"
    if is_vectors(column):
        return vector_type(name, parts_of(column)[0].shape[1]), False
    return name, isinstance(column, Ragged)


# Lists and vectors: their values, and other values in their place.


def is_vectors(column: Any) -> bool:
    """Return whether a column holds vectors: an array [n, k], or `Masked` values of this shape."""
    array = column.valid if isinstance(column, Masked) else column
    return is_array(array) and array.ndim == 2


def flat_values(column: Any) -> Any:
    """Return the values of all rows of a column of lists or vectors; else the column itself.

    Example:
        >>> flat_values(np.array([[1, 2], [3, 4]])).tolist()
        [1, 2, 3, 4]
    """
    if isinstance(column, Ragged):
        return column.values
    return _reshaped(column, (-1,)) if is_vectors(column) else column


def with_flat_values(column: Any, values: Any) -> Any:
    """Return other values, of all rows, in the lists or vectors of a column.

    Values that vectors cannot hold, which are strings, become lists.

    Example:
        >>> with_flat_values(np.array([[1, 2], [3, 4]]), np.arange(4)).tolist()
        [[0, 1], [2, 3]]
    """
    if isinstance(column, Ragged):
        return Ragged(values, column.offsets)
    if not is_vectors(column):
        return values
    if not is_array(parts_of(values)[0]):
        return Ragged(values, as_lists(column).offsets)
    return _reshaped(values, parts_of(column)[0].shape)


def _reshaped(column: Any, shape: tuple[int, ...]) -> Any:
    values, valid = parts_of(column)
    values = values.reshape(shape)
    return values if valid is None else Masked(values, valid.reshape(shape))


def with_null_rows(vectors: Any, valid: Array) -> Any:
    """Return vectors with nulls in the rows that are not `valid`: NaN in floating point.

    Args:
        vectors: column of vectors, [n, k].
        valid: bool [n].
    """
    values, known = parts_of(vectors)
    if values.dtype.kind == "f":
        return np.where(valid[:, None], values, values.dtype.type("nan"))
    known = np.ones(values.shape, dtype=bool) if known is None else known
    return Masked(values, known & valid[:, None])


def as_lists(column: Any) -> Any:
    """Return vectors as `Ragged`, without copying values; any other column as it is.

    Example:
        >>> as_lists(np.array([[1, 2], [3, 4]])).offsets.tolist()
        [0, 2, 4]
    """
    if not is_vectors(column):
        return column
    rows, length = parts_of(column)[0].shape
    offsets = np.arange(rows + 1, dtype=np.int64) * length
    return Ragged(flat_values(column), offsets)


def as_vectors(lists: Ragged, length: int, first_row: int = 0) -> Any:
    """Return lists of `length` numbers as vectors; values are copied only if lists are missing.

    Args:
        lists: a null or empty list is a missing vector: null, NaN in floating point, in each place.
        length: of each list, at least 1.
        first_row: number of the first row, for messages.

    Raises:
        ValueError: if a list has another length.

    Example:
        >>> as_vectors(Ragged(np.arange(4.0), np.array([0, 2, 2, 4])), 2).tolist()
        [[0.0, 1.0], [nan, nan], [2.0, 3.0]]
    """
    lengths = np.diff(lists.offsets)
    valid = lengths == length
    rows = int(valid.sum())
    wrong = ~valid & (lengths != 0)
    if rows < len(lists) and wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"a list of {int(lengths[row])} values at row {first_row + row}, but all lists of this "
            f"column must have {length}. Write lists of one length, and a missing one as null."
        )
    vectors = with_flat_values(np.empty((rows, length), dtype=bool), lists.values)
    if rows == len(lists):
        return vectors
    if not rows:
        return with_null_rows(np.zeros((len(lists), length), dtype=lists.values.dtype), valid)
    return with_null_rows(take(vectors, np.maximum(np.cumsum(valid) - 1, 0)), valid)


# Rows of a column of any kind.


def take(column: Any, rows: Array) -> Any:
    """Return the given rows of a column of any kind."""
    return column[rows] if is_array(column) and column.ndim == 2 else column.take(rows)


def slice_rows(column: Any, start: int, stop: int) -> Any:
    """Return rows [start, stop) of a column of any kind, without copying an array."""
    return column[start:stop] if is_array(column) else column.slice(start, stop)


def _kind(column: Any) -> type[Any]:
    """Return the class of a column; `Strings` for one derived from it, which may hold less."""
    return Strings if isinstance(column, Strings) else type(column)


def concat_columns(parts: Sequence[Any]) -> Any:
    """Return several columns of one kind, concatenated; some may be `Masked`, others not.

    Raises:
        TypeError: if the kinds differ.
    """
    if len(parts) == 1:
        return parts[0]
    valid = None
    masks = [getattr(part, "valid", None) for part in parts]  # of lists and of values with nulls
    if any(mask is not None for mask in masks):
        sizes = [part.shape if is_array(part) else len(part) for part in parts]
        known = zip(masks, sizes, strict=True)
        valid = np.concatenate([np.ones(n, dtype=bool) if m is None else m for m, n in known])
    if any(isinstance(part, Masked) for part in parts):
        return Masked(concat_columns([parts_of(part)[0] for part in parts]), valid)
    kinds = {_kind(part) for part in parts}
    if len(kinds) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise TypeError(f"only columns of one kind can be concatenated, got {names}")
    if is_array(parts[0]):
        return np.concatenate(parts)
    ends = np.cumsum([0] + [int(part.offsets[-1]) for part in parts])
    shifted = [part.offsets[1:] + end for part, end in zip(parts, ends, strict=False)]
    offsets = np.concatenate([parts[0].offsets[:1], *shifted])
    if isinstance(parts[0], Strings):
        return Strings(np.concatenate([part.data for part in parts]), offsets)
    return Ragged(concat_columns([part.values for part in parts]), offsets, valid)


# Arrow arrays.


def column_from_arrow(array: Any) -> Any:
    """Return an Arrow array as a column of a chunk.

    Raises:
        TypeError: for a type that a chunk cannot hold, such as a map, a struct or nested lists.
    """
    array = one_array(array)
    if pa.types.is_null(array.type):
        array = array.cast(pa.float32())
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        return column_from_arrow(array.cast(with_wide_offsets(kind)).dictionary_decode())
    if types.is_list(kind) or types.is_large_list(kind):
        return _ragged_from_arrow(array)
    if types.is_fixed_size_list(kind):
        if kind.list_size and is_number(str(kind.value_type)):
            return _vectors_from_arrow(array)
        return _ragged_from_arrow(array.cast(pa.large_list(kind.value_type)))
    row = type_row(str(kind))
    text = row.kind == "string"
    if row.kind == "time":
        array = array.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.int64())
    elif row.kind == "other":
        raise TypeError(
            f"Arrow type {kind} is not supported; {row.remedy}, or leave the column out"
        )
    valid = None
    if array.null_count:
        array = array.cast(pa.large_string()) if text else array
        valid = valid_rows(array)
        fill = "" if text else math.nan if types.is_floating(kind) else 0
        array = pc.fill_null(array, pa.scalar(fill).cast(array.type))
    values: Any = Strings.from_arrow(array) if text else array.to_numpy(zero_copy_only=False)
    if row.kind == "time":
        values = values.view(row.dtype)
    return values if valid is None or types.is_floating(kind) else Masked(values, valid)


def _vectors_from_arrow(array: Any) -> Any:
    rows, length = len(array), array.type.list_size
    column = column_from_arrow(array.values.slice(array.offset * length, rows * length))
    vectors = with_flat_values(np.empty((rows, length), bool), column)
    return with_null_rows(vectors, valid_rows(array)) if array.null_count else vectors


def _ragged_from_arrow(array: Any) -> Ragged:
    valid = valid_rows(array) if array.null_count else None
    values, offsets = list_parts(array)
    column = column_from_arrow(values)
    if isinstance(column, Ragged):
        raise TypeError(
            f"Arrow type {array.type} is not supported; {remedy_for(str(array.type))}, or leave "
            "the column out"
        )
    return Ragged(column, offsets, valid)


def column_to_arrow(column: Any) -> Any:
    """Return a column as a `pyarrow.Array`; NaN remains NaN, a `Masked` null becomes null."""
    if is_vectors(column):
        length = parts_of(column)[0].shape[1]
        return pa.FixedSizeListArray.from_arrays(column_to_arrow(flat_values(column)), length)
    if isinstance(column, Ragged):
        mask = None if column.valid is None else pa.array(~column.valid)
        values, offsets = column_to_arrow(column.values), pa.array(column.offsets)
        return pa.LargeListArray.from_arrays(offsets, values, mask=mask)
    if isinstance(column, Masked):
        values = column_to_arrow(column.values)
        return pc.if_else(pa.array(column.valid), values, pa.scalar(None, values.type))
    return column.to_arrow() if isinstance(column, Strings) else pa.array(column)
