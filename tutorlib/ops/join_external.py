"""JoinExternal: columns of another table, found by a key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.columns import Chunk, array_namespace
from tutorlib.hashing import KeyIndex
from tutorlib.memory import DeviceCache
from tutorlib.ops.base import Op
from tutorlib.ops.shared.columns import column_type, take_or_null
from tutorlib.ops.shared.keys import find_keys
from tutorlib.schema import Column, role_of


class JoinExternal(Op):
    """Adds columns of another table, found by the key column `on`; no row is added or dropped.

    The table is held in memory and saved with the workflow.

    Returns (from transform): the columns that come in, then those of the table in their dtypes. A
    null key, or one that is not in the table, gives a null: NaN in floating point, an empty list in
    a column of lists.

    Args:
        table: `pandas.DataFrame`, `pyarrow.Table`, `Chunk`, or path of a Parquet file.
        on: key column, integers or strings, with the same name on both sides.
        columns_ext: columns of the table to add; None for all but the key.

    Raises:
        ValueError: if the table has no rows, a key twice or a null key, or lacks a column.
        TypeError: if the key holds strings on one side and integers on the other, floats or lists.

    Example:
        >>> import numpy as np
        >>> movies = pa.table({"movieId": [1, 2], "genres": [["Comedy"], ["Drama", "War"]]})
        >>> group = ["movieId"] >> JoinExternal(movies, on="movieId")
        >>> group.transform(Chunk({"movieId": np.array([2, 9])}))["genres"].tolist()
        [['Drama', 'War'], []]
        >>> group["genres"].output_names
        ['genres']
    """

    def __init__(self, table: Any, on: str, columns_ext: Sequence[str] | None = None) -> None:
        table = _read_table(table)
        wanted = list(columns_ext or [name for name in table.names if name != on])
        missing = [name for name in [on, *wanted] if name not in table]
        if missing or on in wanted:
            raise ValueError(
                f"JoinExternal: columns {missing or [on]} cannot be joined; the table has "
                f"{table.names}, and {on!r} is the key"
            )
        if table.num_rows == 0:
            raise ValueError(self._wrong(on, "needs a table with rows, got none"))
        keys, valid = self._keys(on, table[on])
        if valid is not None:
            raise ValueError(self._wrong(on, "found a null key in the table. Drop those rows."))
        try:
            self.index = KeyIndex(keys)
        except ValueError as error:
            raise ValueError(self._wrong(on, f"needs a table with unique keys: {error}")) from error
        self.on, self.columns_ext = on, wanted
        self.table = table.select([on, *wanted])
        self._joined = {name: DeviceCache(table[name]) for name in wanted}

    def transform(self, chunk: Chunk) -> Chunk:
        """Return the columns and those joined."""
        self._check_no_lists(self.on, chunk[self.on])
        keys, valid = self._keys(self.on, chunk[self.on])
        self._check_kind(self.on, keys, self.index.keys)
        found = find_keys(self.index, keys)
        if valid is not None:
            found[~valid] = 0
        xp = array_namespace(found)
        return chunk.with_columns(
            {name: take_or_null(column.on(xp), found) for name, column in self._joined.items()}
        )

    def output_names(self, names: Sequence[str]) -> list[str]:
        """Return the names, then those of the table."""
        if self.on not in names:
            raise ValueError(f"JoinExternal: the key {self.on!r} is not among {list(names)}")
        twice = [name for name in self.columns_ext if name in names]
        if twice:
            raise ValueError(f"JoinExternal: columns {twice} are on both sides. Rename them.")
        return [*names, *self.columns_ext]

    def output_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the columns, then those of the table in the default role of their dtype."""
        joined = []
        for name in self.columns_ext:
            kind, is_list = column_type(self.table[name])
            joined.append(Column(name, role_of(kind)).with_type(kind, is_list))
        return [*columns, *joined]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments without the table."""
        return {"on": self.on, "columns_ext": self.columns_ext}

    @classmethod
    def from_config(cls, config: dict[str, Any], tables: Any, functions: Any) -> Op:
        """Return the op with its table."""
        return cls(tables["table"], **config)

    def learned_tables(self) -> dict[str, Chunk]:
        """Return {"table": the key and the joined columns}."""
        return {"table": self.table}


def _read_table(table: Any) -> Chunk:
    if isinstance(table, Chunk):
        return table
    if isinstance(table, str | os.PathLike):
        table = pq.read_table(table)
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    return Chunk.from_arrow(table)
