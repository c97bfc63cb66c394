"""Ops that hash or look up keys: bit for bit what their `transform` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tutorlib.ops import Categorify, HashBucket, JoinExternal, TargetEncoding
from tutorlib.ops.base import FIRST_OOV_ID, NULL_ID, id_dtype
from tutorlib.serving.base import Functions, ServedByColumn, ServedColumn, ServedOp, fixed
from tutorlib.serving.hashing import hash_values, to_buckets
from tutorlib.serving.tables import KeyTable, ValueTable


class ServedHashBucket(ServedByColumn[HashBucket]):
    """`HashBucket`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return int32 buckets, 0 at a null."""
        ids = to_buckets(hash_values(column.values), self.op.cardinality(name))
        return column.with_values(column.without_nulls(ids, 0))


class ServedCategorify(ServedByColumn[Categorify]):
    """`Categorify`."""

    def build(self, functions: Functions) -> None:
        """Keep the vocabularies; columns that share one share its variables."""
        one_column = {self.op.vocabulary_key(name): name for name in self.wanted}
        self.tables = {
            key: KeyTable(self.op.index_of(name).keys) for key, name in one_column.items()
        }

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the ids of one column's values."""
        hashed = column.values.dtype == tf.string or self.op.num_oov_buckets > 1
        hashes = hash_values(column.values) if hashed else None
        found = self.tables[self.op.vocabulary_key(name)].find(column.values, hashes)
        return column.with_values(self._ids(name, found, hashes, column.valid))

    def _ids(
        self, name: str, found: tf.Tensor, hashes: tf.Tensor | None, valid: tf.Tensor | None
    ) -> tf.Tensor:
        """Return the ids of values found at positions from 1; position 0 is out of vocabulary."""
        buckets = self.op.num_oov_buckets
        ids = tf.cast(found, id_dtype(self.op.cardinality(name)))
        unknown = tf.constant(FIRST_OOV_ID, ids.dtype)
        if buckets > 1:
            unknown += tf.cast(to_buckets(hashes, buckets), ids.dtype)
        ids = tf.where(ids > 0, ids + (FIRST_OOV_ID + buckets - 1), unknown)
        return ids if valid is None else tf.where(valid, ids, NULL_ID)


class ServedTargetEncoding(ServedOp[TargetEncoding]):
    """`TargetEncoding`: the means of all rows, found by key."""

    @classmethod
    def sources(cls, op: TargetEncoding, output: str, names: Sequence[str]) -> list[str]:
        """Return the key's column."""
        return [names[op.output_names(names).index(output)]]

    def build(self, functions: Functions) -> None:
        """Keep the keys, and the means of each wanted column after the prior."""
        self.keys: dict[str, KeyTable] = {}
        self.numbers: dict[str, tf.Variable] = {}
        for name in self.wanted:
            (key,) = self.sources(self.op, name, self.names)
            self.keys[name] = KeyTable(self.op.index_of(key).keys)
            self.numbers[name] = fixed(self.op.numbers_of(key))

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the means of each row's keys."""
        result: dict[str, ServedColumn] = {}
        for name in self.wanted:
            (key,) = self.sources(self.op, name, self.names)
            column = columns[key]
            positions = column.without_nulls(self.keys[name].find(column.values), 0)
            result[name] = column.with_values(tf.gather(self.numbers[name], positions))
        return result


class ServedJoinExternal(ServedOp[JoinExternal]):
    """`JoinExternal`; the table is in variables, its columns only where they are wanted."""

    @classmethod
    def sources(cls, op: JoinExternal, output: str, names: Sequence[str]) -> list[str]:
        """Return the column itself; of a joined one, the key."""
        return [output if output in names else op.on]

    def build(self, functions: Functions) -> None:
        """Keep the keys and the wanted columns of the table."""
        joined = [name for name in self.wanted if name not in self.names]
        self.keys = KeyTable(self.op.index.keys) if joined else None
        self.tables = {name: ValueTable(self.op.table[name]) for name in joined}

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the wanted columns, joined ones with a null where the key is not in the table."""
        made = {name: columns[name] for name in self.wanted if name in self.names}
        if self.keys is not None:
            key = columns[self.op.on]
            positions = key.without_nulls(self.keys.find(key.values), 0)
            made |= {name: table.take_or_null(positions) for name, table in self.tables.items()}
        return {name: made[name] for name in self.wanted}
