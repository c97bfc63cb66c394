"""FillMissing, FillMedian: values where there are none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tutorlib.chunk import (
    Array,
    Chunk,
    Ragged,
    Strings,
    array_namespace,
    column_from_arrow,
    column_to_arrow,
    to_namespace,
)
from tutorlib.ops.base import ColumnOp, LearningOp
from tutorlib.ops.columns import column_type, flat, missing_in, parts_of
from tutorlib.ops.counts import added_up, coarsened, count_integers
from tutorlib.schema import Column


class _Filler(ColumnOp):
    """What `FillMissing` and `FillMedian` share: values where there are none, and indicators."""

    add_binary_cols: bool

    @abstractmethod
    def fill_of(self, name: str) -> Any:
        """Return what goes into a column."""

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column without nulls."""
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
        xp = array_namespace(values)
        missing = xp.isnan(values) if valid is None and values.dtype.kind == "f" else None
        missing = ~valid if valid is not None else missing
        if missing is None:
            return values
        return xp.where(missing, self.number_for(name, values.dtype), values)

    def number_for(self, name: str, dtype: np.dtype) -> Any:
        """Return what goes into a column of numbers, as a scalar of its dtype."""
        fill = self.fill_of(name)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if fill != int(fill) or not limits.min <= fill <= limits.max:
                raise ValueError(self._wrong(name, f"cannot put {fill} into a column of {dtype}"))
        return dtype.type(fill)

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns filled, and their indicators if wished."""
        filled = super().transform(chunk)
        if not self.add_binary_cols:
            return filled
        return filled.with_columns({f"{n}_filled": self._missing(n, c) for n, c in chunk.items()})

    def _missing(self, name: str, column: Any) -> Array:
        if isinstance(column, Ragged):
            raise TypeError(self._wrong(name, "has no add_binary_cols for lists"))
        return missing_in(column).astype(np.float32)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names, and those of the indicators."""
        return [*names, *(f"{n}_filled" for n in names)] if self.add_binary_cols else list(names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns, and the indicators as continuous ones."""
        if not self.add_binary_cols:
            return list(columns)
        added = [Column(f"{c.name}_filled", "continuous", "float32") for c in columns]
        return [*columns, *added]


class FillMissing(_Filler):
    """Puts a value where there is none: at nulls, and at NaN.

    The dtype stays: it can stand before Categorify as well as before LogOp.

    Args:
        fill_value: a number for numbers, a text for texts.
        add_binary_cols: whether to add a float32 column `{name}_filled` after the others: 1.0 where
            a value was missing. It goes through the ops that follow, like any column.

    Raises:
        TypeError, ValueError: if the column cannot hold `fill_value`.

    Example:
        >>> group = ["x"] >> FillMissing(-1.0, add_binary_cols=True)
        >>> chunk = group.transform(Chunk({"x": np.array([np.nan, 2.0])}))
        >>> chunk["x"].tolist(), chunk["x_filled"].tolist()
        ([-1.0, 2.0], [1.0, 0.0])
    """

    def __init__(self, fill_value: float | str = 0, add_binary_cols: bool = False) -> None:
        self.fill_value = fill_value
        self.add_binary_cols = add_binary_cols

    def fill_of(self, name: str) -> Any:
        """Return the value given."""
        return self.fill_value


class FillMedian(_Filler, LearningOp):
    """Puts the median of a column where it has no value: at nulls, and at NaN.

    The dtype stays. Of an even number of values it takes the mean of the two in the middle, in a
    column of integers the lower of the two. In a list column the values of all lists count.

    Different values are counted, so the median is exact for up to `max_values` of them in a column;
    beyond, values are rounded down to as many leading bits as leave no more than `max_values`
    different ones. So many are left whatever the order of merging: the median never depends on it.
    A million values cost 16 MB, and leave positive numbers over 30 powers of two within 0.004 %.

    Args:
        add_binary_cols: whether to add a float32 column `{name}_filled` after the others: 1.0 where
            a value was missing. It goes through the ops that follow, like any column.
        max_values: different values of a column that are told apart, 2 or more.

    Raises:
        TypeError: for texts.
        ValueError: for infinite values; in `finalize`, if a column has no values at all.

    Example:
        >>> group = ["x"] >> FillMedian()
        >>> chunk = Chunk({"x": np.array([1.0, np.nan, 9.0, 2.0])})
        >>> group.ops[0].finalize(group.partial(chunk, 0))
        >>> group.transform(chunk)["x"].tolist()
        [1.0, 2.0, 9.0, 2.0]
    """

    def __init__(self, add_binary_cols: bool = False, max_values: int = 1_000_000) -> None:
        if max_values < 2:
            raise ValueError(f"FillMedian: max_values must be 2 or more, got {max_values}")
        self.add_binary_cols = add_binary_cols
        self.max_values = max_values
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self._medians: dict[str, float] = {}

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose medians are not known."""
        return [name for name in names if name not in self._medians]

    def fill_of(self, name: str) -> Any:
        """Return the column's median."""
        return self._medians[name]

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column: (whether integers, bits rounded away, values, counts)}."""
        state = {}
        for name, column in chunk.items():
            values, valid = self._numbers(name, flat(column))
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
        """Return a state of no more than `max_values` values, rounded no further than needed."""
        while len(values) > self.max_values:
            bits += 1
            values, counts = coarsened(values, counts, bits)
        return whole, bits, values, counts

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the counts of all, rounded alike."""
        (whole, *others), rounded = ([state[place] for state in states] for place in (0, 1))
        if any(other != whole for other in others):
            raise TypeError("cannot take one median of integers and of floating-point numbers")
        bits = max(rounded)
        values, counts = zip(*(coarsened(v, n, bits) for _, _, v, n in states), strict=True)
        return self._narrowed(
            whole, bits, *added_up(np.concatenate(values), np.concatenate(counts))
        )

    def finalize(self, state: dict[str, Any]) -> None:
        """Keep the median of each column."""
        medians = dict(self._medians)
        for name, (whole, _, values, counts) in state.items():
            if len(values) == 0:
                raise ValueError(self._wrong(name, "found no value. Use FillMissing."))
            ends = np.cumsum(counts)
            middle = (int(ends[-1]) - 1) // 2, int(ends[-1]) // 2
            low, high = values[np.searchsorted(ends, middle, side="right")]
            if whole:
                medians[name] = int(low)
            else:
                pair = _in_order(np.array([low, high])).view(np.float64)
                medians[name] = float(pair.sum() / 2)
        self._medians = medians

    def learned(self) -> dict[str, Any]:
        """Return the median of each column."""
        return {"medians": dict(self._medians)}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the medians back."""
        self._medians = dict(learned["medians"])


def _in_order(bits: Array) -> Array:
    """Return the bits of float64 numbers as int64 that rise with them; twice gives them back."""
    return bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
