"""Clip, LogOp, Bucketize, LambdaOp: each value by itself; nothing is learned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.columns import (
    Array,
    Strings,
    array_namespace,
    column_from_arrow,
    column_to_arrow,
    take,
    to_namespace,
)
from tutorlib.ops.base import ColumnOp, Op
from tutorlib.ops.shared.checks import check_real
from tutorlib.ops.shared.columns import (
    NULL_ID,
    as_ids,
    float_dtype,
    missing_in,
    of_dtype,
    parts_of,
    per_column,
    take_or_null,
    with_nulls,
)
from tutorlib.ops.shared.functions import function_named, name_to_save
from tutorlib.schema import Column


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
            column of integers, if a limit is not an integer.
        TypeError: for strings.

    Example:
        >>> from tutorlib.columns import Chunk
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

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the column within the limits."""
        values, valid = self._numbers(name, column)
        low, high = self.limits_for(name, values.dtype)
        if values.dtype.kind != "f":
            return with_nulls(values.clip(low, high), valid)
        xp = array_namespace(values)  # whose clip may change the sign of a zero
        if low is not None:
            values = xp.where(values < low, low, values)
        if high is not None:
            values = xp.where(values > high, high, values)
        return with_nulls(values, valid)

    def limits_for(self, name: str, dtype: np.dtype) -> tuple[Any, Any]:
        """Return (lower, upper) limit of a column as scalars of its dtype; None for no limit."""
        low, high = (self._limit(name, limit, dtype) for limit in (self.min_value, self.max_value))
        return low, high

    def _limit(self, name: str, limit: float | None, dtype: np.dtype) -> Any:
        if limit is None:
            return None
        if dtype.kind == "f":
            return dtype.type(limit)
        if dtype.kind not in "iu" or not math.isfinite(limit) or limit != math.floor(limit):
            raise ValueError(self._wrong(name, f"cannot limit a column of {dtype} to {limit}"))
        bounds = np.iinfo(dtype)
        return dtype.type(min(max(int(limit), bounds.min), bounds.max))


