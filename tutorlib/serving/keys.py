"""Ops that hash or look up keys: bit for bit what their `transform` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tutorlib.ops import (
    FIRST_OOV_ID,
    NULL_ID,
    Categorify,
    HashBucket,
    HashedCross,
    JoinExternal,
    JoinGroupby,
    TargetEncoding,
)
from tutorlib.ops.shared.columns import id_dtype
from tutorlib.serving.base import Functions, ServedByColumn, ServedColumn, ServedOp, fixed, number
from tutorlib.serving.hashing import hash_values, mix, to_buckets
from tutorlib.serving.tables import CombinationTable, KeyTable, ValueTable


class ServedHashBucket(ServedByColumn[HashBucket]):
    """`HashBucket`."""

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return int32 buckets, 0 at a null."""
        ids = to_buckets(hash_values(column.values), self.op.cardinality(name))
        return column.with_values(column.without_nulls(ids, 0))


def combined_hashes(columns: Sequence[ServedColumn]) -> tf.Tensor:
    """Return the hash of each row's combination, uint64 [n]: see `ops.shared.keys`."""
    crossed = None
    for column in columns:
        hashes = column.without_nulls(hash_values(column.values), number(0, tf.uint64))
        crossed = mix(hashes if crossed is None else tf.bitwise.bitwise_xor(crossed, hashes))
    return crossed


class ServedHashedCross(ServedOp[HashedCross]):
    """`HashedCross`."""

    @classmethod
    def sources(cls, op: HashedCross, output: str, names: Sequence[str]) -> list[str]:
        """Return all columns."""
        return list(names)

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the one crossed column, int32."""
        crossed = combined_hashes([columns[name] for name in self.names])
        return {self.wanted[0]: ServedColumn(to_buckets(crossed, self.op.num_buckets))}


class ServedCategorify(ServedByColumn[Categorify]):
    """`Categorify`, of columns and of combinations."""

    @classmethod
    def sources(cls, op: Categorify, output: str, names: Sequence[str]) -> list[str]:
        """Return the column itself, or all columns of the combination."""
        return list(names) if op.combo else [output]

    def build(self, functions: Functions) -> None:
        """Keep the vocabularies; columns that share one share its variables."""
        one_column = {self.op.vocabulary_key(name): name for name in self.wanted}
        self.tables = {
            key: CombinationTable(self.op.index_of(name)) for key, name in one_column.items()
        }

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the ids of each column, or of the combination."""
        if not self.op.combo:
            return super().__call__(columns)
        (name,) = self.wanted
        parts = [columns[part] for part in self.names]
        valid = None  # a combination is null if all of its parts are
        if all(part.valid is not None for part in parts):
            valid = tf.reduce_any([part.valid for part in parts], axis=0)
        hashes = combined_hashes(parts) if self.op.num_oov_buckets > 1 else None
        found = self.tables[name].find(parts)
        return {name: ServedColumn(self._ids(name, found, hashes, valid))}

    def column(self, name: str, column: ServedColumn) -> ServedColumn:
        """Return the ids of one column's values."""
        hashed = column.values.dtype == tf.string or self.op.num_oov_buckets > 1
        hashes = hash_values(column.values) if hashed else None
        found = self.tables[self.op.vocabulary_key(name)].find([column], hashes)
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


class ServedGroupOp(ServedOp[JoinGroupby | TargetEncoding]):
    """`JoinGroupby` and `TargetEncoding`: numbers learned of groups of rows, found by key."""

    @classmethod
    def sources(
        cls, op: JoinGroupby | TargetEncoding, output: str, names: Sequence[str]
    ) -> list[str]:
        """Return the key's column, or all columns that make the key together."""
        return list(names) if op.combo else [op.parts_of_output(output, names)[0]]

    def build(self, functions: Functions) -> None:
        """Keep the keys, and the numbers of each wanted column after that of a new key."""
        self.keys: dict[str, CombinationTable] = {}
        self.numbers: dict[str, tf.Variable] = {}
        for name in self.wanted:
            key, suffix = self.op.parts_of_output(name, self.names)
            if key not in self.keys:
                self.keys[key] = CombinationTable(self.op.index_of(key))
            self.numbers[name] = fixed(self.op.numbers_of(key, suffix))

    def __call__(self, columns: Mapping[str, ServedColumn]) -> dict[str, ServedColumn]:
        """Return the numbers of each row's keys."""
        result: dict[str, ServedColumn] = {}
        positions: dict[str, tf.Tensor] = {}
        for name in self.wanted:
            key, _ = self.op.parts_of_output(name, self.names)
            parts = [columns[part] for part in self.sources(self.op, name, self.names)]
            if key not in positions:
                positions[key] = self._positions(key, parts)
            result[name] = parts[0].with_values(tf.gather(self.numbers[name], positions[key]))
        return result

    def _positions(self, key: str, columns: Sequence[ServedColumn]) -> tf.Tensor:
        """Return the position of each row's key, from 1; 0 if it is new, or null in any part."""
        found = self.keys[key].find(columns)
        for column in columns:
            found = column.without_nulls(found, 0)
        return found


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
