"""The rows that a Workflow reads: a source of them, cut into row ranges, each read at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tutorlib.columns import Chunk
from tutorlib.parquet import ParquetSource, RowRange

RANGE_ROWS = 262_144  # most rows of a row range; Criteo's 40 columns take 320 bytes a row

ColumnType = tuple[str, bool]  # NumPy name of one value or "string", whether a row holds a list


def as_source(data: Any) -> ParquetSource:
    """Return `data` as a `ParquetSource`.

    Args:
        data: a `ParquetSource`, also of some rows (`split_rows`); a `Chunk`, or a list of chunks of
            equal columns; or what `ParquetSource` takes: paths, a pyarrow Table, a DataFrame.

    Example:
        >>> import numpy as np
        >>> as_source(Chunk({"x": np.arange(2)})).column_types
        {'x': ('int64', False)}
    """
    if isinstance(data, ParquetSource):
        return data
    if of_chunks(data):
        chunks = data if isinstance(data, list | tuple) else [data]
        data = pa.concat_tables([chunk.to_arrow() for chunk in chunks])
    return ParquetSource(data)


def of_chunks(data: Any) -> bool:
    """Return whether data is a `Chunk`, or a list of chunks."""
    chunks = data if isinstance(data, list | tuple) else [data]
    return bool(chunks) and all(isinstance(chunk, Chunk) for chunk in chunks)


def row_ranges_in(source: ParquetSource, order: Iterable[int] | None = None) -> list[RowRange]:
    """Return all rows of a source as row ranges of at most `RANGE_ROWS` rows.

    `order` gives the positions of the row groups in another order than that of the source.

    Example:
        >>> import numpy as np
        >>> row_ranges_in(as_source(Chunk({"x": np.arange(9)})))
        [RowRange(row_group=0, start=0, stop=9)]
    """
    groups = source.row_groups
    return [
        RowRange(position, start, min(start + RANGE_ROWS, groups[position].num_rows))
        for position in (range(len(groups)) if order is None else order)
        for start in range(0, groups[position].num_rows, RANGE_ROWS)
    ]


def split_by_rows(row_ranges: Iterable[RowRange], rows: int) -> list[list[RowRange]]:
    """Return the row ranges in lists of exactly `rows` rows each; the last list has the rest.

    Example:
        >>> ranges = [RowRange(0, 0, 5), RowRange(1, 0, 5)]
        >>> [[row_range.num_rows for row_range in some] for some in split_by_rows(ranges, 4)]
        [[4], [1, 3], [2]]
    """
    lists: list[list[RowRange]] = []
    taken = 0
    for row_range in row_ranges:
        start = row_range.start
        while start < row_range.stop:
            if taken % rows == 0:
                lists.append([])
            end = min(row_range.stop, start + rows - taken % rows)
            lists[-1].append(RowRange(row_range.row_group, start, end))
            taken, start = taken + end - start, end
    return lists


def read_range(source: ParquetSource, row_range: RowRange, columns: Sequence[str]) -> Chunk:
    """Return the named columns of a row range.

    A row group of up to `RANGE_ROWS` rows is read whole and then sliced: reading a slice would keep
    the row group's file open.
    """
    position, start, stop = row_range.row_group, row_range.start, row_range.stop
    rows = source.row_groups[position].num_rows
    if row_range.num_rows < rows <= RANGE_ROWS:
        return source.read(position, columns, 0, rows).slice(start, stop)
    return source.read(position, columns, start, stop)


def input_paths(source: ParquetSource) -> list[str]:
    """Return the files of this machine that a source reads, and the folders that it was given."""
    return [*source.files, *map(os.fspath, source.paths)] if source.is_local else []


@contextlib.contextmanager
def locate_errors(source: ParquetSource, row_range: RowRange) -> Iterator[None]:
    """Add the location of a row range to each TypeError and ValueError raised in the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (In {source.location(row_range.row_group)}.)") from error
