"""Types of CSV columns: the narrowest that takes every value, whatever block it is in.

true and false are bool. Whole numbers are int64; with decimals among them, float64. ISO 8601 dates
are date32; with times, timestamp[us]. Anything else is text, also numbers that would not keep their
digits: 007, 0x1F, or identifiers beyond 64 bits. A column without any value has the type null.
"""

from __future__ import annotations

import bisect

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

TEXT = pa.string()
_WIDER = (
    (pa.bool_(),),
    (pa.int64(), pa.float64()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("us", "UTC"),),
)  # the narrowest first
_NO_NUMBER = pa.array(pa_csv.ConvertOptions().null_values)  # "NA", "NaN", "null", ...
_FEW = 64  # values that are tried first
_EXACT = 2**53  # float64 holds all integers up to this
_ALIASES = {"int": "int64", "float": "float64", "text": "string", "str": "string",
            "date": "date32", "timestamp": "timestamp[us]"}  # fmt: skip


def type_named(name: str) -> pa.DataType:
    """Return the Arrow type of a name: "int64", "float32", "string", "date32", "timestamp[s]", ...

    Raises:
        ValueError: if there is no such type, or text cannot be converted to it.

    Example:
        >>> type_named("float"), type_named("int8")
        (DataType(double), DataType(int8))
    """
    try:
        kind = pa.type_for_alias(_ALIASES.get(name, name))
        pa.array([], TEXT).cast(kind)
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise ValueError(
            f"{name!r} is no type that text can have. Use bool, int64, float32, string, date32, "
            "timestamp[us] or another numeric type of Arrow."
        ) from error
    return kind


def converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return text as another type, without spaces around values; NA, NaN, null, ... are null.

    Raises:
        pa.ArrowInvalid: if a value does not fit.
    """
    if kind == TEXT:
        return column
    if kind == pa.null():
        return pa.chunked_array([pa.nulls(len(column))])
    return _trimmed(column).cast(kind)


def _trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    values = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(values, _NO_NUMBER), pa.scalar(None, TEXT), values)


class ColumnType:
    """The narrowest type of a column, learned block by block.

    Example:
        >>> column = ColumnType()
        >>> column.add(pa.chunked_array([["1", "2", None]]))
        >>> column.kind
        DataType(int64)
        >>> column.add(pa.chunked_array([["2.5", "NA"]]))
        >>> column.kind
        DataType(double)
    """

    def __init__(self) -> None:
        self.kind = pa.null()
        self._beyond_float = False

    def add(self, column: pa.ChunkedArray) -> int | None:
        """Widen the type to that of more values.

        Returns:
            The row of the value that made the column text, if all values before had a narrower
            type; otherwise None.
        """
        before = self.kind
        if before == TEXT:
            return None
        self.kind = self._widened(before, column)
        if self.kind != TEXT:
            return None
        start = before if before != pa.null() else self._widened(before, column.drop_null()[:1])
        if start == TEXT:
            return None
        return bisect.bisect_left(
            range(1, len(column)), True, key=lambda n: self._widened(start, column[:n]) == TEXT
        )

    def _widened(self, kind: pa.DataType, column: pa.ChunkedArray) -> pa.DataType:
        if _trimmed(column).null_count == len(column):
            return kind
        for types in _WIDER:
            if kind == pa.null() or kind in types:
                for wider in types[types.index(kind) if kind in types else 0 :]:
                    if self._fits(column, wider):
                        return wider
        return TEXT

    def _fits(self, column: pa.ChunkedArray, kind: pa.DataType) -> bool:
        # Arrow words an error for every value: a cast that fails takes a hundred times as long.
        if len(column) > _FEW and not self._fits(column[:_FEW], kind):
            return False
        try:
            values = converted(column, kind)
        except pa.ArrowInvalid:
            return False
        if pa.types.is_integer(kind):  # 007 and 0x1F are not written as integers are
            spelled = pc.equal(values.cast(TEXT), pc.utf8_trim_whitespace(column))
            ends = pc.min_max(values).as_py().values()
            self._beyond_float |= any(end is not None and abs(end) > _EXACT for end in ends)
            return pc.all(spelled, min_count=0).as_py()
        if pa.types.is_floating(kind):
            inexact = pc.match_substring_regex(column, r"^\s*[+-]?(0[0-9]|[0-9]{16,}\s*$)")
            return not self._beyond_float and not pc.any(inexact, min_count=0).as_py()
        if pa.types.is_boolean(kind):  # 0 and 1 are numbers
            return not pc.any(pc.match_substring_regex(column, "[01]"), min_count=0).as_py()
        return True
