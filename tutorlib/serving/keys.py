"""Ops that hash or look up keys, and those that cut lists, as TensorFlow operations.

Each gives to the last bit what the op's `transform` gives; vocabularies and tables lie in variables
(see `hashing_tf.fixed`). Does not belong here: the hash and the lookup (`hashing_tf.py`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tutorlib.chunk import Masked, Ragged, Strings
from tutorlib.hashing import KeyIndex
from tutorlib.ops import (
    FIRST_OOV_ID,
    NULL_ID,
    Categorify,
    HashBucket,
    HashedCross,
    JoinExternal,
    JoinGroupby,
    ListSlice,
    TargetEncoding,
)
from tutorlib.ops.columns import id_dtype, per_column
from tutorlib.ops.keys import CombinationIndex
from tutorlib.serving.base import (
    Functions,
    ServedByColumn,
    ServedColumn,
    ServedOp,
    number,
    serves,
)
from tutorlib.serving.hashing import KeyTable, as_string_tensor, fixed, hash_values, mix, to_buckets


@serves(HashBucket)
class _HashBuckets(ServedByColumn):
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        ids = to_buckets(hash_values(column.values), per_column(self.op.num_buckets, name))
        return column.with_values(ids if column.valid is None else tf.where(column.valid, ids, 0))


def combined_hashes(columns: Sequence[ServedColumn]) -> tf.Tensor:
    """Return the hash of each combination, uint64: see `ops.keys.combined_hashes`."""
    crossed = None
    for column in columns:
        hashes = hash_values(column.values)
        if column.valid is not None:
            hashes = tf.where(column.valid, hashes, number(0, tf.uint64))
        crossed = mix(hashes if crossed is None else tf.bitwise.bitwise_xor(crossed, hashes))
    return crossed


@serves(HashedCross)
class _Crossed(ServedOp):
    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return list(names)

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        crossed = combined_hashes([columns[name] for name in self.names])
        return {self.wanted[0]: ServedColumn(to_buckets(crossed, self.op.num_buckets))}


class CombinationTable(tf.Module):
    """Finds the place of keys, or of combinations of them, as `ops.keys.CombinationIndex` does.

    Args:
        index: a `KeyIndex` or a `CombinationIndex`.
    """

    def __init__(self, index: KeyIndex | CombinationIndex) -> None:
        super().__init__()
        combined = isinstance(index, CombinationIndex)
        self._parts = [KeyTable(part.keys) for part in (index._indexes if combined else [index])]
        self._pairs = [KeyTable(pair.keys) for pair in (index._pairs if combined else [])]

    def find(self, columns: Sequence[ServedColumn], hashes: tf.Tensor | None = None) -> tf.Tensor:
        """Return for each row its place, counted from 1, and 0 where it is not there.

        Args:
            columns: the parts of the keys; a null is a value of its own among several, and not
                there if it is alone.
            hashes: of texts, if they are alone and their hashes are known already.
        """
        if len(columns) == 1:
            found = self._parts[0].find(columns[0].values, hashes)
            return found if columns[0].valid is None else tf.where(columns[0].valid, found, 0)
        found = self._number(0, columns[0])
        for place, (pair, column) in enumerate(zip(self._pairs, columns[1:], strict=True), 1):
            following = self._number(place, column)
            packed = found * (self._parts[place].size + 2) + following
            known = (found > 0) & (following > 0)
            found = tf.cast(pair.find(tf.where(known, packed, -1)), tf.int64)
        return found

    def _number(self, place: int, column: ServedColumn) -> tf.Tensor:
        """Return the number of each value: from 1, a null the last, 0 if not known."""
        found = tf.cast(self._parts[place].find(column.values), tf.int64)
        if column.valid is None:
            return found
        return tf.where(column.valid, found, self._parts[place].size + 1)


@serves(Categorify)
class _Vocabularies(ServedByColumn):
    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return list(names) if op.combo else [output]

    def build(self, functions: Functions) -> None:
        keys = dict.fromkeys(self.op._key(name) for name in self.wanted)
        self.tables = {key: CombinationTable(self.op._indexes[key]) for key in keys}

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        if not self.op.combo:
            return super().__call__(columns)
        (name,) = self.wanted
        parts = [columns[part] for part in self.names]
        some = None  # a row is null if all of its parts are
        if all(part.valid is not None for part in parts):
            some = tf.reduce_any([part.valid for part in parts], axis=0)
        hashes = combined_hashes(parts) if self.op.num_oov_buckets > 1 else None
        found = self.tables[name].find(parts)
        return {name: ServedColumn(self.ids(name, found, hashes, some))}

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        hashed = column.values.dtype == tf.string or self.op.num_oov_buckets > 1
        hashes = hash_values(column.values) if hashed else None
        found = self.tables[self.op._key(name)].find([column], hashes)
        return column.with_values(self.ids(name, found, hashes, column.valid))

    def ids(self, name: str, found: tf.Tensor, hashes: Any, valid: Any) -> tf.Tensor:
        """Return the ids of values found at places from 1, not found at place 0."""
        buckets = self.op.num_oov_buckets
        ids = tf.cast(found, id_dtype(self.op.cardinality(name)))
        unknown: Any = FIRST_OOV_ID
        if buckets > 1:
            unknown = tf.cast(to_buckets(hashes, buckets), ids.dtype) + FIRST_OOV_ID
        ids = tf.where(ids > 0, ids + (FIRST_OOV_ID + buckets - 1), unknown)
        return ids if valid is None else tf.where(valid, ids, NULL_ID)


# ------------------------------------------------------------------------------------------ tables


class _GroupNumbers(ServedOp):
    """Numbers learned of groups of rows, found by the groups' keys."""

    @classmethod
    def parts(cls, op: Any, output: str, names: Sequence[str]) -> tuple[str, str]:
        """Return (key, what is made of it) of a column that comes out."""
        pairs = ((key, made) for key in op.key_names(names) for made in op.made())
        return next(pair for pair in pairs if "_".join(pair) == output)

    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return list(names) if op.combo else [cls.parts(op, output, names)[0]]

    @abc.abstractmethod
    def of_new_keys(self, key: str, made: str) -> float:
        """Return the number that a key gets that was not there when the op learned."""

    def build(self, functions: Functions) -> None:
        tables = self.op.learned_tables()
        self.keys, self.numbers = {}, {}
        for name in self.wanted:
            key, made = self.parts(self.op, name, self.names)
            if key not in self.keys:
                self.keys[key] = CombinationTable(self.op._indexes[key])
            first = np.array([self.of_new_keys(key, made)], self.op.dtype)
            self.numbers[name] = fixed(np.concatenate([first, tables[key][made]]))

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        result, places = {}, {}
        for name in self.wanted:
            key, _ = self.parts(self.op, name, self.names)
            keys = [columns[part] for part in self.sources(self.op, name, self.names)]
            if key not in places:
                places[key] = self.places(key, keys)
            result[name] = keys[0].with_values(tf.gather(self.numbers[name], places[key]))
        return result

    def places(self, key: str, columns: Sequence[ServedColumn]) -> tf.Tensor:
        """Return the place of each row's key in the table, from 1; 0 if it is new or null."""
        found = self.keys[key].find(columns)
        for column in columns:
            if column.valid is not None:
                found = tf.where(column.valid, found, 0)
        return found


