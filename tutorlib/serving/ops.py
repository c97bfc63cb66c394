"""The ops in a TensorFlow graph: bit for bit what their `transform` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib import ops
from tutorlib.ops.base import UNKNOWN_ID
from tutorlib.serving import tensors
from tutorlib.serving.tensors import ServedColumn


class ServedOp(tf.Module):
    """A fitted op as TensorFlow operations, for some of the columns that it makes.

    This class gives the columns as they are. A subclass overrides `column`; `source`, unless each
    column is made of the input column of the same name; and `build`, if the op has learned. It
    stands in `SERVED`.

    Args:
        op: the fitted op.
        names: all columns that go into the op, in order.
        wanted: the columns to make, some of the op's output.

    Raises:
        ValueError: if an op with these settings cannot be served, with the reason.
    """

    def __init__(self, op: Any, names: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__()
        self.op, self.names, self.wanted = op, tuple(names), tuple(wanted)
        self.build()

    def build(self) -> None:
        """Create the variables that hold what the op has learned."""

    def source(self, output: str) -> str:
        """Return the name of the input column that the column `output` is made of."""
        return output

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return an output column, given the one that `source` names."""
        return column

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns."""
        return {name: self.column(name, columns[self.source(name)]) for name in self.wanted}


class ServedRename(ServedOp):
    """`Rename`, and ops that make one column of each and give it another name."""

    def source(self, output: str) -> str:
        """Return the name of the column at the same place."""
        return self.names[self.op.output_names(self.names).index(output)]


class ServedFill(ServedOp):
    """`FillMissing` and `FillMedian`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the column without nulls and NaN."""
        text = column.values.dtype == tf.string
        fill = self.op.value_for(name, None if text else column.numpy_dtype)
        return column.with_values(tf.where(column.missing(), fill, column.values))


class ServedClip(ServedOp):
    """`Clip`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the values within the limits; NaN and nulls stay."""
        values = column.values
        low, high = self.op.limits_for(name, column.numpy_dtype)
        if low is not None:
            values = tf.where(values < low, low, values)  # False for NaN
        if high is not None:
            values = tf.where(values > high, high, values)
        return column.with_values(values, column.valid)


class ServedLogOp(ServedOp):
    """`LogOp`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return log(1 + x)."""
        values = tensors.as_float64(column)
        rule = f"column {name!r}: LogOp takes values above -1. Put Clip(min_value=0) before it."
        tensors.require(~tf.reduce_any(values <= -1.0), rule)
        return column.with_values(tf.cast(tf.math.log1p(values), tf.float32))


class ServedNormalize(ServedOp):
    """`Normalize`."""

    def build(self) -> None:
        """Keep shift and scale of each column, float64 [2]."""
        self.numbers = {n: tensors.fixed(np.array(self.op.shift_and_scale(n))) for n in self.wanted}

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return (x - shift) / scale."""
        shift, scale = tf.unstack(tf.convert_to_tensor(self.numbers[name]))
        values = (tensors.as_float64(column) - shift) / scale
        return column.with_values(tf.cast(values, tf.float32))


class ServedHashBucket(ServedOp):
    """`HashBucket`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return int32 ids, that of the first bucket at a null."""
        ids = tensors.to_buckets(tensors.hash_values(column.values), self.op.num_buckets)
        ids += self.op.first_id
        return column.with_values(column.without_nulls(ids, self.op.first_id))


class ServedCategorify(ServedOp):
    """`Categorify`."""

    def build(self) -> None:
        """Keep the vocabularies."""
        self.tables = {n: tensors.KeyTable(self.op.index_of(n).keys) for n in self.wanted}

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the ids of the values."""
        ids = self.tables[name].find(column.values) + UNKNOWN_ID
        return column.with_values(column.without_nulls(ids, self.op.null_id(name)))


# To serve an op of your own, write a ServedOp for it and enter it: SERVED[MyOp] = ServedMyOp.
SERVED: dict[type[ops.Op], type[ServedOp]] = {
    ops.Categorify: ServedCategorify,
    ops.Clip: ServedClip,
    ops.FillMedian: ServedFill,
    ops.FillMissing: ServedFill,
    ops.HashBucket: ServedHashBucket,
    ops.LogOp: ServedLogOp,
    ops.Normalize: ServedNormalize,
    ops.Rename: ServedRename,
}
