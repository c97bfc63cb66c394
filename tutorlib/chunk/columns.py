"""The kinds of column: arrays, lists, strings and values with nulls, of NumPy or CuPy.

There are five kinds, laid out as in Arrow and cuDF, so that conversion copies nothing:

* an array `values[n]`: one number a row, no nulls (in floating point, a null is NaN);
* an array `values[n, k]`: one vector a row, of k numbers, no nulls;
* `Ragged`: one list a row, as `values[nnz]` and `offsets[n + 1]`;
* `Strings`: one string a row, as UTF-8 bytes and `offsets[n + 1]`;
* `Masked`: values of which some are null, and `valid[n]`.

They nest: `Ragged` may hold `Masked` `Strings`. All functions work with both array libraries.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray


def array_namespace(array: Array) -> Any:
    """Return the module (numpy or cupy) whose functions work on `array`."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy.get_array_module(array)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy or CuPy."""
    return isinstance(value, np.ndarray) or type(value).__module__.partition(".")[0] == "cupy"


def row_ids(offsets: Array) -> Array:
    """Return the row of each value, int64 [nnz], from offsets int64 [n + 1].

    Example:
        >>> row_ids(np.array([0, 2, 2, 3])).tolist()
        [0, 0, 2]
    """
    xp = array_namespace(offsets)
    return xp.repeat(xp.arange(len(offsets) - 1), xp.diff(offsets))


