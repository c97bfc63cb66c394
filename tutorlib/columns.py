"""Chunk: some rows of a data set as columns by name, and the kinds of column that it holds.

There are five kinds, laid out as in Arrow, so that conversion copies no number:

* an array `values[n]`: one number a row, no nulls (in floating point, a null is NaN);
* an array `values[n, k]`: one vector a row, of k numbers, no nulls;
* `Ragged`: one list a row, as `values[nnz]` and `offsets[n + 1]`;
* `Strings`: one string a row, as UTF-8 bytes and `offsets[n + 1]`; `EncodedStrings`: each string
  once, and a code a row;
* `Masked`: values of which some are null, and `valid[n]`.

They nest: `Ragged` may hold `Masked` `Strings`. Code that works on values asks no column for its
kind. It takes the values apart and puts others in their place, by the functions of this file:

* `flat_values`, `with_flat_values`: the values of all lists or vectors, and others in their lists;
* `values_of`, `valid_of`, `with_nulls`, `missing_in`: values and which of them are valid;
* `take`, `slice_rows`: rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutorlib.arrays import list_parts, one_array, valid_rows, with_wide_offsets
from tutorlib.schema import element_type, is_number, remedy_for, type_row, vector_type


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

    def select(self, names: Sequence[str]) -> Chunk:
        """Return the named columns, in the order of `names`."""
        return Chunk({name: self[name] for name in names})

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows [start, stop); values are shared, not copied."""
        return Chunk({name: slice_rows(column, start, stop) for name, column in self.items()})

    def take(self, rows: np.ndarray) -> Chunk:
        """Return the given rows (int64 [m]), in the given order."""
        return Chunk({name: take(column, rows) for name, column in self.items()})

    @staticmethod
    def concat(chunks: Sequence[Chunk]) -> Chunk:
        """Return the rows of several chunks, concatenated.

        Raises:
            ValueError: if the chunks have different columns.
            TypeError: if columns of one name are of different kinds.
        """
        names = chunks[0].names
        for chunk in chunks:
            if set(chunk.names) != set(names):
                raise ValueError(f"chunks have different columns: {names} and {chunk.names}")
        if len(chunks) == 1:
            return chunks[0]
        tables = [chunk.select(names).to_arrow() for chunk in chunks]
        try:
            return Chunk.from_arrow(pa.concat_tables(tables, promote_options="permissive"))
        except pa.ArrowTypeError as error:
            rule = "only columns of one kind can be concatenated"
            raise TypeError(f"{rule}: {error}") from error

    @classmethod
    def from_arrow(cls, table: pa.Table | pa.RecordBatch) -> Chunk:
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


# The kinds of column beside arrays. Each is a dataclass of arrays and of other columns.