@serves(JoinGroupby)
class _Statistics(_GroupNumbers):
    def of_new_keys(self, key: str, made: str) -> float:
        return 0.0 if made.rpartition("_")[2] in ("count", "sum") else math.nan


@serves(TargetEncoding)
class _Encoded(_GroupNumbers):
    def of_new_keys(self, key: str, made: str) -> float:
        return self.op.learned()["priors"][key][made.removesuffix("_mean")][0]


class ServedTable(tf.Module):
    """A column of a table, whose rows are taken by place counted from 1; null at place 0.

    Args:
        column: a column of a chunk, with one row at least.
    """

    def __init__(self, column: Any) -> None:
        super().__init__()
        self._offsets = fixed(column.offsets) if isinstance(column, Ragged) else None
        column = column.values if isinstance(column, Ragged) else column
        self._valid = fixed(column.valid) if isinstance(column, Masked) else None
        values = column.values if isinstance(column, Masked) else column
        self._values = fixed(as_string_tensor(values) if isinstance(values, Strings) else values)

    def take_or_null(self, places: tf.Tensor) -> ServedColumn:
        """Return the rows at the given places, int [n]."""
        there, rows = places > 0, tf.cast(tf.maximum(places - 1, 0), tf.int64)
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


@serves(JoinExternal)
class _Joined(ServedOp):
    @classmethod
    def sources(cls, op: Any, output: str, names: Sequence[str]) -> list[str]:
        return [output if output in names else op.on]

    def build(self, functions: Functions) -> None:
        joined = [name for name in self.wanted if name not in self.names]
        self.keys = KeyTable(self.op._index.keys) if joined else None
        self.tables = {name: ServedTable(self.op.table[name]) for name in joined}

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        places = self.places(columns[self.op.on]) if self.tables else None
        return {
            name: self.tables[name].take_or_null(places) if name in self.tables else columns[name]
            for name in self.wanted
        }

    def places(self, column: ServedColumn) -> tf.Tensor:
        found = self.keys.find(column.values)
        return found if column.valid is None else tf.where(column.valid, found, 0)


# ------------------------------------------------------------------------------------------- lists


@serves(ListSlice)
class _Cut(ServedByColumn):
    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        op, starts = self.op, column.splits[:-1]
        lengths = column.splits[1:] - starts
        first = _from_front(op.start, lengths)
        last = lengths if op.end is None else _from_front(op.end, lengths)
        kept = tf.maximum(last - first, 0)
        made = tf.fill(tf.shape(kept), np.int64(op._length())) if op.pad else kept
        splits = tf.concat([[0], tf.cumsum(made)], axis=0)
        within = tf.range(splits[-1]) - tf.repeat(splits[:-1], made)
        places = within + tf.repeat(starts + first, made)
        values, valid = column.values, column.valid
        if op.pad:
            there = within < tf.repeat(kept, made)
            places = tf.where(there, places, tf.size(values, tf.int64))
            values = tf.concat([values, self.padding(name, values.dtype)], axis=0)
            valid = None if valid is None else tf.concat([valid, [True]], axis=0)
        valid = None if valid is None else tf.gather(valid, places)
        return ServedColumn(tf.gather(values, places), valid, splits)

    def padding(self, name: str, dtype: tf.DType) -> tf.Tensor:
        """Return the one value that lists are filled with, [1]."""
        if dtype == tf.string:
            no_texts = Strings(np.zeros(0, np.uint8), np.zeros(1, np.int64))
            return as_string_tensor(self.op._padding(name, no_texts, np))
        return tf.constant(self.op._padding(name, np.zeros(0, dtype.as_numpy_dtype), np))


def _from_front(place: int, lengths: tf.Tensor) -> tf.Tensor:
    """Return a place of a slice counted from the front, within each list."""
    if place < 0:
        return tf.maximum(lengths + place, 0)
    return tf.minimum(lengths, np.int64(place))