def gather_rows(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Return the positions of the values of some ragged rows, without a loop over rows.

    Args:
        offsets: int64 [n + 1], rising from 0.
        rows: int64 [m] in [0, n), in any order.

    Returns:
        (positions int64 [sum of the rows' lengths], offsets int64 [m + 1] of the result).

    Example:
        >>> positions, offsets = gather_rows(np.array([0, 2, 2, 5]), np.array([2, 0]))
        >>> positions.tolist(), offsets.tolist()
        ([2, 3, 4, 0, 1], [0, 3, 5])
    """
    xp = array_namespace(offsets)
    starts = xp.take(offsets, rows)
    lengths = xp.take(offsets, rows + 1) - starts
    result = xp.zeros(len(rows) + 1, dtype=np.int64)
    xp.cumsum(lengths, out=result[1:])
    filled = lengths > 0
    if not filled.all():
        starts, lengths = starts[filled], lengths[filled]
    # Positions rise by one, except from the end of a row to the start of the next.
    steps = xp.ones(int(result[-1]), dtype=np.int64)
    if len(starts):
        jumps = starts.copy()
        jumps[1:] -= starts[:-1] + lengths[:-1] - 1
        steps[xp.cumsum(lengths) - lengths] = jumps
    return xp.cumsum(steps, out=steps if xp is np else None), result


class _Offsets(abc.ABC):
    """Base of `Ragged` and `Strings`: n + 1 offsets into a flat column."""

    offsets: Array

    @abc.abstractmethod
    def __init__(self, flat: Any, offsets: Array) -> None: ...

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    @abc.abstractmethod
    def _flat(self) -> Any:
        """Values of lists, or bytes of strings."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._flat.nbytes + self.offsets.nbytes

    def take(self, rows: Array) -> Any:
        """Return the given rows, in the given order."""
        positions, offsets = gather_rows(self.offsets, rows)
        return type(self)(take(self._flat, positions), offsets)

    def slice(self, start: int, stop: int) -> Any:
        """Return rows [start, stop); values are shared, offsets copied."""
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return type(self)(slice_rows(self._flat, first, last), offsets - first)


@dataclasses.dataclass(eq=False)
class Ragged(_Offsets):
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

    @property
    def _flat(self) -> Any:
        return self.values

    def take(self, rows: Array) -> Ragged:
        """Return the given rows, in the given order."""
        taken: Ragged = super().take(rows)
        taken.valid = None if self.valid is None else self.valid[rows]
        return taken

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows [start, stop); values are shared, offsets copied."""
        part: Ragged = super().slice(start, stop)
        part.valid = None if self.valid is None else self.valid[start:stop]
        return part

    def tolist(self) -> list[Any]:
        """Return the rows as lists, None at a null list."""
        flat, offsets = self.values.tolist(), self.offsets.tolist()
        lists = [flat[a:b] for a, b in itertools.pairwise(offsets)]
        valid = [True] * len(lists) if self.valid is None else self.valid.tolist()
        return [row if ok else None for row, ok in zip(lists, valid, strict=True)]


@dataclasses.dataclass(eq=False)
class Strings(_Offsets):
    """One string a row.

    Args:
        data: uint8 [nbytes], UTF-8.
        offsets: int64 [n + 1] from 0 to nbytes.
    """

    data: Array
    offsets: Array

    @property
    def _flat(self) -> Any:
        return self.data

    def tolist(self) -> list[str]:
        """Return the strings."""
        return self.to_arrow().to_pylist()

    def to_arrow(self) -> Any:
        """Return a `pyarrow.LargeStringArray` over the same memory."""
        import pyarrow as pa

        offsets, data = (np.ascontiguousarray(a) for a in (self.offsets, self.data))
        return pa.LargeStringArray.from_buffers(
            len(self), pa.py_buffer(offsets), pa.py_buffer(data)
        )

    @classmethod
    def from_arrow(cls, array: Any) -> Strings:
        """Return the strings of a `pyarrow` array without nulls."""
        import pyarrow as pa

        array = array.cast(pa.large_string())
        _, offsets, data = array.buffers()
        offsets = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        data = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return cls(data[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclasses.dataclass(eq=False)
class Masked:
    """Values of which some are null.

    Args:
        values: array [n] or [n, k], or `Strings`; the value at a null is undefined.
        valid: bool of the shape of the values, False at a null.
    """

    values: Any
    valid: Array

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.values.nbytes + self.valid.nbytes

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
    if not is_vectors(column):
        return column
    if isinstance(column, Masked):
        return Masked(column.values.reshape(-1), column.valid.reshape(-1))
    return column.reshape(-1)


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
    held = values.values if isinstance(values, Masked) else values
    if not is_array(held):
        return Ragged(values, as_lists(column).offsets)
    shape = (column.valid if isinstance(column, Masked) else column).shape
    if isinstance(values, Masked):
        return Masked(values.values.reshape(shape), values.valid.reshape(shape))
    return values.reshape(shape)


def with_null_rows(vectors: Any, valid: Array) -> Any:
    """Return vectors with nulls in the rows that are not `valid`: NaN in floating point.

    Args:
        vectors: column of vectors, [n, k].
        valid: bool [n].
    """
    values = vectors.values if isinstance(vectors, Masked) else vectors
    xp = array_namespace(values)
    if values.dtype.kind == "f":
        return xp.where(valid[:, None], values, values.dtype.type("nan"))
    known = vectors.valid if isinstance(vectors, Masked) else xp.ones(values.shape, dtype=bool)
    return Masked(values, known & valid[:, None])


def as_lists(column: Any) -> Any:
    """Return vectors as `Ragged`, without copying values; any other column as it is.

    Example:
        >>> as_lists(np.array([[1, 2], [3, 4]])).offsets.tolist()
        [0, 2, 4]
    """
    if not is_vectors(column):
        return column
    array = column.valid if isinstance(column, Masked) else column
    rows, length = array.shape
    offsets = array_namespace(array).arange(rows + 1, dtype=np.int64) * length
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
    xp = array_namespace(lists.offsets)
    lengths = xp.diff(lists.offsets)
    valid = lengths == length
    rows = int(valid.sum())
    wrong = ~valid & (lengths != 0)
    if rows < len(lists) and wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"a list of {int(lengths[row])} values at row {first_row + row}, but all lists of this "
            f"column must have {length}. Write lists of one length, and a missing one as null."
        )
    vectors = with_flat_values(xp.empty((rows, length), dtype=bool), lists.values)
    if rows == len(lists):
        return vectors
    if not rows:
        return with_null_rows(xp.zeros((len(lists), length), dtype=lists.values.dtype), valid)
    return with_null_rows(take(vectors, xp.maximum(xp.cumsum(valid) - 1, 0)), valid)


def take(column: Any, rows: Array) -> Any:
    """Return the given rows of a column of any kind."""
    return column[rows] if is_array(column) and column.ndim == 2 else column.take(rows)


def slice_rows(column: Any, start: int, stop: int) -> Any:
    """Return rows [start, stop) of a column of any kind, without copying an array."""
    return column.slice(start, stop) if hasattr(column, "slice") else column[start:stop]


def copied(column: Any) -> Any:
    """Return a copy of a column of any kind that shares no memory with it."""
    if isinstance(column, Masked):
        return Masked(copied(column.values), column.valid.copy())
    if isinstance(column, Ragged):
        valid = None if column.valid is None else column.valid.copy()
        return Ragged(copied(column.values), column.offsets.copy(), valid)
    if isinstance(column, _Offsets):
        return type(column)(copied(column._flat), column.offsets.copy())
    return column.copy()


def concat_columns(parts: Sequence[Any]) -> Any:
    """Return several columns of one kind, concatenated; some may be `Masked`, others not.

    Raises:
        TypeError: if the kinds differ.
    """
    if len(parts) == 1:
        return parts[0]
    kinds = {Strings if isinstance(part, Strings) else type(part) for part in parts}
    if Masked in kinds and len(kinds) > 1:
        parts = [part if isinstance(part, Masked) else _all_valid(part) for part in parts]
        kinds = {Masked}
    if len(kinds) > 1:
        names = sorted(kind.__name__ for kind in kinds)
        raise TypeError(f"only columns of one kind can be concatenated, got {names}")
    first = parts[0]
    if isinstance(first, Masked):
        valid = concat_columns([part.valid for part in parts])
        return Masked(concat_columns([part.values for part in parts]), valid)
    if isinstance(first, _Offsets):
        xp = array_namespace(first.offsets)
        ends = np.cumsum([0] + [int(part.offsets[-1]) for part in parts])
        shifted = [p.offsets[1:] + end for p, end in zip(parts, ends, strict=False)]
        offsets = xp.concatenate([first.offsets[:1], *shifted])
        made = type(first)(concat_columns([part._flat for part in parts]), offsets)
        if isinstance(made, Ragged) and any(part.valid is not None for part in parts):
            made.valid = xp.concatenate([valid_lists(part) for part in parts])
        return made
    return array_namespace(first).concatenate(parts)


def valid_lists(lists: Ragged) -> Array:
    """Return bool [n], False at a null list."""
    if lists.valid is not None:
        return lists.valid
    return array_namespace(lists.offsets).ones(len(lists), dtype=bool)


def _all_valid(column: Any) -> Masked:
    if isinstance(column, _Offsets):
        return Masked(column, array_namespace(column.offsets).ones(len(column), dtype=bool))
    return Masked(column, array_namespace(column).ones(column.shape, dtype=bool))


def to_host(array: Array) -> np.ndarray:
    """Return an array in the CPU's memory."""
    return array if isinstance(array, np.ndarray) else array.get()


def to_namespace(column: Any, xp: Any) -> Any:
    """Return a column of any kind in the memory of the array library `xp`, numpy or cupy."""
    moved = to_host if xp is np else xp.asarray
    if isinstance(column, Ragged):
        valid = None if column.valid is None else moved(column.valid)
        return Ragged(to_namespace(column.values, xp), moved(column.offsets), valid)
    if isinstance(column, Strings):
        return Strings(moved(column.data), moved(column.offsets))
    if isinstance(column, Masked):
        return Masked(to_namespace(column.values, xp), moved(column.valid))
    return moved(column)
