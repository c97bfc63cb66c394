"""Ops that choose and rename columns or slice lists, in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tutorlib.ops import ListSlice, Rename, Select
from tutorlib.serving.base import ServedByColumn, ServedColumn, ServedOp


class ServedSelect(ServedByColumn[Select]):
    """`Select`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the column as it is."""
        return column


class ServedRename(ServedOp[Rename]):
    """`Rename`."""

    @classmethod
    def sources(cls, op: Rename, output: str, names: Sequence[str]) -> list[str]:
        """Return the old name."""
        return [names[op.output_names(names).index(output)]]

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the columns under their new names."""
        return {n: columns[self.sources(self.op, n, self.names)[0]] for n in self.wanted}


class ServedListSlice(ServedByColumn[ListSlice]):
    """`ListSlice`, bit for bit what its `transform` gives."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the slice of each list."""
        if column.splits is None:
            raise TypeError(f"column {name!r}: ListSlice takes lists, got one value a row")
        op, starts = self.op, column.splits[:-1]
        lengths = column.splits[1:] - starts
        first = _from_front(op.start, lengths)
        last = lengths if op.end is None else _from_front(op.end, lengths)
        kept = tf.maximum(last - first, 0)
        splits = tf.concat([[0], tf.cumsum(kept)], axis=0)
        within = tf.range(splits[-1]) - tf.repeat(splits[:-1], kept)
        positions = within + tf.repeat(starts + first, kept)
        values, valid = column.values, column.valid
        valid = None if valid is None else tf.gather(valid, positions)
        return ServedColumn(tf.gather(values, positions), valid, splits, column.dtype)


def _from_front(position: int, lengths: tf.Tensor) -> tf.Tensor:
    """Return a position of a slice counted from the front, for lists of these lengths."""
    if position < 0:
        return tf.maximum(lengths + position, 0)
    return tf.minimum(lengths, np.int64(position))
