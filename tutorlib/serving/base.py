"""ServedColumn and ServedOp: what all ops share in a TensorFlow graph."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tutorlib.columns import Strings
from tutorlib.ops import Op

Functions = Mapping[str, Callable[[tf.Tensor], tf.Tensor]]
AnyOp = TypeVar("AnyOp", bound=Op)


@dataclasses.dataclass(frozen=True)
class ServedColumn:
    """A column in the graph: numbers, strings, lists or values with nulls.

    Args:
        values: one value a row, [n]; of a column of lists the values of all lists, [nnz].
        valid: bool, as `values`, False at a null; None for no nulls and for floats (NaN is null).
        splits: int64 [rows + 1]: row i of lists has values[splits[i]:splits[i + 1]]; else None.
        dtype: NumPy name of dates or durations, whose values are the integers that they count;
            else None.
    """

    values: tf.Tensor
    valid: tf.Tensor | None = None
    splits: tf.Tensor | None = None
    dtype: str | None = None

    def with_values(self, values: tf.Tensor, valid: tf.Tensor | None = None) -> ServedColumn:
        """Return a column of other values in the same lists; floating-point nulls become NaN."""
        if valid is not None and values.dtype.is_floating:
            values, valid = tf.where(valid, values, number(math.nan, values.dtype)), None
        return ServedColumn(values, valid, self.splits)

    def without_nulls(self, values: tf.Tensor, at_null: Any) -> tf.Tensor:
        """Return `values` with `at_null` where this column has a null."""
        return values if self.valid is None else tf.where(self.valid, values, at_null)


def require(holds: tf.Tensor, rule: str) -> None:
    """Raise InvalidArgumentError with the rule when the graph runs, unless `holds` is True."""
    tf.debugging.Assert(holds, [rule.replace("'", "")])  # a graph would put a backslash before them


def number(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return one number of a dtype, a scalar tensor."""
    return tf.constant(dtype.as_numpy_dtype(value))


def fixed(values: Any) -> tf.Variable:
    """Return learned numbers or strings as a variable that training does not change.

    Constants of a graph may take 2 GB at most, and the graph optimizer turns a division by one into
    a multiplication by its rounded inverse.
    """
    with tf.device("CPU"):
        return tf.Variable(values, trainable=False)


def as_string_tensor(strings: Strings) -> tf.Tensor:
    """Return the strings of a chunk's column as a tensor, string [n]."""
    values = strings.to_arrow().cast("large_binary").to_pylist()
    return tf.constant(values, tf.string, [len(values)])


def as_float64(column: ServedColumn) -> tf.Tensor:
    """Return the values as float64, NaN at a null."""
    values = tf.cast(column.values, tf.float64)
    return column.with_values(values, column.valid).values


def round_to(values: tf.Tensor, dtype: str) -> tf.Tensor:
    """Return float64 values rounded once, to the nearest, ties to even.

    TensorFlow casts to float16 by way of float32. Here that first step rounds to odd, which makes
    the second one exact.

    Source: S. Boldo, G. Melquiond, "When double rounding is odd", IMACS 2005.
    """
    if dtype != "float16":
        return tf.cast(values, dtype)
    nearest = tf.cast(values, tf.float32)
    back = tf.cast(nearest, tf.float64)
    bits = tf.bitcast(nearest, tf.int32)
    bits -= tf.cast(tf.abs(back) > tf.abs(values), tf.int32)  # one step towards zero
    bits = tf.bitwise.bitwise_or(bits, tf.cast(back != values, tf.int32))
    odd = tf.where(tf.math.is_finite(values), tf.bitcast(bits, tf.float32), nearest)
    return tf.cast(odd, tf.float16)


class ServedOp(tf.Module, abc.ABC, Generic[AnyOp]):
    """A fitted op as TensorFlow operations, for some of the columns that it makes.

    Args:
        op: the fitted op.
        names: all columns that go into the op, in order.
        wanted: the columns to make, some of the op's output.
        functions: {name: TensorFlow function} for the Python functions of LambdaOps.
    """

    def __init__(
        self, op: AnyOp, names: Sequence[str], wanted: Sequence[str], functions: Functions
    ) -> None:
        super().__init__()
        self.op, self.names, self.wanted = op, tuple(names), tuple(wanted)
        self.build(functions)

    def build(self, functions: Functions) -> None:
        """Create the variables that hold what the op has learned."""

    @classmethod
    def refusal(cls, op: AnyOp, functions: Functions) -> str | None:
        """Return why an op with these settings cannot be served, None if it can."""
        return None

    @classmethod
    def sources(cls, op: AnyOp, output: str, names: Sequence[str]) -> list[str]:
        """Return the names of the input columns that the column `output` is made of."""
        return [output]

    @abc.abstractmethod
    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns, given the columns that they are made of."""


class ServedByColumn(ServedOp[AnyOp]):
    """An op that makes each column of the input column with the same name."""

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns, each transformed by itself."""
        return {name: self.column(name, columns[name]) for name in self.wanted}

    @abc.abstractmethod
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return one column transformed."""
