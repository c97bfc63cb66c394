"""What ops are in a served graph: columns as tensors, and a register of who serves which op.

Does not belong here: any one op (`serving_numbers.py`, `serving_keys.py`).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tutorlib.ops import Op, Rename, Select

Functions = Mapping[str, Callable[[tf.Tensor], tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class ServedColumn:
    """A column in the graph: all kinds of `tutorlib.chunk` in one.

    Args:
        values: [n], of all rows' lists if it holds lists.
        valid: bool [n], False at a null; None without nulls. A null of floating point is NaN.
        splits: int64 [rows + 1] if it holds lists: row i has values[splits[i]:splits[i + 1]].
    """

    values: tf.Tensor
    valid: tf.Tensor | None = None
    splits: tf.Tensor | None = None

    def with_values(self, values: tf.Tensor, valid: tf.Tensor | None = None) -> ServedColumn:
        """Return the column with other values in the same lists; NaN for a null where it can be."""
        if valid is not None and values.dtype.is_floating:
            values, valid = tf.where(valid, values, number(math.nan, values.dtype)), None
        return ServedColumn(values, valid, self.splits)


def require(holds: tf.Tensor, rule: str) -> None:
    """Raise InvalidArgumentError with the rule, when the graph runs, if it does not hold."""
    tf.debugging.Assert(holds, [rule.replace("'", "")])  # a graph would put a backslash before them


def number(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return one number of a type."""
    return tf.constant(dtype.as_numpy_dtype(value))


def as_float64(column: ServedColumn) -> tf.Tensor:
    """Return the values as float64, NaN where null."""
    values = tf.cast(column.values, tf.float64)
    return column.with_values(values, column.valid).values


def round_to(values: tf.Tensor, dtype: str) -> tf.Tensor:
    """Return float64 values rounded once, to the nearest, ties to even.

    TensorFlow goes to float16 by way of float32 and rounds twice. So the first step rounds to odd
    here, which keeps the second one right.

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


class ServedOp(tf.Module, abc.ABC):
    """One op in the graph, for some of its columns.

    Args:
        op: fitted.
        names: all columns that go into the op, in order.
        wanted: those of its output that are needed.
        functions: {name: TensorFlow function} of the LambdaOps.
    """

    registry: ClassVar[dict[type[Op], type[ServedOp]]] = {}

    def __init__(
        self, op: Op, names: Sequence[str], wanted: Sequence[str], functions: Functions
    ) -> None:
        super().__init__()
        self.op, self.names, self.wanted = op, tuple(names), tuple(wanted)
        self.build(functions)

    def build(self, functions: Functions) -> None:
        """Make the variables."""

    @classmethod
    def hindrance(cls, op: Op, names: Sequence[str], functions: Functions) -> str | None:
        """Return why the op cannot be served as it is set up; None if it can."""
        return None

    @classmethod
    def sources(cls, op: Op, output: str, names: Sequence[str]) -> list[str]:
        """Return the columns that `output` is made of, of those that go in."""
        return [output]

    @abc.abstractmethod
    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns, given those that they are made of."""


class ServedByColumn(ServedOp):
    """An op that makes each column of the one with its name."""

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns, each made of its own."""
        return {name: self.column(name, columns[name]) for name in self.wanted}

    @abc.abstractmethod
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return one column transformed."""


def serves(*kinds: type[Op]) -> Callable[[type[ServedOp]], type[ServedOp]]:
    """Enter a class as what serves ops of these kinds."""

    def enter(served: type[ServedOp]) -> type[ServedOp]:
        ServedOp.registry.update(dict.fromkeys(kinds, served))
        return served

    return enter


def unserved(op: Op, names: Sequence[str], functions: Functions) -> str | None:
    """Return why an op cannot be served, as a line for a list of such; None if it can."""
    served = ServedOp.registry.get(type(op))
    if served is None:
        reason = "has no form in TensorFlow"
    else:
        reason = served.hindrance(op, names, functions)
    return reason and f"{type(op).__name__} of the columns {list(names)} {reason}"


@serves(Select)
class _Selected(ServedByColumn):
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        return column


@serves(Rename)
class _Renamed(ServedOp):
    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return [names[op.output_names(names).index(output)]]

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        return {n: columns[self.sources(self.op, n, self.names)[0]] for n in self.wanted}
