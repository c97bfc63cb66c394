"""What a Workflow reads: row groups of known sizes, in files or in memory.

`as_source` makes a `RowSource` of everything that `Workflow.fit` accepts, and `row_ranges_in` lists
the row ranges that threads and cluster workers then read in any order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pyarrow.fs import LocalFileSystem

from tutorlib.columns import Chunk
from tutorlib.ops import column_type
from tutorlib.parquet import ParquetSource, RowGroup, RowRange
from tutorlib.storage import as_arrow_filesystem

RANGE_ROWS = 262_144  # most rows of a row range; Criteo's 40 columns take 320 bytes a row

ColumnType = tuple[str, bool]  # NumPy name of one value or "string", whether a row holds a list


@runtime_checkable
class RowSource(Protocol):
    """Rows in row groups of known sizes. `ParquetSource`, `Chunks` and `SourceRows` are such.

    Any class with these members can be given to `Workflow.fit`. Methods are called from several
    threads at a time; row groups are named by their position in `row_groups`.
    """

    @property
    def row_groups(self) -> Sequence[RowGroup]:
        """The row groups, in order."""

    @property
    def num_rows(self) -> int:
        """Rows of all row groups."""

    @property
    def column_types(self) -> Mapping[str, ColumnType]:
        """{column: (NumPy name of one value or "string", whether a row holds a list)}."""

    @property
    def files(self) -> Sequence[str]:
        """Paths or URLs of the files that hold the rows; empty if the rows are in memory."""

    def read(self, position: int, columns: Sequence[str], start: int, stop: int, /) -> Chunk:
        """Return the named columns of rows [start, stop) of a row group."""

    def location(self, position: int, /) -> str:
        """Return what error messages call a row group; "" if there is nothing to tell."""

    def fingerprint(self) -> dict[str, Any] | None:
        """Return JSON values that differ between data sets; None if that cannot be known."""


class Chunks:
    """Chunks in memory as a `RowSource`: each chunk is a row group.

    Args:
        chunks: at least one, all with the same columns.

    Example:
        >>> import numpy as np
        >>> source = Chunks([Chunk({"x": np.arange(2)}), Chunk({"x": np.arange(1)})])
        >>> source.num_rows, source.read(0, ["x"], 1, 2)["x"].tolist()
        (3, [1])
    """

    files: Sequence[str] = ()

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = list(chunks)
        self.row_groups = [RowGroup(0, i, c.num_rows) for i, c in enumerate(self._chunks)]
        self.num_rows = sum(group.num_rows for group in self.row_groups)

    @property
    def column_types(self) -> dict[str, ColumnType]:
        """As in `RowSource`."""
        return {name: column_type(column) for name, column in self._chunks[0].items()}

    def read(self, position: int, columns: Sequence[str], start: int, stop: int) -> Chunk:
        """Return the named columns of rows [start, stop) of a chunk, without copying."""
        return self._chunks[position].select(columns).slice(start, stop)

    def location(self, position: int) -> str:
        """Return "chunk 3", or "" if there is only one chunk."""
        return f"chunk {position}" if len(self._chunks) > 1 else ""

    def fingerprint(self) -> None:
        """Return None: in-memory data has no fingerprint."""


def as_source(data: Any) -> RowSource:
    """Return `data` as a `RowSource`.

    Args:
        data: `ParquetSource`, rows of one (`split_rows`), any other `RowSource`, a `Chunk`, a list
            of chunks, or what `ParquetSource` takes: paths, a pyarrow Table, a DataFrame.

    Raises:
        ValueError: if there are no row groups.

    Example:
        >>> import pyarrow as pa
        >>> as_source(pa.table({"x": [1, 2]})).column_types
        {'x': ('int64', False)}
    """
    if isinstance(data, Chunk):
        data = [data]
    if isinstance(data, list | tuple) and all(isinstance(chunk, Chunk) for chunk in data):
        data = Chunks(data)
    source = data if isinstance(data, RowSource) else ParquetSource(data)
    if not source.row_groups:
        raise ValueError("the data has no rows: give at least one chunk or row group")
    return source


def row_ranges_in(source: RowSource, order: Iterable[int] | None = None) -> list[RowRange]:
    """Return all rows of a source as row ranges of at most `RANGE_ROWS` rows.

    `order` gives the positions of the row groups in another order than that of the source.

    Example:
        >>> import numpy as np
        >>> source = as_source(Chunk({"x": np.arange(300_000)}))
        >>> [(row_range.start, row_range.stop) for row_range in row_ranges_in(source)]
        [(0, 262144), (262144, 300000)]
    """
    groups = source.row_groups
    return [
        RowRange(position, start, min(start + RANGE_ROWS, groups[position].num_rows))
        for position in (range(len(groups)) if order is None else order)
        for start in range(0, max(1, groups[position].num_rows), RANGE_ROWS)
    ]


def split_by_rows(row_ranges: Iterable[RowRange], rows: int) -> list[list[RowRange]]:
    """Return the row ranges in lists of exactly `rows` rows each; the last list has the rest.

    Example:
        >>> ranges = [RowRange(0, 0, 5), RowRange(1, 0, 5)]
        >>> [[row_range.num_rows for row_range in some] for some in split_by_rows(ranges, 4)]
        [[4], [1, 3], [2]]
    """
    lists: list[list[RowRange]] = [[]]
    room = rows
    for row_range in row_ranges:
        start = row_range.start
        while row_range.stop - start > room:
            if room:
                lists[-1].append(RowRange(row_range.row_group, start, start + room))
            lists.append([])
            start, room = start + room, rows
        lists[-1].append(RowRange(row_range.row_group, start, row_range.stop))
        room -= row_range.stop - start
    return lists


def read_range(source: RowSource, row_range: RowRange, columns: Sequence[str]) -> Chunk:
    """Return the named columns of a row range.

    A row group of up to `RANGE_ROWS` rows is read whole and then sliced: reading a slice would keep
    the row group's file open.
    """
    position, start, stop = row_range.row_group, row_range.start, row_range.stop
    rows = source.row_groups[position].num_rows
    if row_range.num_rows < rows <= RANGE_ROWS:
        return source.read(position, columns, 0, rows).slice(start, stop)
    return source.read(position, columns, start, stop)


def input_paths(source: RowSource) -> list[str]:
    """Return the files that a source reads, and the folders that it was given, if it knows them.

    Those of a filesystem other than this machine's are URLs, of which `refuse_overlap` knows them.
    """
    paths = [*source.files, *map(os.fspath, getattr(source, "paths", ()))]
    filesystem = getattr(source, "filesystem", None)
    if filesystem is None or isinstance(where := as_arrow_filesystem(filesystem), LocalFileSystem):
        return paths
    return [path if "://" in path else f"{where.type_name}://{path}" for path in paths]


@contextlib.contextmanager
def locate_errors(source: RowSource, row_range: RowRange) -> Iterator[None]:
    """Add the location of a row range to each TypeError and ValueError raised in the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        location = source.location(row_range.row_group)
        if not location:
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (In {location}.)") from error