class _Compound:
    """Base of the kinds that are made of several arrays: Arrow takes and lists their rows."""

    def take(self, rows: np.ndarray) -> Any:
        """Return the given rows, in the given order."""
        return column_from_arrow(column_to_arrow(self).take(pa.array(rows)))

    def tolist(self) -> list[Any]:
        """Return the rows as Python's values, None at a null."""
        return column_to_arrow(self).to_pylist()


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
    offsets: np.ndarray
    valid: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows [start, stop); values are shared, offsets copied."""
        offsets = self.offsets[start : stop + 1]
        values = slice_rows(self.values, int(offsets[0]), int(offsets[-1]))
        valid = None if self.valid is None else self.valid[start:stop]
        return Ragged(values, offsets - offsets[0], valid)


@dataclasses.dataclass(eq=False)
class Strings(_Compound):
    """One string a row.

    Args:
        data: uint8 [nbytes], UTF-8.
        offsets: int64 [n + 1] from 0 to nbytes.
    """

    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Strings:
        """Return rows [start, stop); bytes are shared, offsets copied."""
        offsets = self.offsets[start : stop + 1]
        return Strings(self.data[offsets[0] : offsets[-1]], offsets - offsets[0])

    def to_arrow(self) -> pa.LargeStringArray:
        """Return a `pyarrow.LargeStringArray` over the same memory."""
        offsets = pa.py_buffer(np.ascontiguousarray(self.offsets))
        data = pa.py_buffer(np.ascontiguousarray(self.data))
        return pa.LargeStringArray.from_buffers(len(self), offsets, data)

    @staticmethod
    def from_arrow(array: pa.Array) -> Strings:
        """Return the strings of a `pyarrow` array without nulls."""
        array = array.cast(pa.large_string())
        _, buffer, data = array.buffers()
        offsets = np.frombuffer(buffer, np.int64, len(array) + 1, array.offset * 8)
        data = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return Strings(data[offsets[0] : offsets[-1]], offsets - offsets[0])


class EncodedStrings(Strings):
    """Strings as a dictionary of distinct values and a code for each row, decoded on first use.

    Most Parquet files store strings this way. An op that maps each string works on the dictionary,
    which holds it once. Concatenated or written, they become plain `Strings`.

    Args:
        codes: int32 [n], index into the dictionary.
        dictionary: distinct strings, no null; some may be unused.
    """

    def __init__(self, codes: np.ndarray, dictionary: pa.LargeStringArray) -> None:
        self.codes = codes
        self.dictionary = dictionary

    def __reduce__(self) -> tuple[type[EncodedStrings], tuple[np.ndarray, pa.LargeStringArray]]:
        return EncodedStrings, (self.codes, self.dictionary)

    def __len__(self) -> int:
        return len(self.codes)

    @functools.cached_property
    def _decoded(self) -> Strings:
        return Strings.from_arrow(self.to_arrow())

    @property
    def data(self) -> np.ndarray:  # type: ignore[override]
        """UTF-8 bytes of all rows, uint8 [nbytes]."""
        return self._decoded.data

    @property
    def offsets(self) -> np.ndarray:  # type: ignore[override]
        """Offsets of the rows in `data`, int64 [n + 1]."""
        return self._decoded.offsets

    def take(self, rows: np.ndarray) -> EncodedStrings:
        """Return the given rows, in the given order."""
        return EncodedStrings(self.codes[rows], self.dictionary)

    def slice(self, start: int, stop: int) -> EncodedStrings:
        """Return rows [start, stop), without copying."""
        return EncodedStrings(self.codes[start:stop], self.dictionary)

    def to_arrow(self) -> pa.LargeStringArray:
        """Return the strings as a `pyarrow.LargeStringArray`."""
        return self.dictionary.take(pa.array(self.codes))


def encoded_column(array: pa.Array | pa.ChunkedArray) -> EncodedStrings | Masked:
    """Return an Arrow array of strings, dictionary-encoded or not, as a column of a chunk.

    Args:
        array: strings, without nulls in their dictionary.

    Example:
        >>> column = encoded_column(pa.array(["b", None, "b"]).dictionary_encode())
        >>> column.tolist(), column.values.codes.tolist(), column.values.dictionary.to_pylist()
        (['b', None, 'b'], [0, 0, 0], ['b'])
    """
    if not pa.types.is_dictionary(array.type):
        array = array.cast(pa.large_string()).dictionary_encode()
    array = array.cast(with_wide_offsets(array.type))
    if isinstance(array, pa.ChunkedArray):
        chunks = array.unify_dictionaries().chunks or [pa.array([], array.type)]
        array = pa.concat_arrays(chunks)
    dictionary = array.dictionary.cast(pa.large_string())
    if not len(dictionary):  # all rows are null, and code 0 must exist
        dictionary = pa.array([""], pa.large_string())
    codes = column_from_arrow(array.indices)
    strings = EncodedStrings(values_of(codes).astype(np.int32, copy=False), dictionary)
    valid = valid_of(codes)
    return strings if valid is None else Masked(strings, valid)


@dataclasses.dataclass(eq=False)
class Masked(_Compound):
    """Values of which some are null.

    Args:
        values: array [n] or [n, k], or `Strings`; the value at a null is undefined.
        valid: bool of the shape of the values, False at a null.
    """

    values: np.ndarray | Strings
    valid: np.ndarray

    def __len__(self) -> int:
        return len(self.valid)

    def slice(self, start: int, stop: int) -> Masked:
        """Return rows [start, stop)."""
        return Masked(slice_rows(self.values, start, stop), self.valid[start:stop])


FlatColumn = np.ndarray | Strings | Masked  # no lists
AnyColumn = np.ndarray | Strings | Masked | Ragged


# Nulls: a value is missing where `valid` is False, and in floating point where it is NaN.


def values_of(column: Any) -> Any:
    """Return the values of a column without lists, those at its nulls undefined."""
    return column.values if isinstance(column, Masked) else column


def valid_of(column: FlatColumn) -> np.ndarray | None:
    """Return which values of a column without lists are valid; None if there are no nulls."""
    return column.valid if isinstance(column, Masked) else None


def with_nulls(values: np.ndarray | Strings, valid: np.ndarray | None) -> FlatColumn:
    """Return a column of values with nulls: NaN in floating point (in place), else `Masked`."""
    if valid is None or bool(valid.all()):
        return values
    if is_floats(values):
        values[~valid] = np.nan
        return values
    return Masked(values, valid)


def is_floats(values: AnyColumn) -> TypeGuard[np.ndarray]:
    """Return whether values are an array of floating-point numbers."""
    return isinstance(values, np.ndarray) and values.dtype.kind == "f"


def missing_in(column: FlatColumn) -> np.ndarray:
    """Return bool [n], True where a column without lists has a null or a NaN."""
    if isinstance(column, Masked):
        return ~column.valid
    return np.isnan(column) if is_floats(column) else np.zeros(len(column), dtype=bool)


def column_type(column: AnyColumn) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list) of a column."""
    values = values_of(flat_values(column))
    name = "string" if isinstance(values, Strings) else values.dtype.name
    if is_vectors(column):
        return vector_type(name, values_of(column).shape[1]), False
    return name, isinstance(column, Ragged)


