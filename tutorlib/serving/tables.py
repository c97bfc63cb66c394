"""KeyTable, CombinationTable, ValueTable: lookups in a graph, their contents in variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.columns import Masked, Ragged, Strings
from tutorlib.hashing import hash_values as hash_on_host
from tutorlib.ops.shared.keys import CombinationIndex
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


class CombinationTable(tf.Module):
    """Finds the position of combinations of values, as the `CombinationIndex` that it copies."""

    def __init__(self, index: CombinationIndex) -> None:
        super().__init__()
        self._parts = [KeyTable(part.keys) for part in index.part_indexes]
        self._pairs = [KeyTable(pair.keys) for pair in index.pair_indexes]

    def find(self, columns: Sequence[ServedColumn], hashes: tf.Tensor | None = None) -> tf.Tensor:
        """Return the position of each row's combination, from 1; 0 if it is not in the table.

        Among several parts a null is a value like others; a single part that is null is not in the
        table. `hashes` are those of a single part, uint64 [n], or None to compute them.
        """
        if len(columns) == 1:
            return columns[0].without_nulls(self._parts[0].find(columns[0].values, hashes), 0)
        found = self._number(0, columns[0])
        for k, (pair, column) in enumerate(zip(self._pairs, columns[1:], strict=True), 1):
            following = self._number(k, column)
            packed = found * (self._parts[k].size + 2) + following
            known = (found > 0) & (following > 0)
            found = tf.cast(pair.find(tf.where(known, packed, -1)), tf.int64)
        return found

    def _number(self, k: int, column: ServedColumn) -> tf.Tensor:
        """Return the number of each value of part k: from 1, a null the last, 0 if not known."""
        part = self._parts[k]
        return column.without_nulls(tf.cast(part.find(column.values), tf.int64), part.size + 1)


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
