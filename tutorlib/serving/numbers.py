"""Ops that compute with the values of a column: bit for bit what their `transform` gives."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tutorlib.ops import (
    NULL_ID,
    Bucketize,
    Clip,
    FillMedian,
    FillMissing,
    LambdaOp,
    LogOp,
    Normalize,
    NormalizeMinMax,
)
from tutorlib.serving.base import (
    Functions,
    ServedByColumn,
    ServedColumn,
    as_float64,
    fixed,
    number,
    require,
    round_to,
)


def _missing_in(column: ServedColumn) -> tf.Tensor | None:
    """Return bool [n], True at a null or NaN; None if the column cannot hold either."""
    if column.valid is not None:
        return ~column.valid
    return tf.math.is_nan(column.values) if column.values.dtype.is_floating else None


def _numpy_dtype(column: ServedColumn) -> np.dtype:
    return np.dtype(column.values.dtype.as_numpy_dtype)


class ServedFill(ServedByColumn[FillMissing | FillMedian]):
    """`FillMissing` and `FillMedian`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the column without nulls and NaN."""
        missing = _missing_in(column)
        if missing is None:
            return column
        if column.values.dtype == tf.string:
            fill = tf.constant(self.op.fill_of(name))
        else:
            fill = tf.constant(self.op.number_for(name, _numpy_dtype(column)))
        return column.with_values(tf.where(missing, fill, column.values))


class ServedClip(ServedByColumn[Clip]):
    """`Clip`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the values within the limits; NaN and nulls stay."""
        values = column.values
        low, high = self.op.limits_for(name, _numpy_dtype(column))
        if low is not None:
            values = tf.where(values < low, low, values)  # False for NaN
        if high is not None:
            values = tf.where(values > high, high, values)
        return column.with_values(values, column.valid)


class ServedLogOp(ServedByColumn[LogOp]):
    """`LogOp`, to float32 or float16."""

    @classmethod
    def refusal(cls, op: LogOp, functions: Functions) -> str | None:
        """Return a reason for float64, whose last bits differ between TensorFlow and NumPy."""
        if op.dtype != "float64":
            return None
        return (
            "gives float64, whose last bits TensorFlow computes otherwise than NumPy: take "
            "LogOp(dtype='float32')"
        )

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return log(1 + x)."""
        values = as_float64(column)
        rule = f"column {name!r}: LogOp takes values above -1. Put Clip(min_value=0) before it."
        require(~tf.reduce_any(values <= -1.0), rule)
        return column.with_values(round_to(tf.math.log1p(values), self.op.dtype))


class ServedScaler(ServedByColumn[Normalize | NormalizeMinMax]):
    """`Normalize` and `NormalizeMinMax`."""

    def build(self, functions: Functions) -> None:
        """Keep shift and scale of each column, float64 [2]."""
        self.numbers = {
            name: fixed(np.array(self.op.shift_and_scale(name))) for name in self.wanted
        }

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return (x - shift) / scale."""
        shift, scale = tf.unstack(tf.convert_to_tensor(self.numbers[name]))
        values = (as_float64(column) - shift) / scale
        return column.with_values(round_to(values, self.op.dtype))


class ServedBucketize(ServedByColumn[Bucketize]):
    """`Bucketize`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return int32 ids of the intervals."""
        values = as_float64(column)
        ids = tf.searchsorted(tf.constant(self.op.edges_for(name)), values, side="right") + 2
        return column.with_values(tf.where(tf.math.is_nan(values), NULL_ID, ids))


class ServedLambdaOp(ServedByColumn[LambdaOp]):
    """`LambdaOp`, with a function of tensors in place of the one of arrays."""

    @classmethod
    def refusal(cls, op: LambdaOp, functions: Functions) -> str | None:
        """Return a reason unless `functions` has one for the op's."""
        try:
            name = op.function_name
        except ValueError:
            return "has a function without a name: write `def name(x): ...`, pass LambdaOp(name)"
        if name in functions:
            return None
        return (
            f"calls the Python function {name!r}: pass one of TensorFlow operations that does the "
            f"same, functions={{{name!r}: function}}"
        )

    def build(self, functions: Functions) -> None:
        """Keep the function."""
        self.function = functions[self.op.function_name]

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return what the function makes of the values that are not null."""
        missing = _missing_in(column)
        if missing is None:
            return column.with_values(self._call(name, column.values))
        result = self._call(name, tf.boolean_mask(column.values, ~missing))
        nothing = tf.fill([1], "" if result.dtype == tf.string else number(0, result.dtype))
        positions = tf.where(missing, 0, tf.cumsum(tf.cast(~missing, tf.int32)))
        values = tf.gather(tf.concat([nothing, result], axis=0), positions)
        return column.with_values(values, ~missing)

    def _call(self, name: str, values: tf.Tensor) -> tf.Tensor:
        result = tf.convert_to_tensor(self.function(values))
        if self.op.dtype != "string":
            result = tf.cast(result, self.op.dtype)
        rule = f"column {name!r}: LambdaOp expects as many values from the function as it gave"
        require(tf.reduce_all(tf.equal(tf.shape(result), tf.shape(values))), rule)
        return result
