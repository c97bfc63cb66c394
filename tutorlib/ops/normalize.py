"""Normalize, NormalizeMinMax: columns shifted and scaled by statistics that are summed exactly."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tutorlib.columns import Array, Chunk, array_namespace, flat_values
from tutorlib.hashing import blocks_of
from tutorlib.ops.base import StatisticsOp
from tutorlib.ops.shared.columns import float_dtype, of_dtype
from tutorlib.ops.shared.exact import exact_sums, sqrt_of_ratio
from tutorlib.schema import Column


class _Scaler(StatisticsOp):
    """(x - shift) / scale, with the two statistics of each column."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = float_dtype(dtype, type(self).__name__)
        super().__init__()

    @abstractmethod
    def count(self, name: str, values: Array) -> Any:
        """Return the state of finite float64 values [n] of a column."""

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column: state}; NaN and nulls are left out."""
        state = {}
        for name, column in chunk.items():
            values = self._floats(name, flat_values(column))
            missing = array_namespace(values).isnan(values)
            values = values[~missing] if bool(missing.any()) else values
            self._check_size(name, values)
            state[name] = self.count(name, values)
        return state

    def transform_column(self, name: str, column: Any) -> Array:
        """Return (x - shift) / scale, computed in float64."""
        values = self._floats(name, column)
        xp = array_namespace(values)
        result = xp.empty(len(values), dtype=self.dtype)
        shift, scale = self.shift_and_scale(name)
        for block in blocks_of(len(values), xp):
            part = values[block] - shift
            part /= scale
            result[block] = part
        return result

    def shift_and_scale(self, name: str) -> tuple[float, float]:
        """Return the learned (shift, scale) of a column; scale is infinite for equal values."""
        shift, scale = (numbers[name] for numbers in self._learned.values())
        return shift, scale or math.inf

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns."""
        return of_dtype(columns, self.dtype)


class Normalize(_Scaler):
    """Shifts and scales each column to mean 0 and standard deviation 1.

    Mean and population standard deviation are those of all values that are not missing, summed
    without rounding (`exact_sum`).

    Returns (from transform): columns of `dtype`; a null becomes NaN, lists keep their lengths. A
    column of equal values becomes zeros.

    Args:
        dtype: of the result, "float16", "float32" or "float64".

    Raises:
        ValueError: if a value is infinite or 2**400 or more; in `finalize`, for a column of nulls.
        TypeError: for strings.

    Example:
        >>> import numpy as np
        >>> op = Normalize()
        >>> chunk = Chunk({"x": np.array([1.0, 3.0, np.nan])})
        >>> op.finalize(op.partial(chunk))
        >>> op.learned(), op.transform(chunk)["x"].tolist()
        ({'mean': {'x': 2.0}, 'std': {'x': 1.0}}, [-1.0, 1.0, nan])
    """

    statistics = ("mean", "std")

    def count(self, name: str, values: Array) -> tuple[int, Fraction, Fraction]:
        """Return (number of values, their sum, the sum of their squares), exact."""
        return len(values), *exact_sums(values)

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the sums of all states."""
        return tuple(map(sum, zip(*states, strict=True)))

    def statistics_of(self, name: str, state: Any) -> tuple[float, float] | None:
        """Return (mean, standard deviation)."""
        count, total, squares = state
        if count == 0:
            return None
        mean = total / count
        variance = squares / count - mean * mean
        return float(mean), sqrt_of_ratio(variance.numerator, variance.denominator)


class NormalizeMinMax(_Scaler):
    """Shifts and scales each column so that the smallest value becomes 0 and the largest 1.

    Returns (from transform): columns of `dtype`; a null becomes NaN, lists keep their lengths. A
    column of equal values becomes zeros. Values beyond those learned leave [0, 1].

    Args:
        dtype: of the result, "float16", "float32" or "float64".

    Raises:
        ValueError: if a value is infinite or 2**400 or more; in `finalize`, for a column of nulls.
        TypeError: for strings.

    Example:
        >>> import numpy as np
        >>> op = NormalizeMinMax()
        >>> chunk = Chunk({"x": np.array([2, 6, 4])})
        >>> op.finalize(op.partial(chunk))
        >>> op.transform(chunk)["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    statistics = ("min", "range")

    def count(self, name: str, values: Array) -> tuple[float, float]:
        """Return (smallest, largest); (inf, -inf) if there is none."""
        if len(values) == 0:
            return math.inf, -math.inf
        return float(values.min()) + 0.0, float(values.max()) + 0.0  # so that -0.0 becomes 0.0

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the smallest and the largest of all states."""
        lows, highs = zip(*states, strict=True)
        return min(lows), max(highs)

    def statistics_of(self, name: str, state: Any) -> tuple[float, float] | None:
        """Return (minimum, range)."""
        low, high = state
        return None if low > high else (low, high - low)
