"""Ops on numbers, and on values one by one, as TensorFlow operations.

Each gives to the last bit what the op's `transform` gives; learned numbers lie in variables (see
`hashing_tf.fixed`). Does not belong here: ops that look something up (`serving_keys.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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
from tutorlib.ops.columns import per_column
from tutorlib.serving.base import (
    Functions,
    ServedByColumn,
    ServedColumn,
    ServedOp,
    as_float64,
    require,
    round_to,
    serves,
)
from tutorlib.serving.hashing import fixed


def _missing(column: ServedColumn) -> tf.Tensor | None:
    """Return bool [n], True at nulls; None where there are none."""
    if column.valid is not None:
        return ~column.valid
    return tf.math.is_nan(column.values) if column.values.dtype.is_floating else None


@serves(FillMissing, FillMedian)
class _Filled(ServedOp):
    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return [output if output in names else output.removesuffix("_filled")]

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        result = {}
        for name in self.wanted:
            (source,) = self.sources(self.op, name, self.names)
            make = self.column if name in self.names else self.indicator
            result[name] = make(source, columns[source])
        return result

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        missing, values = _missing(column), column.values
        if missing is None:
            return column
        if values.dtype == tf.string:
            fill = tf.constant(self.op.fill_of(name))
        else:
            fill = tf.constant(self.op._fill(name, np.dtype(values.dtype.as_numpy_dtype)))
        return column.with_values(tf.where(missing, fill, values))

    def indicator(self, name: str, column: ServedColumn) -> ServedColumn:
        missing = _missing(column)
        if missing is None:
            return ServedColumn(tf.zeros_like(column.values, dtype=tf.float32))
        return ServedColumn(tf.cast(missing, tf.float32))


@serves(Clip)
class _Clipped(ServedByColumn):
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        values = column.values
        low, high = (
            self.op._limit(name, limit, np.dtype(values.dtype.as_numpy_dtype))
            for limit in (self.op.min_value, self.op.max_value)
        )
        if low is not None:
            values = tf.where(values < low, low, values)  # False for NaN, which stays
        if high is not None:
            values = tf.where(values > high, high, values)
        return column.with_values(values, column.valid)


@serves(LogOp)
class _Logs(ServedByColumn):
    @classmethod
    def hindrance(cls, op: Any, names: Sequence[str], functions: Functions) -> str | None:
        if op.dtype != "float64":
            return None
        return (
            "gives float64, whose last bits TensorFlow computes otherwise than NumPy: take "
            "LogOp(dtype='float32')"
        )

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        values = as_float64(column)
        rule = f"column {name!r}: LogOp takes values above -1. Put Clip(min_value=0) before it."
        require(~tf.reduce_any(values <= -1.0), rule)
        return column.with_values(round_to(tf.math.log1p(values), self.op.dtype))


@serves(Normalize, NormalizeMinMax)
class _Scaled(ServedByColumn):
    def build(self, functions: Functions) -> None:
        learned = self.op.learned()
        shift, scale = (learned[key] for key in (self.op.shift_name, self.op.scale_name))
        self.numbers = {
            name: fixed(np.array([shift[name], scale[name] or math.inf])) for name in self.wanted
        }

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        shift, scale = tf.unstack(tf.convert_to_tensor(self.numbers[name]))
        values = (as_float64(column) - shift) / scale
        return column.with_values(round_to(values, self.op.dtype))


@serves(Bucketize)
class _Intervals(ServedByColumn):
    def build(self, functions: Functions) -> None:
        self.edges = {
            name: fixed(np.asarray(per_column(self.op.boundaries, name), np.float64))
            for name in self.wanted
        }

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        values = as_float64(column)
        ids = tf.searchsorted(self.edges[name], values, side="right") + 2
        return column.with_values(tf.where(tf.math.is_nan(values), NULL_ID, ids))


@serves(LambdaOp)
class _Function(ServedByColumn):
    @classmethod
    def hindrance(cls, op: Any, names: Sequence[str], functions: Functions) -> str | None:
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
        self.function = functions[self.op.function_name]

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        if column.valid is None:
            return column.with_values(self.call(name, column.values))
        result = self.call(name, tf.boolean_mask(column.values, column.valid))
        nothing = tf.zeros([1], result.dtype)  # for a null to point at, if all are null
        places = tf.where(column.valid, tf.cumsum(tf.cast(column.valid, tf.int32)), 0)
        values = tf.gather(tf.concat([nothing, result], axis=0), places)
        return column.with_values(values, column.valid)

    def call(self, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return what the user's function makes of the values that are there."""
        result = tf.convert_to_tensor(self.function(values))
        if self.op.dtype != "string":
            result = tf.cast(result, self.op.dtype)
        rule = f"column {name!r}: LambdaOp expects as many values from the function as it gave"
        require(tf.reduce_all(tf.equal(tf.shape(result), tf.shape(values))), rule)
        return result
