"""Normalize, NormalizeMinMax: columns shifted and scaled by statistics that are summed exactly."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from tutorlib.chunk import Array, Chunk, array_namespace
from tutorlib.hashing import blocks_of
from tutorlib.ops.base import ColumnOp, LearningOp
from tutorlib.ops.columns import as_floats, flat, float_dtype
from tutorlib.ops.exact import exact_square_sum, exact_sum
from tutorlib.schema import Column


class _Scaler(ColumnOp, LearningOp):
    """What `Normalize` and `NormalizeMinMax` share: (x - shift) / scale with learned numbers."""

    shift_name: ClassVar[str]
    scale_name: ClassVar[str]

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = float_dtype(dtype, type(self).__name__)
        self.reset()

    def reset(self) -> None:
        """Forget what was learned."""
        self._shift: dict[str, float] = {}
        self._scale: dict[str, float] = {}

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns whose numbers are not known."""
        return [name for name in names if name not in self._shift]

    @abstractmethod
    def count(self, name: str, values: Array) -> Any:
        """Return the state of finite float64 values."""

    def partial(self, chunk: Chunk) -> dict[str, Any]:
        """Return {column: state} of the values that are there; NaN and nulls are left out."""
        state = {}
        for name, column in chunk.items():
            values = self._floats(name, flat(column))
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
        """Return what was learned of a column: x becomes (x - shift) / scale."""
        return self._shift[name], self._scale[name] or math.inf

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns."""
        return as_floats(columns, self.dtype)

    def learned(self) -> dict[str, Any]:
        """Return the learned numbers by column."""
        return {self.shift_name: dict(self._shift), self.scale_name: dict(self._scale)}

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the learned numbers back."""
        self._shift, self._scale = learned[self.shift_name], learned[self.scale_name]


class Normalize(_Scaler):
    """Shifts and scales each column to mean 0 and standard deviation 1.

    Mean and (population) standard deviation are those of the values that are there, summed without
    rounding: see `exact_sum`. A column whose values are all the same becomes zeros. NaN and nulls
    stay NaN.

    Args:
        dtype: of the result.

    Raises:
        ValueError: in `finalize`, if a column has no values at all.

    Example:
        >>> import numpy as np
        >>> op = Normalize()
        >>> chunk = Chunk({"x": np.array([1.0, 3.0, np.nan])})
        >>> op.finalize(op.partial(chunk))
        >>> op.learned(), op.transform(chunk)["x"].tolist()
        ({'mean': {'x': 2.0}, 'std': {'x': 1.0}}, [-1.0, 1.0, nan])
    """

    shift_name, scale_name = "mean", "std"

    def count(self, name: str, values: Array) -> tuple[int, Fraction, Fraction]:
        """Return (number of values, their sum, the sum of their squares), all exact."""
        return len(values), exact_sum(values), exact_square_sum(values)

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the sums of all."""
        return tuple(map(sum, zip(*states, strict=True)))

    def finalize(self, state: dict[str, Any]) -> None:
        """Keep mean and standard deviation of each column."""
        shift, scale = {}, {}
        for name, (count, total, squares) in state.items():
            if count == 0:
                raise ValueError(self._wrong(name, "found no value. Put FillMissing before it."))
            mean = total / count
            shift[name] = float(mean)
            scale[name] = math.sqrt(squares / count - mean * mean)
        self._shift, self._scale = shift, scale


class NormalizeMinMax(_Scaler):
    """Shifts and scales each column so that the values learned from lie in [0, 1].

    A column whose values are all the same becomes zeros. NaN and nulls stay NaN. Later values
    beyond the ones learned from come out below 0 or above 1.

    Args:
        dtype: of the result.

    Example:
        >>> import numpy as np
        >>> op = NormalizeMinMax()
        >>> chunk = Chunk({"x": np.array([2, 6, 4])})
        >>> op.finalize(op.partial(chunk))
        >>> op.transform(chunk)["x"].tolist()
        [0.0, 1.0, 0.5]
    """

    shift_name, scale_name = "min", "range"

    def count(self, name: str, values: Array) -> tuple[float, float]:
        """Return (smallest, largest), infinite if there is none."""
        if len(values) == 0:
            return math.inf, -math.inf
        return float(values.min()) + 0.0, float(values.max()) + 0.0  # so that -0.0 becomes 0.0

    def merge_states(self, states: Sequence[Any]) -> Any:
        """Return the smallest and the largest of all."""
        lows, highs = zip(*states, strict=True)
        return min(lows), max(highs)

    def finalize(self, state: dict[str, Any]) -> None:
        """Keep minimum and range of each column."""
        for name, (low, high) in state.items():
            if low > high:
                raise ValueError(self._wrong(name, "found no value. Put FillMissing before it."))
        self._shift = {name: low for name, (low, _) in state.items()}
        self._scale = {name: high - low for name, (low, high) in state.items()}