class LogOp(ColumnOp):
    """Replaces x by log(1 + x), which makes counts of different magnitudes comparable.

    It computes in float64 and rounds once, because the float32 logarithms of NumPy and CuPy differ.

    Returns (from transform): columns of `dtype`; a null becomes NaN, lists keep their lengths.

    Args:
        dtype: of the result, "float16", "float32" or "float64".

    Raises:
        ValueError: for a value of -1 or below, with its position.
        TypeError: for strings.

    Example:
        >>> from tutorlib.columns import Chunk
        >>> group = ["x"] >> LogOp()
        >>> group.transform(Chunk({"x": np.array([0, 1])}))["x"].tolist()
        [0.0, 0.6931471824645996]
    """

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = float_dtype(dtype, "LogOp")

    def transform_column(self, name: str, column: Any) -> Array:
        """Return log(1 + x)."""
        values = self._floats(name, column)
        xp = array_namespace(values)
        bad = values <= -1
        if bool(bad.any()):
            row = int(bad.argmax())
            got = f"got {float(values[row])} at value {row} of the chunk"
            rule = f"takes values above -1, {got}. Put Clip(min_value=0) before it."
            raise ValueError(self._wrong(name, rule))
        return xp.log1p(values).astype(self.dtype)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns."""
        return of_dtype(columns, self.dtype)


class Bucketize(ColumnOp):
    """Maps numbers to ids of the intervals between boundaries.

    Returns (from transform): int32 ids. As in Categorify 0 is padding and 1 is null or NaN; the
    intervals have the ids from 2. k boundaries make k + 1 intervals and a cardinality of k + 3.

    Args:
        boundaries: rising numbers, or {name: numbers}. A value that equals a boundary belongs to
            the interval above it. Numbers are compared exactly, integers beyond 2**53 too.

    Raises:
        ValueError: if boundaries do not rise, one is NaN, or a column has none.
        TypeError: for strings.

    Example:
        >>> from tutorlib.columns import Chunk
        >>> group = ["age"] >> Bucketize([18, 65])
        >>> group.transform(Chunk({"age": np.array([3.0, 18, 99, np.nan])}))["age"].tolist()
        [2, 3, 4, 1]
    """

    def __init__(self, boundaries: Sequence[float] | Mapping[str, Sequence[float]]) -> None:
        for numbers in boundaries.values() if isinstance(boundaries, Mapping) else [boundaries]:
            for number in numbers:
                if not isinstance(number, float) or not math.isinf(number):
                    check_real("Bucketize: each boundary", number)
            exact = np.asarray(numbers, object).tolist()
            if not exact or any(low >= high for low, high in itertools.pairwise(exact)):
                raise ValueError(f"Bucketize: boundaries must rise, got {list(numbers)}")
        self.boundaries = boundaries

    def transform_column(self, name: str, column: Any) -> Array:
        """Return the id of each value's interval."""
        values, _ = self._numbers(name, column)
        if values.dtype.kind not in "iu":
            values = self._floats(name, column)
        xp = array_namespace(values)
        edges = xp.asarray(self.edges_for(name, values.dtype))
        ids = xp.searchsorted(edges, values, side="right").astype(np.int32)
        ids += 2
        ids[missing_in(column)] = NULL_ID
        return ids

    def edges_for(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return numbers of a dtype, int or float64: as many are <= a value as boundaries are."""
        boundaries = np.asarray(per_column(self.boundaries, name), object).tolist()
        if dtype.kind == "f":
            return np.array([_at_least(boundary) for boundary in boundaries])
        limits = np.iinfo(dtype)
        reached = [max(b, limits.min) for b in boundaries if b <= limits.max]
        return np.array([math.ceil(b) for b in reached if b <= limits.max], dtype)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the same names; ValueError for columns without boundaries."""
        return self._require_settings("boundaries", names)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return categorical columns of k + 3 ids."""
        return as_ids(columns, lambda name: len(per_column(self.boundaries, name)) + 3)


def _at_least(number: float) -> float:
    """Return the smallest float64 that is not below a number, which may be a large integer."""
    nearest = float(number)
    return math.nextafter(nearest, math.inf) if nearest < number else nearest


class LambdaOp(ColumnOp):
    """Applies a function to each column's values.

    The function gets the values that are not null, at least one: a NumPy array, on a GPU a CuPy
    array; strings as a `pyarrow` array in host memory, for `pyarrow.compute`. A workflow is saved
    with the function's name, never its code: `Workflow.load(folder, functions={name: f})` takes the
    function again.

    Returns (from transform): columns of `dtype`. A null stays null, NaN in floating point; lists
    keep their lengths.

    Args:
        function: array [n] -> array [n].
        dtype: NumPy name of the result's dtype, or "string".

    Raises:
        TypeError: if `function` cannot be called or does not return an array.
        ValueError: if it returns another number of values.

    Example:
        >>> from tutorlib.columns import Chunk
        >>> group = ["rating"] >> LambdaOp(lambda rating: rating > 3)
        >>> group.transform(Chunk({"rating": np.array([3.0, 4.5])}))["rating"].tolist()
        [0.0, 1.0]
    """

    def __init__(self, function: Callable[[Any], Any], dtype: str = "float32") -> None:
        if not callable(function):
            raise TypeError(f"LambdaOp: function must be callable, got {function!r}")
        self.function = function
        self.dtype = dtype if dtype == "string" else np.dtype(dtype).name
        if self.dtype != "string" and np.dtype(self.dtype).kind not in "biuf":
            raise ValueError(f"LambdaOp: dtype must be of numbers or 'string', got {self.dtype!r}")

    def transform_column(self, name: str, column: Any) -> Any:
        """Return the function's result for the values that are not null."""
        values, valid = parts_of(column)
        if valid is None:
            if len(values):
                return self._call(name, values)
            anchor = values.offsets if isinstance(values, Strings) else values
            return self._zeros(0, array_namespace(anchor))
        xp = array_namespace(valid)
        if not bool(valid.any()):
            return with_nulls(self._zeros(len(valid), xp), valid)
        result = self._call(name, take(values, xp.flatnonzero(valid)))
        positions = xp.cumsum(valid)
        positions[~valid] = 0
        return take_or_null(result, positions)

    def _zeros(self, length: int, xp: Any) -> Any:
        if self.dtype == "string":
            return Strings(xp.zeros(0, dtype=np.uint8), xp.zeros(length + 1, dtype=np.int64))
        return xp.zeros(length, dtype=self.dtype)

    def _call(self, name: str, values: Any) -> Any:
        argument = column_to_arrow(values) if isinstance(values, Strings) else values
        kind = type(argument).__name__
        try:
            result = self.function(argument)
        except Exception as error:
            error.add_note(self._wrong(name, f"called the function with a {kind}"))
            raise
        if not hasattr(result, "__len__"):
            rule = f"gave the function a {kind} and expects an array, got {result!r}"
            if isinstance(values, Strings):
                rule += ". Strings come as an Arrow array, to which pyarrow.compute applies: "
                rule += "pc.equal(x, 'a') for x == 'a'."
            raise TypeError(self._wrong(name, rule))
        if len(result) != len(values):
            rule = f"gave {len(values)} values to the function and got {len(result)} back"
            raise ValueError(self._wrong(name, rule))
        if self.dtype == "string" and not isinstance(result, pa.Array):
            result = pa.array(result, pa.large_string())
        if isinstance(result, pa.Array | pa.ChunkedArray):
            result = column_from_arrow(result)
        if self.dtype != "string":
            if not hasattr(result, "astype"):
                rule = f"expects an array from the function, got {type(result).__name__}"
                raise TypeError(self._wrong(name, rule))
            result = result.astype(self.dtype, copy=False)
        if isinstance(values, Strings):  # the function got them in host memory
            return to_namespace(result, array_namespace(values.offsets))
        return result

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns of the dtype, with its default role."""
        return of_dtype(columns, self.dtype)

    @property
    def function_name(self) -> str:
        """Name under which the function is saved; ValueError if it has none."""
        return name_to_save(self.function, "LambdaOp")

    def get_config(self) -> dict[str, Any]:
        """Return the function's name and the dtype."""
        return {"function": self.function_name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config: dict[str, Any], tables: Any, functions: Any) -> Op:
        """Return the op with the function of that name."""
        return cls(function_named(config["function"], functions, "LambdaOp"), config["dtype"])