# Lists and vectors: their values, and other values in their place.


def is_vectors(column: AnyColumn) -> bool:
    """Return whether a column holds vectors: an array [n, k], or `Masked` values of this shape."""
    values = values_of(column)
    return isinstance(values, np.ndarray) and values.ndim == 2


def flat_values(column: AnyColumn) -> Any:
    """Return the values of all rows of a column of lists or vectors; else the column itself.

    Example:
        >>> flat_values(np.array([[1, 2], [3, 4]])).tolist()
        [1, 2, 3, 4]
    """
    if isinstance(column, Ragged):
        return column.values
    return _reshaped(column, (-1,)) if is_vectors(column) else column


def with_flat_values(column: AnyColumn, values: FlatColumn) -> AnyColumn:
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
    if isinstance(values_of(values), Strings):
        return Ragged(values, as_lists(column).offsets)
    return _reshaped(values, values_of(column).shape)


def _reshaped(column: Any, shape: tuple[int, ...]) -> np.ndarray | Masked:
    if isinstance(column, Masked):
        return Masked(values_of(column).reshape(shape), column.valid.reshape(shape))
    return column.reshape(shape)


def as_lists(column: AnyColumn) -> Any:
    """Return vectors as `Ragged`, without copying values; any other column as it is.

    Example:
        >>> as_lists(np.array([[1, 2], [3, 4]])).offsets.tolist()
        [0, 2, 4]
    """
    if not is_vectors(column):
        return column
    length = values_of(column).shape[1]
    return Ragged(flat_values(column), np.arange(len(column) + 1, dtype=np.int64) * length)


