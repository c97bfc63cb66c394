"""Parts: what rows come from, as pieces that are read one by one, in any order, on any machine.

`as_source` makes one kind of thing of all that a `Workflow` learns from: something with row groups
of known sizes that reads rows [start, stop) of one of them. `row_ranges_of` cuts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tutorlib.chunk import Chunk
from tutorlib.ops import column_type
from tutorlib.parquet import ParquetSource, RowGroup, RowRange

RANGE_ROWS = 262_144  # most rows of a part; Criteo's 40 columns take 320 bytes a row
INTERFACE = ("row_groups", "column_types", "num_rows", "read", "location", "fingerprint")


class Chunks:
    """Chunks in memory, with the interface of a `ParquetSource`: each is a row group.

    Args:
        chunks: with the same columns, at least one.

    Example:
        >>> import numpy as np
        >>> source = Chunks([Chunk({"x": np.arange(2)}), Chunk({"x": np.arange(1)})])
        >>> source.num_rows, source.read(0, ["x"], 1, 2)["x"].tolist()
        (3, [1])
    """

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = list(chunks)
        self.row_groups = [RowGroup(0, i, c.num_rows) for i, c in enumerate(self._chunks)]
        self.num_rows = sum(group.num_rows for group in self.row_groups)

    @property
    def column_types(self) -> dict[str, tuple[str, bool]]:
        """{name: (NumPy name of one value or "string", whether a row holds a list)}."""
        return {name: column_type(column) for name, column in self._chunks[0].items()}

    def read(self, position: int, columns: Sequence[str], start: int, stop: int) -> Chunk:
        """Return rows [start, stop) of a chunk, without copying."""
        return self._chunks[position].select(columns).slice(start, stop)

    def location(self, position: int) -> str:
        """Return words for where a chunk stands, for an error message."""
        return f"chunk {position}" if len(self._chunks) > 1 else ""

    def fingerprint(self) -> None:
        """Return None: what is in memory is not told apart."""


def as_source(data: Any) -> Any:
    """Return `data` as something with the interface of a `ParquetSource`.

    Args:
        data: `ParquetSource`, rows of one (`split_rows`), its paths, a `Chunk`, a list of chunks, a
            `pyarrow.Table` or a `pandas.DataFrame`.

    Raises:
        ValueError: if there are no rows.

    Example:
        >>> as_source(pa.table({"x": [1, 2]})).column_types
        {'x': ('int64', False)}
    """
    if hasattr(data, "to_parquet") and hasattr(data, "columns"):  # a pandas DataFrame
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table):
        data = Chunk.from_arrow(data)
    if isinstance(data, Chunk):
        data = Chunks([data])
    elif isinstance(data, list | tuple) and all(isinstance(row_range, Chunk) for row_range in data):
        data = Chunks(data)
    elif not all(hasattr(data, name) for name in INTERFACE):
        data = ParquetSource(data)
    if not data.row_groups:
        raise ValueError("there are no rows to read")
    return data


def row_ranges_of(source: Any, order: Iterable[int] | None = None) -> list[RowRange]:
    """Return all rows as parts of at most `RANGE_ROWS` rows, by row groups in the given order.

    Example:
        >>> import numpy as np
        >>> source = as_source(Chunk({"x": np.arange(300_000)}))
        >>> [(some.start, some.stop) for some in row_ranges_of(source)]
        [(0, 262144), (262144, 300000)]
    """
    return [
        RowRange(position, start, min(start + RANGE_ROWS, source.row_groups[position].num_rows))
        for position in (range(len(source.row_groups)) if order is None else order)
        for start in range(0, max(1, source.row_groups[position].num_rows), RANGE_ROWS)
    ]


def cut(row_ranges: Iterable[RowRange], rows: int) -> list[list[RowRange]]:
    """Return the parts in lists of exactly `rows` rows each, the last one with what is left.

    Example:
        >>> ranges = [RowRange(0, 0, 5), RowRange(1, 0, 5)]
        >>> [[part.num_rows for part in parts] for parts in cut(ranges, 4)]
        [[4], [1, 3], [2]]
    """
    lists: list[list[RowRange]] = [[]]
    room = rows
    for row_range in row_ranges:
        start = row_range.start
        while row_range.stop - start > room:
            lists[-1].append(RowRange(row_range.row_group, start, start + room))
            lists.append([])
            start, room = start + room, rows
        lists[-1].append(RowRange(row_range.row_group, start, row_range.stop))
        room -= row_range.stop - start
    return lists


def read(source: Any, row_range: RowRange, names: Sequence[str]) -> Chunk:
    """Return the named columns of a part.

    Of a row group of up to `RANGE_ROWS` rows all rows are read, for that keeps no file open.
    """
    rows = source.row_groups[row_range.row_group].num_rows
    if row_range.num_rows < rows <= RANGE_ROWS:
        return source.read(row_range.row_group, names, 0, rows).slice(
            row_range.start, row_range.stop
        )
    return source.read(row_range.row_group, names, row_range.start, row_range.stop)


@contextlib.contextmanager
def errors_at(source: Any, row_range: RowRange) -> Iterator[None]:
    """Add to an error about values where the part stands."""
    try:
        yield
    except (TypeError, ValueError) as error:
        place = source.location(row_range.row_group)
        if not place:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (In {place}.)") from error
