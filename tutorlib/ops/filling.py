"""FillMissing, FillMedian: a value in place of nulls and NaN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tutorlib.checks import check_integer
from tutorlib.columns import (
    Array,
    Chunk,
    Strings,
    array_namespace,
    column_from_arrow,
    column_to_arrow,
    flat_values,
    to_namespace,
)
from tutorlib.ops.base import ColumnOp, StatisticsOp
from tutorlib.ops.shared.checks import check_fill
from tutorlib.ops.shared.columns import column_type, missing_in, parts_of
from tutorlib.ops.shared.counts import add_integer_counts, coarsened, count_integers
from tutorlib.schema import Column


class _Filler(ColumnOp):
    """Filled columns, and indicators of what was filled."""

    add_binary_cols: bool

    @abstractmethod
    def fill_of(self, name: str) -> Any:
        """Return the value that fills a column."""

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column without nulls and NaN."""
        values, valid = parts_of(column)
        fill = self.fill_of(name)
        if isinstance(values, Strings) != isinstance(fill, str):
            rule = f"cannot put {fill!r} into a column of {column_type(column)[0]}"
            raise TypeError(self._wrong(name, rule))
        if isinstance(values, Strings):
            if valid is None:
                return values
            filled = pc.fill_null(column_to_arrow(column), fill)
            return to_namespace(column_from_arrow(filled), array_namespace(values.offsets))
        if valid is None and values.dtype.kind != "f":
            return values
        xp = array_namespace(values)
        missing = xp.isnan(values) if valid is None else ~valid
        return xp.where(missing, self.number_for(name, values.dtype), values)

    def number_for(self, name: str, dtype: np.dtype) -> Any:
        """Return the value that fills a column of numbers, as a scalar of its dtype."""
        fill = self.fill_of(name)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if fill != int(fill) or not limits.min <= fill <= limits.max:
                raise ValueError(self._wrong(name, f"cannot put {fill} into a column of {dtype}"))
        return dtype.type(fill)

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns filled, then their indicators if `add_binary_cols` is set."""
        filled = super().transform(chunk)
        if not self.add_binary_cols:
            return filled
        return filled.with_columns({f"{n}_filled": self._missing(n, c) for n, c in chunk.items()})

    def _missing(self, name: str, column: Any) -> Array:
        self._check_no_lists(name, column)
        return missing_in(column).astype(np.float32)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names, then those of the indicators."""
        return [*names, *(f"{n}_filled" for n in names)] if self.add_binary_cols else list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns, then the indicators as continuous ones."""
        if not self.add_binary_cols:
            return list(columns)
        added = [Column(f"{c.name}_filled", "continuous", "float32") for c in columns]
        return [*columns, *added]


class FillMissing(_Filler):
    """Replaces nulls and NaN by one value.

    Returns (from transform): the columns in their dtypes; lists keep their lengths. With
    `add_binary_cols`, then a column `{name}_filled` for each, float32: 1.0 where a value was
    missing. The ops that follow get these columns too.

    Args:
        fill_value: a number for numbers, a string for strings.
        add_binary_cols: whether to add the indicator columns; not for columns of lists.

    Raises:
        TypeError: if `fill_value` is a number and the column holds strings, or the other way round.
        ValueError: if the column's dtype cannot hold `fill_value`.

    Example:
        >>> group = ["x"] >> FillMissing(-1.0, add_binary_cols=True)
        >>> chunk = group.transform(Chunk({"x": np.array([np.nan, 2.0])}))
        >>> chunk["x"].tolist(), chunk["x_filled"].tolist()
        ([-1.0, 2.0], [1.0, 0.0])
    """

    def __init__(self, fill_value: float | str = 0, add_binary_cols: bool = False) -> None:
        check_fill("FillMissing: fill_value", fill_value)
        self.fill_value = fill_value
        self.add_binary_cols = add_binary_cols

    def fill_of(self, name: str) -> Any:
        """Return `fill_value`."""
        return self.fill_value


class FillMedian(_Filler, StatisticsOp):
    """Replaces nulls and NaN by the median of the column.

    The median of an even number of values is the mean of the two in the middle; of integers, the
    lower one. In a column of lists the values of all lists count.

    The median is exact for up to `max_values` distinct values. If there are more, they are rounded
    down to as many leading bits as leave `max_values` distinct ones. A million values take 16 MB
    and keep positive numbers over 30 powers of two within 0.004 %.

    Returns (from transform): as FillMissing.

    Args:
        add_binary_cols: whether to add the indicator columns; not for columns of lists.
        max_values: distinct values to count in a column, at least 2.

    Raises:
        TypeError: for strings.
        ValueError: if a value is infinite or 2**400 or more; in `finalize`, for a column of nulls.

    Example:
        >>> group = ["x"] >> FillMedian()
        >>> chunk = Chunk({"x": np.array([1.0, np.nan, 9.0, 2.0])})
        >>> group.ops[0].finalize(group.partial(chunk, 0))
        >>> group.transform(chunk)["x"].tolist()
        [1.0, 2.0, 9.0, 2.0]
    """

    statistics = ("medians",)

    def __init__(self, add_binary_cols: bool = False, max_values: int = 1_000_000) -> None:
        self.add_binary_cols = add_binary_cols
        self.max_values = check_integer("FillMedian: max_values", max_values, at_least=2)
        super().__init__()

    def fill_of(self, name: str) -> Any:
        """Return the column's median."""
        return self._learned["medians"][name]

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column: (whether integers, bits rounded off, values, counts)}."""
        state = {}
        for name, column in chunk.items():
            values, valid = self._numbers(name, flat_values(column))
            values = values if valid is None else values[valid]
            whole = values.dtype.kind != "f"
            if whole:
                self._keys_to_learn(name, values)
                keys = values.astype(np.int64, copy=False)
            else:
                xp = array_namespace(values)
                values = values[~xp.isnan(values)].astype(np.float64) + 0.0  # -0.0 becomes 0.0
                self._check_size(name, values)
                keys = _in_order(values.view(np.int64))
            state[name] = self._narrowed(whole, 0, *count_integers(keys))
        return state

    def _narrowed(
        self, whole: bool, bits: int, values: np.ndarray, counts: np.ndarray
    ) -> tuple[bool, int, np.ndarray, np.ndarray]:
        """Return a state of at most `max_values` values, rounded no further than needed."""
        while len(values) > self.max_values:
            bits += 1
            values, counts = coarsened(values, counts, bits)
        return whole, bits, values, counts

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the counts of all states, rounded alike."""
        whole = states[0][0]
        if any(other != whole for other, _, _, _ in states):
            raise TypeError("cannot take one median of integers and of floating-point numbers")
        bits = max(rounded for _, rounded, _, _ in states)
        values, counts = zip(*(coarsened(v, n, bits) for _, _, v, n in states), strict=True)
        added = add_integer_counts(np.concatenate(values), np.concatenate(counts))
        return self._narrowed(whole, bits, *added)

    def statistics_of(self, name: str, state: Any) -> Sequence[float] | None:
        """Return the median alone."""
        whole, _, values, counts = state
        if len(values) == 0:
            return None
        ends = np.cumsum(counts)
        middle = (int(ends[-1]) - 1) // 2, int(ends[-1]) // 2
        low, high = values[np.searchsorted(ends, middle, side="right")]
        if whole:
            return [int(low)]
        return [float(_in_order(np.array([low, high])).view(np.float64).sum() / 2)]


def _in_order(bits: Array) -> Array:
    """Return the bits of float64 numbers as int64 that rise with them; its own inverse."""
    return bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
