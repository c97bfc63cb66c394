"""GroupOp: what JoinGroupby and TargetEncoding share: numbers learned per key, then looked up."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tutorlib.columns import (
    Array,
    Chunk,
    Masked,
    Ragged,
    array_namespace,
    as_lists,
    column_from_arrow,
    flat_values,
    row_ids,
    to_host,
)
from tutorlib.memory import DeviceCache
from tutorlib.ops.base import SpillingOp
from tutorlib.ops.shared.columns import float_dtype
from tutorlib.ops.shared.group_sums import GroupSums
from tutorlib.ops.shared.keys import CombinationIndex, combination_name
from tutorlib.schema import Column


class GroupOp(SpillingOp):
    """Learns numbers from the rows that share a key, and gives them to each row with that key."""

    def __init__(self, combo: bool, name: str | None, dtype: str) -> None:
        op = type(self).__name__
        if name is not None and not combo:
            raise ValueError(f"{op}: name={name!r} names a combination; pass combo=True")
        self.combo, self.name = combo, name
        self.dtype = float_dtype(dtype, op)
        self.reset()

    @abstractmethod
    def output_suffixes(self) -> list[str]:
        """Return what is learned of each key; an output column is named `{key}_{suffix}`."""

    @abstractmethod
    def numbers_of(self, key: str, suffix: str) -> np.ndarray:
        """Return the numbers of a new key, then those of each learned key: [1 + keys].

        With folds, a row has one number for each view: [1 + keys, 1 + folds].
        """

    @abstractmethod
    def _learn_key(
        self, key: str, blocks: Iterable[GroupSums], learned: dict[str, dict[str, Any]]
    ) -> Chunk:
        """Return the table of one key, from its groups; add to `learned` what else it has.

        Several blocks are in the order of keys.
        """

    def key_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the keys that the columns of the group make."""
        return [combination_name(self.name, names)] if self.combo else list(names)

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns if a key of theirs is not known."""
        return [] if all(key in self._tables for key in self.key_names(names)) else list(names)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return `{key}_{suffix}` of all keys and suffixes; the keys themselves are dropped."""
        return [f"{key}_{suffix}" for key, suffix in self._outputs(names)]

    def _outputs(self, names: Sequence[str]) -> list[tuple[str, str]]:
        return [(k, suffix) for k in self.key_names(names) for suffix in self.output_suffixes()]

    def parts_of_output(self, output: str, names: Sequence[str]) -> tuple[str, str]:
        """Return (key, suffix) of an output column of a group with columns `names`."""
        return next(parts for parts in self._outputs(names) if "_".join(parts) == output)

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return continuous columns, lists where the key is one of lists."""
        multi_hot = {} if self.combo else {column.name: column.multi_hot for column in columns}
        return [
            Column(f"{key}_{suffix}", "continuous", self.dtype, multi_hot.get(key, False))
            for key, suffix in self._outputs([column.name for column in columns])
        ]

    def _parts_by_key(self, chunk: Chunk) -> dict[str, dict[str, Any]]:
        """Return {key: {column: values}} of the group's columns."""
        own = chunk.drop([*self.extra_columns, *self.extra_fit_columns])
        keys = self.key_names(own.names)
        if not self.combo:
            return {key: {key: as_lists(own[key])} for key in keys}
        for name, column in own.items():
            self._check_no_lists(name, column)
        return {keys[0]: dict(own)}

    def _sums(self, chunk: Chunk, names: Sequence[str], **options: bool) -> dict[str, GroupSums]:
        """Return {key: sums of the named columns}; each value of a list counts as a row."""
        summed = {name: self._summed(name, chunk[name]) for name in names}
        state, folds = {}, self._folds(chunk)
        folds = None if folds is None else to_host(folds)
        for key, parts in self._parts_by_key(chunk).items():
            values, repeated = summed, None
            (first, *_) = parts.values()
            if isinstance(first, Ragged):
                repeated = to_host(row_ids(first.offsets))
                values = {name: column[repeated] for name, column in summed.items()}
            flat_parts = [flat_values(part) for part in parts.values()]
            for name, part in zip(parts, flat_parts, strict=True):
                self._keys_to_learn(name, part)
            if folds is not None:
                flat_parts.append(folds if repeated is None else folds[repeated])
            state[key] = GroupSums.of(flat_parts, values, **options)
        return state

    def _folds(self, chunk: Chunk) -> Array | None:
        """Return int32 [n], the fold of each row, which splits each group; None without folds."""
        return None

    def _summed(self, name: str, column: Any) -> np.ndarray:
        self._check_no_lists(name, column)
        values = to_host(self._floats(name, column))
        self._check_size(name, values[~np.isnan(values)])
        return values

    def learned_from(
        self, state: dict[str, GroupSums | Iterable[GroupSums]]
    ) -> tuple[dict[str, Any], dict[str, Chunk]]:
        """Return (what is learned besides, {key: table of its groups})."""
        learned = {name: dict(known) for name, known in self.learned().items()}
        tables = dict(self._tables)
        for key, sums in state.items():
            blocks = [sums] if isinstance(sums, GroupSums) else sums
            tables[key] = self._learn_key(key, blocks, learned)
        return learned, tables

    @staticmethod
    def _table(groups: GroupSums, numbers: Mapping[str, np.ndarray]) -> Chunk:
        """Return groups and their numbers as a table: `key_0`, `key_1`, ..., then the numbers."""
        keys = {f"key_{k}": column_from_arrow(key) for k, key in enumerate(groups.keys)}
        return Chunk({**keys, **numbers})

    def _index(self, key: str, table: Chunk) -> CombinationIndex:
        return CombinationIndex([c for n, c in table.items() if re.fullmatch(r"key_\d+", n)])

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Set the tables, and copy their numbers to each device that asks for them."""
        super().restore(learned, tables)
        self._by_key = {
            (key, suffix): DeviceCache(self.numbers_of(key, suffix))
            for key in tables
            for suffix in self.output_suffixes()
        }

    def _positions(self, key: str, parts: Mapping[str, Any]) -> Array:
        """Return the position of each row's key in the table, from 1; 0 if it is new, or null."""
        index = self.index_of(key)
        for (name, part), known in zip(parts.items(), index.parts, strict=True):
            self._keys(name, part)
            self._check_kind(name, part, known)
        found = index.find(list(parts.values()))
        for part in parts.values():
            if isinstance(part, Masked):
                found[~part.valid] = 0
        return found

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the numbers of each row's keys."""
        result: dict[str, Any] = {}
        folds = self._folds(chunk)
        for key, parts in self._parts_by_key(chunk).items():
            (first, *_) = parts.values()
            offsets = first.offsets if isinstance(first, Ragged) else None
            at: Any = self._positions(
                key, {name: flat_values(part) for name, part in parts.items()}
            )
            xp = array_namespace(at)
            if folds is not None:
                at = at, 1 + (folds if offsets is None else folds[row_ids(offsets)])
            for suffix in self.output_suffixes():
                numbers = self._by_key[key, suffix].on(xp)[at]
                result[f"{key}_{suffix}"] = numbers if offsets is None else Ragged(numbers, offsets)
        return Chunk(result)