def converted(column: AnyColumn, kind: tuple[str, bool]) -> AnyColumn:
    """Return a column with the type `kind`, where `type_mismatch` finds none.

    Each value stays the number, time or text that it is. Integers that the type cannot hold keep
    their own; floating-point numbers are rounded.

    Raises:
        ValueError: for a time or an integer without an equal in the type, a floating-point number
            beyond its range, or a list whose length is not that of the vectors.

    Example:
        >>> days = np.array(["1970-01-02"], "datetime64[D]")
        >>> converted(days, ("datetime64[s]", False)).tolist()
        [datetime.datetime(1970, 1, 2, 0, 0)]
    """
    if column_type(column) == tuple(kind):
        return column
    name, length = element_type(kind[0])
    if length is not None and isinstance(column, Ragged):  # an empty list is a missing vector
        lengths = np.diff(column.offsets)
        wrong = (lengths != length) & (lengths != 0)
        if bool(wrong.any()):
            raise ValueError(f"the list at row {int(wrong.argmax())} has not {length} values")
        lists = column_to_arrow(Ragged(column.values, column.offsets, lengths == length))
        column = column_from_arrow(lists.cast(pa.list_(lists.type.value_type, length)))
    if kind[1]:
        column = as_lists(column)
    values = values_of(flat_values(column))
    valid = valid_of(flat_values(column))
    if isinstance(values, Strings) or values.dtype == name:
        return column
    dtype = np.dtype(name)
    if values.dtype.kind in "iu" and dtype.kind in "iu":
        numbers = values if valid is None else values[valid]
        limits = np.iinfo(dtype)
        low = int(numbers.min(initial=0))
        if low < limits.min or int(numbers.max(initial=0)) > limits.max:
            return column
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        if values.dtype.kind == "f":
            wrong = np.isinf(result) & ~np.isinf(values)
        else:  # compared as integers, so that not-a-time equals itself
            bits = f"i{values.itemsize}"
            wrong = result.astype(values.dtype).view(bits) != values.view(bits)
    if valid is not None:
        wrong &= valid
    if bool(wrong.any()):
        place = int(wrong.argmax())
        lists = as_lists(column)
        is_list = isinstance(lists, Ragged)
        row = int(np.searchsorted(lists.offsets, place, side="right")) - 1 if is_list else place
        raise ValueError(f"{values[place]} at row {row} has no equal in it")
    return with_flat_values(column, with_nulls(result, valid))


# Rows of a column of any kind.


def take(column: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a column of any kind."""
    return column.take(rows, axis=0) if isinstance(column, np.ndarray) else column.take(rows)


def slice_rows(column: Any, start: int, stop: int) -> Any:
    """Return rows [start, stop) of a column of any kind, without copying an array."""
    return column[start:stop] if isinstance(column, np.ndarray) else column.slice(start, stop)


# Arrow arrays.


def column_from_arrow(array: pa.Array | pa.ChunkedArray) -> Any:
    """Return an Arrow array as a column of a chunk.

    Raises:
        TypeError: for a type that a chunk cannot hold, such as a map, a struct or nested lists.
    """
    array = one_array(array)
    if pa.types.is_null(array.type):
        array = array.cast(pa.float32())
    kind = array.type
    types = pa.types
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


def _vectors_from_arrow(array: pa.FixedSizeListArray) -> Any:
    rows = len(array)
    length = array.type.list_size
    values = array.values.slice(array.offset * length, rows * length)
    if array.null_count:  # a null vector has a null in each place
        valid = pa.array(np.repeat(valid_rows(array), length))
        values = pc.if_else(valid, values, pa.scalar(None, values.type))
    return with_flat_values(np.empty((rows, length), bool), column_from_arrow(values))


def _ragged_from_arrow(array: pa.Array) -> Ragged:
    valid = valid_rows(array) if array.null_count else None
    parts = list_parts(array)
    column = column_from_arrow(parts[0])
    if isinstance(column, Ragged):
        raise TypeError(
            f"Arrow type {array.type} is not supported; {remedy_for(str(array.type))}, or leave "
            "the column out"
        )
    return Ragged(column, parts[1], valid)


def column_to_arrow(column: Any) -> pa.Array:
    """Return a column as a `pyarrow.Array`; NaN remains NaN, a `Masked` null becomes null."""
    if is_vectors(column):
        length = values_of(column).shape[1]
        return pa.FixedSizeListArray.from_arrays(column_to_arrow(flat_values(column)), length)
    if isinstance(column, Ragged):
        mask = None if column.valid is None else pa.array(~column.valid)
        values = column_to_arrow(column.values)
        return pa.LargeListArray.from_arrays(pa.array(column.offsets), values, mask=mask)
    if isinstance(column, Masked):
        values = column_to_arrow(column.values)
        return pc.if_else(pa.array(column.valid), values, pa.scalar(None, values.type))
    return column.to_arrow() if isinstance(column, Strings) else pa.array(column)
