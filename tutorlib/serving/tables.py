"""KeyTable, ValueTable: lookups in a graph, their contents in variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.columns import Masked, Ragged, Strings
from tutorlib.hashing import hash_values as hash_on_host
from tutorlib.serving.base import ServedColumn, as_string_tensor, fixed
from tutorlib.serving.hashing import hash_strings


class KeyTable(tf.Module):
    """Finds the position of keys in a list of keys, as `hashing.KeyIndex` does.

    It searches the sorted keys, or the sorted hashes of strings, by bisection on any device.

    Args:
        keys: integers [n] or `Strings`, each once, as a `KeyIndex` has checked.

    Example:
        >>> KeyTable(np.array([30, 10, 20])).find(tf.constant([10, 11, 30])).numpy().tolist()
        [2, 0, 1]
    """

    def __init__(self, keys: Any) -> None:
        super().__init__()
        strings = isinstance(keys, Strings)
        words = hash_on_host(keys).view(np.int64) if strings else np.asarray(keys).astype(np.int64)
        self._unsigned = not strings and np.asarray(keys).dtype == np.uint64
        order = np.argsort(words)
        wide = len(words) >= 2**31 - 1
        self._words = fixed(words[order])
        self._positions = fixed((order + 1).astype(np.int64 if wide else np.int32))
        self._strings = fixed(as_string_tensor(keys.take(order))) if strings else None
        self.size = len(words)

    def find(self, wanted: tf.Tensor, hashes: tf.Tensor | None = None) -> tf.Tensor:
        """Return the position of each wanted key, counted from 1; 0 if it is not in the table.

        Args:
            wanted: integers or strings [n], of the kind of the keys.
            hashes: uint64 [n], the hashes of strings; None to compute them.

        Returns:
            int32 [n], int64 for 2**31 - 1 keys or more.
        """
        if self.size == 0:
            return tf.zeros_like(wanted, dtype=self._positions.dtype)
        unsigned = wanted.dtype == tf.uint64
        if self._strings is None:
            words = tf.bitcast(wanted, tf.int64) if unsigned else tf.cast(wanted, tf.int64)
        else:
            words = tf.bitcast(hash_strings(wanted) if hashes is None else hashes, tf.int64)
        at = tf.minimum(tf.searchsorted(self._words, words), self.size - 1)
        right = tf.gather(self._words, at) == words
        if self._strings is not None:
            right &= tf.gather(self._strings, at) == wanted
        elif unsigned != self._unsigned:
            right &= words >= 0  # the same bits stand for two numbers
        return tf.where(right, tf.gather(self._positions, at), 0)


class ValueTable(tf.Module):
    """A column of a `Chunk`, of at least one row, whose rows are taken by position."""

    def __init__(self, column: Any) -> None:
        super().__init__()
        self._offsets = fixed(column.offsets) if isinstance(column, Ragged) else None
        column = column.values if isinstance(column, Ragged) else column
        self._valid = fixed(column.valid) if isinstance(column, Masked) else None
        values = column.values if isinstance(column, Masked) else column
        self._values = fixed(as_string_tensor(values) if isinstance(values, Strings) else values)

    def take_or_null(self, positions: tf.Tensor) -> ServedColumn:
        """Return the rows at positions from 1, int [n]; at position 0 a null or an empty list."""
        there, rows = positions > 0, tf.cast(tf.maximum(positions - 1, 0), tf.int64)
        splits = None
        if self._offsets is not None:
            starts = tf.gather(self._offsets, rows)
            lengths = tf.where(there, tf.gather(self._offsets, rows + 1) - starts, 0)
            splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
            rows = tf.ragged.range(starts, starts + lengths).values
            there = None
        values = tf.gather(self._values, rows)
        if self._valid is not None:
            valid = tf.gather(self._valid, rows)
            there = valid if there is None else there & valid
        return ServedColumn(values, None, splits).with_values(values, there)
