"""ListSlice: a slice of each list, padded to one length on request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.checks import check_integer
from tutorlib.columns import (
    Array,
    Chunk,
    Ragged,
    array_namespace,
    as_lists,
    column_from_arrow,
    concat_columns,
    gather_rows,
    take,
    to_namespace,
)
from tutorlib.ops.base import Op
from tutorlib.ops.shared.checks import check_fill
from tutorlib.ops.shared.columns import column_type, with_lists
from tutorlib.schema import Column


class ListSlice(Op):
    """Keeps values [start, end) of each list, as Python's slices do, and pads them on request.

    Returns (from transform): columns of lists; dtype, nulls and the cardinality of ids stay.

    Args:
        start: first value; negative counts from the end of the list.
        end: one past the last value; negative counts from the end, None is the end.
        pad: whether shorter lists are padded at their end to the length of the slice, for which
            `start` and `end` must count from the same end of the list.
        pad_value: the padding, a number or string as the lists hold; 0 is Categorify's padding id.

    Raises:
        ValueError: if `pad` is set and the slice has no fixed length, or a column cannot hold
            `pad_value`.
        TypeError: for a column without lists, or a `pad_value` of another kind.

    Example:
        >>> column = Ragged(np.array([3, 4, 5, 6]), np.array([0, 3, 4]))
        >>> (["tags"] >> ListSlice(-2)).transform(Chunk({"tags": column}))["tags"].tolist()
        [[4, 5], [6]]
        >>> group = ["tags"] >> ListSlice(0, 2, pad=True)
        >>> group.transform(Chunk({"tags": column}))["tags"].tolist()
        [[3, 4], [6, 0]]
    """

    def __init__(
        self, start: int = 0, end: int | None = None, pad: bool = False, pad_value: float | str = 0
    ) -> None:
        for name, position in (("start", start), ("end", end or 0)):
            check_integer(f"ListSlice: {name}", position, at_least=-(2**31), bits=31)
        check_fill("ListSlice: pad_value", pad_value)
        self.start, self.end, self.pad, self.pad_value = start, end, pad, pad_value
        if pad and self.length < 1:
            raise ValueError(
                f"ListSlice: pad=True needs a slice of one length, got [{start}:{end}]. Count "
                "start and end from the same end of the list, start before end."
            )

    @property
    def length(self) -> int:
        """Length of the slice of a list that is long enough; 0 if there is no one length."""
        if self.start < 0:
            return (self.end or 0) - self.start if self.end is None or self.end < 0 else 0
        return 0 if self.end is None or self.end < 0 else self.end - self.start

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the slices."""
        return Chunk({name: self._sliced(name, column) for name, column in chunk.items()})

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns of lists."""
        return [with_lists(column) for column in columns]

    def _sliced(self, name: str, column: Any) -> Ragged:
        column = as_lists(column)
        if not isinstance(column, Ragged):
            raise TypeError(self._wrong(name, f"takes lists, got {column_type(column)[0]}"))
        xp = array_namespace(column.offsets)
        lengths = xp.diff(column.offsets)
        first = _from_front(self.start, lengths, xp)
        last = lengths if self.end is None else _from_front(self.end, lengths, xp)
        kept = xp.maximum(last - first, 0)
        starts = column.offsets[:-1] + first
        if not self.pad:
            return _gathered(column.values, starts, kept)
        within = xp.arange(self.length)
        positions = starts[:, None] + within
        positions[within >= kept[:, None]] = len(column.values)  # that of the padding
        padding = to_namespace(self.padding_for(name, column_type(column)[0]), xp)
        padded = concat_columns([column.values, padding])
        offsets = xp.arange(len(lengths) + 1) * self.length
        return Ragged(take(padded, positions.ravel()), offsets)

    def padding_for(self, name: str, dtype: str) -> Any:
        """Return `pad_value` as a column of one row, for lists of a dtype or of "string"."""
        rule = f"cannot put {self.pad_value!r} into lists of {dtype}"
        if isinstance(self.pad_value, str) != (dtype == "string"):
            raise TypeError(self._wrong(name, rule))
        if dtype == "string":
            return column_from_arrow(pa.array([self.pad_value]))
        one = np.array([self.pad_value]).astype(dtype)
        if one.dtype.kind != "f" and one[0] != self.pad_value:
            raise ValueError(self._wrong(name, rule))
        return one


def _from_front(position: int, lengths: Array, xp: Any) -> Array:
    """Return a position of a slice counted from the front, for lists of these lengths."""
    if position < 0:
        return xp.maximum(lengths + position, 0)
    return xp.minimum(lengths, position)


def _gathered(values: Any, starts: Array, lengths: Array) -> Ragged:
    """Return lists of the given lengths from the given starts, which rise."""
    xp = array_namespace(starts)
    borders = xp.stack([starts, starts + lengths], axis=1).ravel()  # kept and dropped in turn
    positions, offsets = gather_rows(borders, xp.arange(len(starts)) * 2)
    return Ragged(take(values, positions), offsets)
