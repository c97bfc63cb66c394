"""Ops of values: filled, limited, scaled, renamed."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tutorlib.columns import (
    Chunk,
    FlatColumn,
    Strings,
    column_from_arrow,
    column_to_arrow,
    flat_values,
    missing_in,
    valid_of,
    values_of,
    with_nulls,
)
from tutorlib.hashing import blocks_of
from tutorlib.ops.base import ColumnOp, LearningOp, Op, State, check_real
from tutorlib.ops.keys import add_counts, count_keys
from tutorlib.schema import Column, listed, remedy_for

NO_VALUE = "found no value. Put FillMissing before it."


class _Filler(ColumnOp):
    """Columns without nulls and NaN."""

    @abstractmethod
    def fill_of(self, name: str, dtype: np.dtype | None) -> float | str:
        """Return the value that fills a column of a dtype (strings: None)."""

    def transform_column(self, name: str, column: FlatColumn) -> np.ndarray | Strings:
        """Return the column without nulls and NaN."""
        values = values_of(column)
        text = isinstance(values, Strings)
        fill = self.value_for(name, None if text else values.dtype)
        missing = missing_in(column)
        if not bool(missing.any()):
            return values
        if text:
            return column_from_arrow(column_to_arrow(column).fill_null(fill))
        return np.where(missing, fill, values)

    def value_for(self, name: str, dtype: np.dtype | None) -> np.generic | float | str:
        """Return the value that fills a column, as a scalar of its dtype (strings: None).

        Raises:
            TypeError: for a number in a column of strings or times, and for a string in others.
            ValueError: if the dtype cannot hold the value.
        """
        fill = self.fill_of(name, dtype)
        rule = f"cannot put {fill!r} into a column of {'string' if dtype is None else dtype}"
        if dtype is not None and dtype.kind in "mM":
            remedy = f"{remedy_for(str(dtype))}. Categorify gives nulls an id."
            raise TypeError(self._wrong(name, f"{rule}: {remedy}"))
        if (dtype is None) != isinstance(fill, str):
            remedy = "Give a number for numbers and a string for strings"
            raise TypeError(self._wrong(name, f"{rule}. {remedy}."))
        if dtype is None or isinstance(fill, str):
            return fill
        low, high = limits_of(dtype)
        whole = dtype.kind == "f" or fill == int(fill)
        if not (whole and low <= fill <= high):
            kind = "number" if dtype.kind == "f" else "whole number"
            remedy = f"Give a {kind} from {low} to {high}, or cast the column."
            raise ValueError(self._wrong(name, f"{rule}. {remedy}"))
        return dtype.type(fill)


def limits_of(dtype: np.dtype) -> tuple[float, float]:
    """Return the smallest and the largest finite number of a dtype."""
    if dtype.kind == "b":
        return 0, 1
    if dtype.kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


class FillMissing(_Filler):
    """Replaces nulls and NaN by one value.

    Returns (from transform): the columns in their dtypes; lists keep their lengths.

    Args:
        fill_value: a number for numbers, a string for strings.

    Raises:
        TypeError: if `fill_value` is a number and the column holds strings, or the other way round;
            for a column of times.
        ValueError: if the column's dtype cannot hold `fill_value`, also if no value is missing.

    Example:
        >>> group = ["x"] >> FillMissing(-1.0)
        >>> group.transform(Chunk({"x": np.array([np.nan, 2.0])}))["x"].tolist()
        [-1.0, 2.0]
    """

    def __init__(self, fill_value: float | str = 0) -> None:
        if not isinstance(fill_value, str):
            check_real("FillMissing: fill_value", fill_value)
        self.fill_value = fill_value

    def fill_of(self, name: str, dtype: np.dtype | None) -> float | str:
        """Return `fill_value`."""
        return self.fill_value


class FillMedian(_Filler, LearningOp):
    """Replaces nulls and NaN by the median of the column.

    The median of an even number of values is the mean of the two in the middle, which a column of
    integers or booleans rounds down. In a column of lists the values of all lists count. The median
    is exact in float64, for which `fit` counts the distinct values, 16 bytes each.

    Returns (from transform): as FillMissing.

    Raises:
        TypeError: for strings.
        ValueError: if a value is infinite or 2**400 or more; in `learn`, for a column of nulls.

    Example:
        >>> group = ["x"] >> FillMedian()
        >>> chunk = Chunk({"x": np.array([1.0, np.nan, 9.0, 2.0])})
        >>> op = group.ops[0]
        >>> op.state = op.learned_from(group.partial(chunk, 0))
        >>> group.transform(chunk)["x"].tolist()
        [1.0, 2.0, 9.0, 2.0]
    """

    def fill_of(self, name: str, dtype: np.dtype | None) -> float:
        """Return the column's median, rounded down for integers and booleans."""
        median: float = self._state[name]["median"].item()
        return math.floor(median) if dtype is not None and dtype.kind in "iub" else median

    def partial(self, chunk: Chunk) -> State:
        """Return {column: its values, as the bits of float64, and their counts}."""
        state = {}
        for name, column in chunk.items():
            values = self._floats(name, flat_values(column))
            values = values[~np.isnan(values)] + 0.0  # -0.0 becomes 0.0
            self._check_size(name, values)
            counted = count_keys(values.view(np.int64))
            state[name] = Chunk({"bits": counted[0].to_numpy(), "count": counted[1]})
        return state

    def merge_states(self, states: Sequence[Chunk]) -> Chunk:
        """Return the counts of all states."""
        total = add_counts([(pa.array(state["bits"]), state["count"]) for state in states])
        return Chunk({"bits": total[0].to_numpy(), "count": total[1]})

    def learn(self, name: str, merged: Chunk) -> Chunk:
        """Return the median alone."""
        values = merged["bits"].view(np.float64)
        order = np.argsort(values)
        ends = np.cumsum(merged["count"][order])
        if len(ends) == 0:
            raise ValueError(self._wrong(name, NO_VALUE))
        middle = [(ends[-1] - 1) // 2, ends[-1] // 2]
        two = values[order][np.searchsorted(ends, middle, side="right")]
        return Chunk({"median": np.array([float(two.sum()) / 2])})


class Normalize(ColumnOp, LearningOp):
    """Shifts and scales each column to mean 0 and standard deviation 1.

    Mean and population standard deviation are those of all values that are not missing. Squares are
    taken of the distances from the mean of a row range, so that a column of 1e9 plus a little keeps
    its digits.

    Returns (from transform): float32 columns; a null becomes NaN, lists keep their lengths. A
    column of equal values becomes zeros.

    Raises:
        ValueError: if a value is infinite or 2**400 or more; in `learn`, for a column of nulls.
        TypeError: for strings.

    Example:
        >>> op = Normalize()
        >>> chunk = Chunk({"x": np.array([1.0, 3.0, np.nan])})
        >>> op.state = op.learned_from(op.partial(chunk))
        >>> op.state["x"]["mean"].tolist(), op.transform(chunk)["x"].tolist()
        ([2.0], [-1.0, 1.0, nan])

    Source: T. Chan, G. Golub, R. LeVeque, "Algorithms for computing the sample variance", The
    American Statistician 37 (1983), for merging.
    """

    dtype = "float32"

    def partial(self, chunk: Chunk) -> State:
        """Return {column: count, mean and squared distances from it}."""
        state = {}
        for name, column in chunk.items():
            values = self._floats(name, flat_values(column))
            missing = np.isnan(values)
            values = values[~missing] if bool(missing.any()) else values
            self._check_size(name, values)
            mean = 0.0
            if len(values):
                first = float(values[0])  # equal values have exactly this mean and no distance
                mean = first + float((values - first).mean())
            squares = float(np.square(values - mean).sum())
            state[name] = _table_of({"count": len(values), "mean": mean, "squares": squares})
        return state

    def merge_states(self, states: Sequence[Chunk]) -> Chunk:
        """Return count, mean and squared distances of the values of all states."""
        total = _row_of(states[0])
        for state in states[1:]:
            more = _row_of(state)
            count = total["count"] + more["count"] or 1  # without a value, all sums are 0
            apart = more["mean"] - total["mean"]
            both = total["count"] * more["count"] / count
            total["squares"] += more["squares"] + apart * apart * both
            total["mean"] += apart * (more["count"] / count)
            total["count"] += more["count"]
        return _table_of(total)

    def learn(self, name: str, merged: Chunk) -> Chunk:
        """Return mean and standard deviation."""
        total = _row_of(merged)
        if not total["count"]:
            raise ValueError(self._wrong(name, NO_VALUE))
        deviation = math.sqrt(total["squares"] / total["count"])
        return _table_of({"mean": total["mean"], "std": deviation})

    def transform_column(self, name: str, column: FlatColumn) -> np.ndarray:
        """Return (x - mean) / standard deviation, computed in float64."""
        values = self._floats(name, column)
        result = np.empty(len(values), dtype=self.dtype)
        shift, scale = self.shift_and_scale(name)
        for block in blocks_of(len(values)):
            part = values[block] - shift
            part /= scale
            result[block] = part
        return result

    def shift_and_scale(self, name: str) -> tuple[float, float]:
        """Return the learned (mean, standard deviation) of a column; infinite for equal values."""
        learned = _row_of(self._state[name])
        return learned["mean"], learned["std"] or math.inf


def _table_of(row: Mapping[str, float]) -> Chunk:
    """Return a table of one row."""
    return Chunk.from_arrow(pa.Table.from_pylist([row]))


def _row_of(table: Chunk) -> dict[str, float]:
    """Return the numbers in a table of one row, as Python's."""
    row: dict[str, float] = table.to_arrow().to_pylist()[0]
    return row


class Clip(ColumnOp):
    """Limits numbers to [min_value, max_value].

    Returns (from transform): the columns in their dtypes; NaN, nulls and lists stay. A value that
    equals a limit stays as it is: -0.0 is still -0.0 after `min_value=0`, on every device and in
    the served model.

    Args:
        min_value: smallest value; None for no limit.
        max_value: largest value; None for no limit.

    Raises:
        ValueError: if there is no limit, one is NaN, or `min_value` is above `max_value`; for a
            column of integers, if a limit is not an integer; if no value of the column's dtype is
            within the limits.
        TypeError: for strings.

    Example:
        >>> group = ["x"] >> Clip(min_value=0, max_value=5)
        >>> group.transform(Chunk({"x": np.array([-3, 4, 9])}))["x"].tolist()
        [0, 4, 5]
    """

    def __init__(self, min_value: float | None = None, max_value: float | None = None) -> None:
        if min_value is None and max_value is None:
            raise ValueError("Clip: give min_value, max_value or both")
        for name, limit in (("min_value", min_value), ("max_value", max_value)):
            if limit not in (None, math.inf, -math.inf):
                check_real(f"Clip: {name}", limit)
        if min_value is not None and max_value is not None and min_value > max_value:
            raise ValueError(f"Clip: min_value {min_value} is above max_value {max_value}")
        self.min_value, self.max_value = min_value, max_value

    def transform_column(self, name: str, column: FlatColumn) -> FlatColumn:
        """Return the column within the limits."""
        self._check_numbers(name, column)
        values = values_of(column)
        low, high = self.limits_for(name, values.dtype)
        if low is not None:
            values = np.where(values < low, low, values)
        if high is not None:
            values = np.where(values > high, high, values)
        return with_nulls(values, valid_of(column))

    def limits_for(self, name: str, dtype: np.dtype) -> list[np.generic | None]:
        """Return [lower, upper] limit of a column as scalars of its dtype; None for no limit."""
        limits = [self.min_value, self.max_value]
        numbers = [limit for limit in limits if limit is not None]
        rule = f"cannot limit a column of {dtype} to {numbers}"
        whole = all(number % 1 == 0 for number in numbers)  # NaN for infinity
        if dtype.kind not in "fiu" or (dtype.kind != "f" and not whole):
            remedy = "Give whole numbers, or cast the column to float64 in the data"
            raise ValueError(self._wrong(name, f"{rule}. {remedy}."))
        low, high = limits_of(dtype)
        least = -math.inf if self.min_value is None else self.min_value
        most = math.inf if self.max_value is None else self.max_value
        if high < least < math.inf or -math.inf < most < low:
            remedy = f"Its values are within [{low}, {high}]: choose other limits"
            raise ValueError(self._wrong(name, f"{rule}. {remedy}, or cast the column."))
        if dtype.kind == "f":
            with np.errstate(over="ignore"):  # beyond the last number there is nothing to limit
                return [None if limit is None else dtype.type(limit) for limit in limits]
        return [None if n is None else dtype.type(min(max(int(n), low), high)) for n in limits]


class LogOp(ColumnOp):
    """Replaces x by log(1 + x), which makes counts of different magnitudes comparable.

    It computes in float64 and rounds once: the float32 logarithms of NumPy and TensorFlow differ.

    Returns (from transform): float32 columns; a null becomes NaN, lists keep their lengths.

    Raises:
        ValueError: for a value of -1 or below, with its position.
        TypeError: for strings.

    Example:
        >>> group = ["x"] >> LogOp()
        >>> group.transform(Chunk({"x": np.array([0, 1])}))["x"].tolist()
        [0.0, 0.6931471824645996]
    """

    dtype = "float32"

    def transform_column(self, name: str, column: FlatColumn) -> np.ndarray:
        """Return log(1 + x)."""
        values = self._floats(name, column)
        bad = values <= -1
        if bool(bad.any()):
            row = int(bad.argmax())
            got = f"got {float(values[row])} at value {row} of the chunk"
            rule = f"takes values above -1, {got}. Put Clip(min_value=0) before it."
            raise ValueError(self._wrong(name, rule))
        return np.log1p(values).astype(self.dtype)


class Rename(Op):
    """Gives columns other names.

    Returns (from transform): the columns as they are, under their new names.

    Args:
        names: {old name: new name}; None for none.
        postfix: appended to the names of all other columns.

    Raises:
        ValueError: if an old name does not exist, or two new names are equal.

    Example:
        >>> (["a", "b"] >> Rename({"a": "x"}, postfix="_raw")).output_names
        ['x', 'b_raw']
    """

    def __init__(self, names: Mapping[str, str] | None = None, postfix: str = "") -> None:
        self.names = dict(names or {})
        self.postfix = postfix

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns under their new names."""
        return Chunk(dict(zip(self.output_names(chunk.names), chunk.values(), strict=True)))

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the new names."""
        missing = [name for name in self.names if name not in names]
        if missing:
            raise ValueError(f"Rename: no columns {listed(missing)}; there are {listed(names)}")
        new = [self.names.get(name, name + self.postfix) for name in names]
        if len(set(new)) < len(new):
            raise ValueError(f"Rename: the new names must differ from each other, got {new}")
        return new

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns under their new names."""
        names = self.output_names([column.name for column in columns])
        return [dataclasses.replace(c, name=n) for c, n in zip(columns, names, strict=True)]
