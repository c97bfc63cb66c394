"""Chunk: some rows of a data set as columns by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tutorlib.chunk.arrow import column_from_arrow, column_to_arrow
from tutorlib.chunk.columns import Array, concat_columns, slice_rows, take


class Chunk(Mapping[str, Any]):
    """Some rows of a data set: columns of equal length by name.

    Args:
        columns: {name: column} of the kinds in `tutorlib/chunk/columns.py`, all of one length.

    Raises:
        ValueError: if the columns differ in length.

    Example:
        >>> import numpy as np
        >>> from tutorlib.chunk import Ragged
        >>> tags = Ragged(np.arange(3), np.array([0, 1, 3]))
        >>> chunk = Chunk({"id": np.array([7, 8]), "tags": tags})
        >>> chunk.num_rows, chunk.take(np.array([1, 0]))["tags"].tolist()
        (2, [[1, 2], [0]])
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = dict(columns)
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a chunk must have equal lengths, got {lengths}")
        self.num_rows = next(iter(lengths.values()), 0)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}; the chunk has {self.names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"Chunk({self.num_rows} rows x {self.names})"

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of memory of all columns."""
        return sum(column.nbytes for column in self.columns.values())

    def select(self, names: Sequence[str]) -> Chunk:
        """Return the named columns, in the order of `names`."""
        return Chunk({name: self[name] for name in names})

    def drop(self, names: Sequence[str]) -> Chunk:
        """Return all columns but the named ones."""
        return Chunk({name: column for name, column in self.items() if name not in names})

    def with_columns(self, columns: Mapping[str, Any]) -> Chunk:
        """Return a chunk with the given columns added or replaced."""
        return Chunk({**self.columns, **columns})

    def slice(self, start: int, stop: int) -> Chunk:
        """Return rows [start, stop); values are shared, not copied."""
        return Chunk({name: slice_rows(column, start, stop) for name, column in self.items()})

    def take(self, rows: Array) -> Chunk:
        """Return the given rows (int64 [m]), in the given order."""
        return Chunk({name: take(column, rows) for name, column in self.items()})

    @staticmethod
    def concat(chunks: Sequence[Chunk]) -> Chunk:
        """Return the rows of several chunks, concatenated.

        Raises:
            ValueError: if the chunks have different columns.
        """
        names = chunks[0].names
        for chunk in chunks:
            if set(chunk.names) != set(names):
                raise ValueError(f"chunks have different columns: {names} and {chunk.names}")
        return Chunk({name: concat_columns([chunk[name] for chunk in chunks]) for name in names})

    @classmethod
    def from_arrow(cls, table: Any) -> Chunk:
        """Return the rows of a `pyarrow.Table` or `RecordBatch`; numbers are not copied."""
        return cls({name: column_from_arrow(table[name]) for name in table.schema.names})

    def to_arrow(self) -> Any:
        """Return the rows as a `pyarrow.Table`."""
        import pyarrow as pa

        return pa.table({name: column_to_arrow(column) for name, column in self.items()})

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`; lists become arrays."""
        return self.to_arrow().to_pandas()
