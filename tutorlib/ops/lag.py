"""DifferenceLag: how much a value differs from the one some rows before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tutorlib.chunk import Array, Chunk, Ragged, Strings, array_namespace
from tutorlib.hashing import equal_strings
from tutorlib.ops.base import Op
from tutorlib.ops.columns import float_dtype
from tutorlib.schema import Column


class DifferenceLag(Op):
    """Subtracts from each value that of the row `shift` rows before, in the same partition.

    What comes out is `{column}_difference_lag_{shift}`. It is NaN where there is no such row, where
    that row differs in a partition column or has a null in one, and where one of the two values is
    missing. So rows of one partition belong together, in order: sort the data by the partition
    columns first.

    The rows of a chunk do not tell what stood before the first of them, and a result that depended
    on how the data was cut would be of no use. So `Workflow.fit` and `transform_to_parquet` hand
    over the rows before each chunk; `Workflow.transform` asks for them as `before`; and where rows
    come without neighbours, in a loader or a served model, the op is refused. Write its results to
    Parquet first.

    Args:
        partition_by: column, or several, of integers or texts that the data has; read as they are.
        shift: how many rows before, 1 or more.
        dtype: of the result.

    Raises:
        TypeError: for texts and for lists.

    Example:
        >>> group = ["time"] >> DifferenceLag("user")
        >>> chunk = Chunk({"user": np.array([7, 7, 8, 8]), "time": np.array([1, 5, 2, 9])})
        >>> group.transform(chunk)["time_difference_lag_1"].tolist()
        [nan, 4.0, nan, 7.0]
    """

    def __init__(
        self, partition_by: str | Sequence[str], shift: int = 1, dtype: str = "float32"
    ) -> None:
        named = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        if not named:
            raise ValueError("DifferenceLag: partition_by must name a column, got none")
        if not isinstance(shift, int) or shift < 1:
            raise ValueError(f"DifferenceLag: shift must be an integer from 1 on, got {shift!r}")
        self.partition_by, self.shift = named, shift
        self.dtype = float_dtype(dtype, "DifferenceLag")

    @property
    def extra_columns(self) -> Sequence[str]:
        """The partition columns."""
        return self.partition_by

    @property
    def rows_before(self) -> int:
        """The shift."""
        return self.shift

    def _differences(self, name: str, column: Any) -> Array:
        """Return the differences, as if all rows were of one partition."""
        values, valid = self._numbers(name, column)
        xp = array_namespace(values)
        if values.dtype.kind != "f" and values.dtype != np.uint64:
            values = values.astype(np.int64)
        result = xp.full(len(values), np.nan, dtype=self.dtype)
        later, earlier = values[self.shift :], values[: -self.shift]
        if values.dtype.kind == "f":
            result[self.shift :] = later.astype(np.float64) - earlier.astype(np.float64)
        else:
            result[self.shift :] = _difference(later, earlier)
        if valid is not None:
            result[self.shift :][~(valid[self.shift :] & valid[: -self.shift])] = np.nan
        return result

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the differences; no row is known before the first of the chunk."""
        same = None
        for name in self.partition_by:
            met = self._same(name, chunk[name])
            same = met if same is None else same & met
        result = {}
        for name, column in chunk.drop(self.partition_by).items():
            if isinstance(column, Ragged):
                raise TypeError(self._wrong(name, "takes one value a row, got lists"))
            values = self._differences(name, column)
            values[self.shift :][~same] = np.nan
            result[self._output_name(name)] = values
        return Chunk(result)

    def _same(self, name: str, column: Any) -> Array:
        """Return bool [n - shift]: whether a row has the value of the row before, no null."""
        if isinstance(column, Ragged):
            raise TypeError(self._wrong(name, "takes one value a row to part by, got lists"))
        values, valid = self._keys(name, column)
        if isinstance(values, Strings):
            xp = array_namespace(values.offsets)
            rows = xp.arange(self.shift, max(self.shift, len(values)))
            same = equal_strings(values, rows, values, rows - self.shift)
        else:
            same = values[self.shift :] == values[: -self.shift]
        return same if valid is None else same & valid[self.shift :] & valid[: -self.shift]

    def _output_name(self, name: str) -> str:
        return f"{name}_difference_lag_{self.shift}"

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the differences."""
        return [self._output_name(name) for name in names]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the differences as continuous columns."""
        return [
            Column(self._output_name(c.name), "continuous", self.dtype, c.multi_hot)
            for c in columns
        ]


def _difference(later: Array, earlier: Array) -> Array:
    """Return later - earlier of integers, exact, then rounded to float64."""
    xp = array_namespace(later)
    larger, smaller = xp.maximum(later, earlier), xp.minimum(later, earlier)
    size = larger.view(np.uint64) - smaller.view(np.uint64)  # below 2**64, whatever the signs
    return xp.where(later >= earlier, 1.0, -1.0) * size.astype(np.float64)
