"""GroupOp: what JoinGroupby and TargetEncoding share: numbers learned of groups, then looked up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tutorlib.chunk import (
    Array,
    Chunk,
    Masked,
    Ragged,
    Strings,
    column_from_arrow,
    row_ids,
    take,
    to_host,
)
from tutorlib.ops.base import SpillingOp
from tutorlib.ops.columns import column_type, flat, float_dtype
from tutorlib.ops.groups import GroupSums
from tutorlib.ops.keys import CombinationIndex
from tutorlib.schema import Column


class GroupOp(SpillingOp):
    """Learns numbers of the rows that share a key, and gives them to each row with that key.

    Args:
        combo: whether the columns of the group make one key together; else each is one by itself.
        name: of the key that columns make together; None joins their names by "_X_".
        dtype: of what comes out.
    """

    def __init__(self, combo: bool, name: str | None, dtype: str) -> None:
        op = type(self).__name__
        if name is not None and not combo:
            raise ValueError(f"{op}: name={name!r} is that of a combination; pass combo=True")
        self.combo, self.name = combo, name
        self.dtype = float_dtype(dtype, op)
        self.reset()

    @abstractmethod
    def made(self) -> list[str]:
        """Return what is made of each key: the ends of the names that come out."""

    def reset(self) -> None:
        """Forget what was learned."""
        self.restore({}, {})

    def key_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the keys that the columns of the group make."""
        return [self.name or "_X_".join(names)] if self.combo else list(names)

    def unlearned(self, names: Sequence[str]) -> list[str]:
        """Return the columns of whose keys nothing is known."""
        return [] if all(key in self._tables for key in self.key_names(names)) else list(names)

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the numbers; the keys do not come out."""
        return [f"{key}_{made}" for key in self.key_names(names) for made in self.made()]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the numbers as continuous columns."""
        hot = [False] if self.combo else [column.multi_hot for column in columns]
        return [
            Column(f"{key}_{made}", "continuous", self.dtype, multi_hot)
            for key, multi_hot in zip(self.key_names([c.name for c in columns]), hot, strict=True)
            for made in self.made()
        ]

    def parts_of_output(self, output: str, names: Sequence[str]) -> tuple[str, str]:
        """Return (key, what is made of it) of the column `output`; `names` make the keys."""
        pairs = ((key, made) for key in self.key_names(names) for made in self.made())
        return next(pair for pair in pairs if "_".join(pair) == output)

    # ------------------------------------------------------------------------------ keys of rows

    def _parts_by_key(self, chunk: Chunk) -> dict[str, dict[str, Any]]:
        """Return {key: {column: values}} of the group's columns."""
        own = chunk.drop([*self.extra_columns, *self.extra_fit_columns])
        keys = self.key_names(own.names)
        if not self.combo:
            return {key: {key: own[key]} for key in keys}
        for name, column in own.items():
            if isinstance(column, Ragged):
                raise TypeError(self._wrong(name, "combines one value a row, got lists"))
        return {keys[0]: dict(own)}

    def _sums(self, chunk: Chunk, names: Sequence[str], **options: bool) -> dict[str, GroupSums]:
        """Return {key: sums of the named columns}; of a list each value is a row of its own."""
        summed = {name: self._summed(name, chunk[name]) for name in names}
        state = {}
        for key, parts in self._parts_by_key(chunk).items():
            values, repeated = summed, None
            (first, *_) = parts.values()
            if isinstance(first, Ragged):
                repeated = to_host(row_ids(first.offsets))
                values = {name: column[repeated] for name, column in summed.items()}
            flat_parts = [flat(part) for part in parts.values()]
            for name, part in zip(parts, flat_parts, strict=True):
                self._keys_to_learn(name, part)
            flat_parts += [
                part if repeated is None else take(part, repeated)
                for part in self._more_parts(chunk)
            ]
            state[key] = GroupSums.of(flat_parts, values, **options)
        return state

    def _more_parts(self, chunk: Chunk) -> list[Any]:
        """Return columns that split each group further, in the CPU's memory."""
        return []

    def _summed(self, name: str, column: Any) -> np.ndarray:
        if isinstance(column, Ragged):
            raise TypeError(self._wrong(name, "sums one value a row, got lists"))
        values = to_host(self._floats(name, column))
        self._check_size(name, values[~np.isnan(values)])
        return values

    def merge_states(self, states: Sequence[GroupSums]) -> GroupSums:
        """Return the sums of all."""
        return GroupSums.merged(states)

    def to_table(self, state: GroupSums) -> pa.Table:
        """Return the groups as rows."""
        return state.to_table()

    def from_table(self, table: pa.Table) -> GroupSums:
        """Return the sums of groups."""
        return GroupSums.from_table(table)

    def gathered(self, key: str, states: Iterable[GroupSums]) -> Iterable[GroupSums]:
        """Return the sums as they come: only what is learned of them has to fit into memory."""
        return states

    def finalize(self, state: dict[str, GroupSums | Iterable[GroupSums]]) -> None:
        """Keep the numbers of each key."""
        for key, sums in state.items():
            self._finalize_key(key, [sums] if isinstance(sums, GroupSums) else sums)

    @abstractmethod
    def _finalize_key(self, key: str, blocks: Iterable[GroupSums]) -> None:
        """Keep the numbers of one key, whose groups come in blocks, in order if there are several.

        Args:
            key: its name.
            blocks: may be gone through several times.
        """

    # -------------------------------------------------------------------------- what was learned

    @staticmethod
    def _table(groups: GroupSums, numbers: Mapping[str, np.ndarray]) -> Chunk:
        """Return the table of some keys: `key_0`, `key_1`, ..., then the numbers of each."""
        keys = {f"key_{place}": column_from_arrow(key) for place, key in enumerate(groups.keys)}
        return Chunk({**keys, **numbers})

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {key: `key_0`, `key_1`, ... in order, and the numbers of each key}."""
        return dict(self._tables)

    def restore(self, learned: dict[str, Any], tables: Mapping[str, Chunk]) -> None:
        """Take the tables back."""
        self._tables = dict(tables)
        self._indexes = {key: CombinationIndex(_keys_of(table)) for key, table in tables.items()}

    def index_of(self, key: str) -> CombinationIndex:
        """Return what finds a key in its table."""
        return self._indexes[key]

    @abstractmethod
    def number_of_new_key(self, key: str, made: str) -> float:
        """Return what a row gets whose key was not learned, or is null."""

    def _places(self, key: str, parts: Mapping[str, Any]) -> Array:
        """Return the place of each row's key in the table, from 1; 0 if it is new, or null."""
        index = self.index_of(key)
        for (name, part), known in zip(parts.items(), index.parts, strict=True):
            values, _ = self._keys(name, part)
            if isinstance(values, Strings) != isinstance(known, Strings):
                kinds = [column_type(known)[0], column_type(part)[0]]
                raise TypeError(self._wrong(name, f"knows keys of {kinds[0]}, got {kinds[1]}"))
        found = index.find(list(parts.values()))
        for part in parts.values():
            if isinstance(part, Masked):
                found[~part.valid] = 0
        return found

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the numbers of each row's keys."""
        result = {}
        for key, parts in self._parts_by_key(chunk).items():
            (first, *_) = parts.values()
            values = {name: flat(part) for name, part in parts.items()}
            places = self._places(key, values)
            offsets = first.offsets if isinstance(first, Ragged) else None
            for made, numbers in self._numbers_at(key, places, chunk, offsets).items():
                result[f"{key}_{made}"] = (
                    Ragged(numbers, offsets) if offsets is not None else numbers
                )
        return Chunk(result)

    @abstractmethod
    def _numbers_at(
        self, key: str, places: Array, chunk: Chunk, offsets: Array | None
    ) -> dict[str, Array]:
        """Return {what is made: numbers} at places of a table, counted from 1; 0 for new keys."""


def _keys_of(table: Chunk) -> list[Any]:
    return [column for name, column in table.items() if name.startswith("key_")]
