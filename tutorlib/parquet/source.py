"""Parquet in and out: `ParquetSource` reads row groups as `Chunk`, `ParquetSink` writes them.

A source knows from the footers alone how many rows each row group has and what every column is; it
reads a row group, a slice of it, or some columns, when asked, from any thread. Does not belong
here: how a file is read (`parquet_files.py`), which rows pass a filter (`row_filter.py`), which row
group is read when (`plan.py`), what is done to the values (`ops.py`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tutorlib.chunk import Chunk
from tutorlib.memory import MemorySpace, map_on_threads, memory_space
from tutorlib.parquet.files import (
    OPENING_THREADS,
    ParquetError,
    ParquetFiles,
    RowGroup,
    column_type,
)
from tutorlib.parquet.paths import DataFile, find_files
from tutorlib.parquet.sink import ParquetSink, fast_encoding

if TYPE_CHECKING:
    from tutorlib.parquet.filters import RowFilter
    from tutorlib.parquet.slices import Streams

__all__ = ["ParquetError", "ParquetSink", "ParquetSource", "RowGroup", "fast_encoding"]


class ParquetSource:
    """Parquet files as one sequence of row groups; opening it reads the footers only.

    Folders named `key=value`, as Hive and Spark write them, make a column `key` that is the same in
    all rows below; only those below a folder that is given, or all in the path of a file or pattern
    that is. With `filters`, rows that do not pass do not exist for anything that is asked of the
    source. Row groups for which neither keys nor statistics answer are counted on opening, by
    reading the columns that are asked about.

    Args:
        paths: file, folder, glob pattern or a list of these, also as URLs (`find_files`).
        filters: rows to keep, as a `pyarrow.compute.Expression` or a list of conditions such as
            `[("day", "<", 6), ("C1", "in", [1, 2])]` (`RowFilter`); None for all.
        filesystem: of `pyarrow.fs` or fsspec, in which `paths` are, in place of URLs.
        device: "cpu", where Arrow decodes into NumPy arrays; "gpu", where cuDF decodes into CuPy
            arrays (see `at`); None for "cpu".

    Attributes:
        files: the files, in order, as paths or URLs.
        row_groups: `RowGroup` of every row group over all files, in order. Empty ones are left out.
        num_rows: rows in all.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)}.
        streams: `Streams`, row groups that are being read in slices.
        memory: the `MemorySpace` in whose memory columns are; None for NumPy arrays of Arrow.

    Raises:
        FileNotFoundError: if no file is there.
        ParquetError: if a file is not Parquet, is cut short, or has other columns, keys or types
            than the first one.
        ValueError: if a filter cannot be understood or does not fit the columns.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder + "/a.parquet", row_group_rows=2) as sink:
        ...     sink.write(Chunk({"x": np.arange(5)}))
        >>> source = ParquetSource(folder)
        >>> len(source), source.num_rows, source.read(1)["x"].tolist()
        (3, 5, [2, 3])
        >>> some = ParquetSource(folder, filters=[("x", ">", 2)])
        >>> len(some), some.num_rows, some.read(0)["x"].tolist()
        (2, 2, [3])
    """

    def __init__(
        self,
        paths: Any,
        filters: Any = None,
        *,
        filesystem: Any = None,
        device: str | None = None,
    ) -> None:
        self.memory: MemorySpace | None = None
        if device not in (None, "cpu"):
            self.memory = memory_space(device)
        self._stored = ParquetFiles(find_files(paths, filesystem))
        self.files, self._footers = self._stored.paths, self._stored.footers
        self._keys = _typed_keys(self._stored.files, self._stored.schema.names)
        keys = [pa.field(name, value.type) for name, value in self._keys[0].items()]
        self.arrow_schema = pa.schema([*self._stored.schema, *keys])
        self.column_types = {field.name: column_type(field.type) for field in self.arrow_schema}
        self.row_groups = self._stored.row_groups()
        self._filter: RowFilter | None = None
        self._filtered: dict[int, Any] = {}  # position: row group of which only some rows pass
        if filters is not None:
            from tutorlib.parquet.filters import RowFilter

            self._filter = RowFilter(filters, self.arrow_schema)
            self._keep_what_passes(self._filter)
        self.num_rows = sum(group.num_rows for group in self.row_groups)
        self._device_reader = self._reader_at(self.memory)

    def __len__(self) -> int:
        return len(self.row_groups)

    def __repr__(self) -> str:
        return (
            f"ParquetSource({len(self.files)} files, {len(self)} row groups, {self.num_rows:,} "
            f"rows, {len(self.column_types)} columns)"
        )

    @property
    def _reader(self) -> Any:
        """What reads columns: the files themselves, or a `DeviceReader` over them."""
        return self._device_reader or self._stored

    def _reader_at(self, place: MemorySpace | None) -> Any:
        if place is None:
            return None
        from tutorlib.parquet.device_reader import DeviceReader

        return DeviceReader(self._stored, place)

    def at(self, place: MemorySpace | None) -> ParquetSource:
        """Return a source of the same rows whose columns are in the memory of a place.

        Slices of a row group that is larger than what is wanted at a time cost its whole memory
        there, as long as not all of them have been read: a GPU decodes it once, and keeps it. Code
        that works on a GPU's columns does so within `with place.work()` (see `places.py`).

        Args:
            place: such as `gpu_space()`; None for NumPy arrays of Arrow.
        """
        other = copy.copy(self)
        other.memory, other._stored = place, copy.copy(self._stored)
        other._device_reader = other._reader_at(place)
        return other

    def save_memory(self) -> None:
        """Need less of a device's memory from now on, at the cost of time; else nothing."""
        if self.memory is not None:
            self._reader.save_memory()

    @property
    def streams(self) -> Streams:
        """The row groups that are being read in slices; its `limit` says how many stay open."""
        return self._stored.streams

    def _keep_what_passes(self, row_filter: RowFilter) -> None:
        """Leave out row groups and rows that do not pass the filter."""

        def possible(group: RowGroup) -> dict[int, Any]:
            with self._stored.errors_at(group):
                return row_filter.row_groups(self._stored.files[group.file], self._keys[group.file])

        def count(group: RowGroup) -> int:
            with self._stored.errors_at(group):
                return row_filter.count(parts[group.file][group.index])

        first_of_file = {group.file: group for group in reversed(self.row_groups)}
        by_file = map_on_threads(possible, first_of_file.values(), OPENING_THREADS)
        parts = dict(zip(first_of_file, by_file, strict=True))
        groups = [group for group in self.row_groups if group.index in parts[group.file]]
        self.row_groups = []
        counts = map_on_threads(count, groups, OPENING_THREADS)
        for group, passing in zip(groups, counts, strict=True):
            if 0 < passing < group.num_rows:
                self._filtered[len(self.row_groups)] = parts[group.file][group.index]
            if passing:
                self.row_groups.append(dataclasses.replace(group, num_rows=passing))

    # ---- what can be said without reading ---------------------------------------------------

    def nbytes_per_row(self, columns: Sequence[str] | None = None) -> float:
        """Return the mean bytes of a row of the given columns when decoded, from the footers.

        Numbers count with their width; texts with their uncompressed bytes in the file or, where
        that is more, because a dictionary is used, with the mean length of the least and the
        greatest text. The offsets of lists and texts are left out.
        """
        nbytes, rest = 0.0, set[str]()
        for name in self.column_types if columns is None else columns:
            kind, is_list = self.column_types[name]
            if not is_list and _width(kind):
                nbytes += _width(kind)
            elif name in self._keys[0]:
                nbytes += max(len(str(keys[name])) for keys in self._keys)
            else:
                rest.add(name)
        if not rest:
            return nbytes
        rows, stored = 0, 0.0
        for group in self.row_groups:
            rows += self._stored.num_rows(group)
            for name, leaf in self._stored.leaves(group, rest):
                width = _width(self.column_types[name][0])
                stored += leaf.num_values * width or _string_nbytes(leaf)
        return nbytes + stored / max(1, rows)

    def stream_nbytes(self, columns: Sequence[str] | None = None) -> int:
        """Return about how many bytes a row group holds that is kept open between two slices.

        It is a page and what is read ahead of it for each column: 1.4 MB a column with the usual
        pages of 1 MiB, and never more than the row group.
        """
        names = self.column_types if columns is None else columns
        largest = max(self.row_groups, key=self._stored.num_rows, default=None)
        return 0 if largest is None else self._stored.stream_nbytes(largest, names)

    def location(self, position: int) -> str:
        """Return words for where row group number `position` stands, for an error message."""
        return self._stored.location(self.row_groups[position])

    def fingerprint(self) -> dict[str, Any]:
        """Return a few facts that are equal for the same data set, also when it has been moved.

        A later process compares them one by one, and can say what is different. Times of change
        are not among them, and paths only as far as they differ from file to file.

        Example:
            >>> import tempfile
            >>> path = tempfile.mkdtemp() + "/a.parquet"
            >>> with ParquetSink(path) as sink:
            ...     sink.write(Chunk({"x": np.arange(5)}))
            >>> metadata = ParquetSource(path).fingerprint()
            >>> metadata["files"], metadata["rows"], metadata["filters"]
            (1, 5, None)
        """
        parts = [PurePath(path).parts for path in self.files]
        levels = zip(*(folders[:-1] for folders in parts), strict=False)
        common = len(list(itertools.takewhile(lambda names: len(set(names)) == 1, levels)))
        names = ["/".join(folders[common:]) for folders in parts]
        keys = [sorted(file.keys.items()) for file in self._stored.files]
        groups = [(group.file, group.index, group.num_rows) for group in self.row_groups]
        return {
            "files": len(self.files),
            "row_groups": len(self.row_groups),
            "rows": self.num_rows,
            "column_types": _hash(sorted(self.column_types.items())),
            "row_counts": _hash(groups),
            "file_names": _hash([names, keys]),
            "file_sizes": _hash([file.size for file in self._stored.files]),
            "footers": self._hash_of_footers,
            "filters": None if self._filter is None else str(self._filter),
        }

    @functools.cached_property
    def _hash_of_footers(self) -> str:
        """Hash of all that the footers say: places, sizes and statistics of every column chunk."""
        digest = hashlib.sha256()
        for footer in self._footers:
            written = pa.BufferOutputStream()
            footer.write_metadata_file(written)
            digest.update(written.getvalue())
        return digest.hexdigest()[:16]

    # ---- reading ----------------------------------------------------------------------------

    def columns(
        self, position: int, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield (name, column) one by one, each decoded when it is asked for.

        A caller who is done with a column before asking for the next needs the memory of one only,
        and decoding is faster by a tenth, for memory used a moment ago is in the cache.

        A slice is decoded for all columns at once, and the row group stays open for the slice that
        follows: slices read in order decode it once in all. So are the columns of a file that is
        not on this machine, which has to be asked for them once only.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            names: columns, in the order in which they are wanted.
            start: first row.
            stop: row behind the last, None for all that follow.

        Raises:
            ParquetError: if a column is not there, cannot be decoded, or has a type that has no
                place in a chunk, or if the file has changed. It names file, row group and column.
            IndexError: if the row group has no such rows.

        Example:
            >>> import tempfile
            >>> path = tempfile.mkdtemp() + "/a.parquet"
            >>> with ParquetSink(path) as sink:
            ...     sink.write(Chunk({"x": np.arange(5), "y": np.ones(5)}))
            >>> [(n, c.tolist()) for n, c in ParquetSource(path).columns(0, ["y", "x"], 1, 3)]
            [('y', [1.0, 1.0]), ('x', [1, 2])]
        """
        names = self._known(position, names)
        start, stop = self._bounds(position, start, stop)
        group = self.row_groups[position]
        keys = self._keys[group.file]
        if start == stop:
            empty = self._schema_of(names).empty_table()
            yield from ((name, self._column(position, name, empty[name])) for name in names)
            return
        first, last, taken = self._stored_slice(position, start, stop)
        stored = [name for name in names if name not in keys]
        with contextlib.closing(self._reader.columns(group, stored, first, last)) as arrays:
            for name in names:
                if name in keys:
                    array = pa.repeat(keys[name], stop - start)
                else:
                    _, array = next(arrays)
                    array = array if taken is None else self._reader.take(array, taken)
                yield name, self._column(position, name, array)

    def read(
        self, position: int, columns: Sequence[str] | None = None, start: int = 0,
        stop: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Return rows [start, stop) of a row group as a `Chunk`.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            columns: names, None for all.
            start: first row.
            stop: row behind the last, None for all that follow.

        Raises:
            ParquetError: as `columns` does.
            IndexError: if the row group has no such rows.
        """
        names = list(self.column_types) if columns is None else list(columns)
        return Chunk(dict(self.columns(position, names, start, stop)))

    def read_table(
        self, position: int, columns: Sequence[str] | None = None, start: int = 0,
        stop: int | None = None,
    ) -> pa.Table:  # fmt: skip
        """Return rows [start, stop) of a row group as an Arrow table, decoded on this thread.

        Arguments and errors are those of `read`.
        """
        names = self._known(position, columns)
        start, stop = self._bounds(position, start, stop)
        if start == stop:
            return self._schema_of(names).empty_table()
        group = self.row_groups[position]
        keys = self._keys[group.file]
        first, last, taken = self._stored_slice(position, start, stop)
        stored = [name for name in names if name not in keys]
        table = self._stored.table(group, stored, first, last)
        table = table if taken is None else table.take(pa.array(taken))
        return pa.table(
            {n: pa.repeat(keys[n], stop - start) if n in keys else table[n] for n in names}
        )

    def chunks(
        self, columns: Sequence[str] | None = None, *, rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield all rows in order: a chunk a row group, or chunks of `rows` rows (the last fewer).

        Memory: one row group, and with `rows` also one chunk.
        """
        if rows is not None and rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        held: list[Chunk] = []
        count = 0
        for position in range(len(self)):
            chunk = self.read(position, columns)
            if rows is None:
                yield chunk
                continue
            held.append(chunk)
            count += chunk.num_rows
            if count >= rows:
                whole = Chunk.concat(held)
                full = count - count % rows
                for start in range(0, full, rows):
                    yield whole.slice(start, start + rows)
                held, count = [whole.slice(full, count)], count - full
        if count:
            yield Chunk.concat(held)

    def for_a_pass(self, open_row_groups: int) -> ParquetSource:
        """Return the same source with slices of its own: closing it disturbs no other reader.

        Args:
            open_row_groups: row groups that are read in slices at a time.
        """
        own = self.at(self.memory)
        own.streams.limit = max(own.streams.limit, open_row_groups)
        return own

    def close(self) -> None:
        """Close the row groups that are kept open between slices; reading on opens them again."""
        self.streams.close()

    def _known(self, position: int, columns: Sequence[str] | None) -> list[str]:
        names = list(self.column_types) if columns is None else list(columns)
        missing = [name for name in names if name not in self.column_types]
        if missing:
            path = self.files[self.row_groups[position].file]
            raise ParquetError(f"{path}: no columns {missing}; it has {list(self.column_types)}")
        return names

    def _bounds(self, position: int, start: int, stop: int | None) -> tuple[int, int]:
        rows = self.row_groups[position].num_rows
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise IndexError(
                f"rows [{start}, {stop}) of the {rows} rows in {self.location(position)}: need "
                "0 <= start <= stop <= rows"
            )
        return start, stop

    def _schema_of(self, names: Sequence[str]) -> pa.Schema:
        return pa.schema([self.arrow_schema.field(name) for name in names])

    def _stored_slice(self, position: int, start: int, stop: int) -> tuple[int, int, Any]:
        """Return the stored rows [first, last) of a slice, and which of these to take; None: all.

        A whole row group is read whole, for that is faster than to leave out its first rows.
        """
        if position not in self._filtered or self._filter is None:
            return start, stop, None
        group = self.row_groups[position]
        self._stored.refuse_change(group)
        with self._stored.errors_at(group):
            rows = self._filter.passing(self._filtered[position])
        if stop - start == group.num_rows:
            return 0, self._stored.num_rows(group), rows
        first, last = int(rows[start]), int(rows[stop - 1]) + 1
        return first, last, rows[start:stop] - first

    def _column(self, position: int, name: str, array: Any) -> Any:
        try:
            return self._reader.column(array)
        except TypeError as error:
            raise ParquetError(f"{self.location(position)}, column {name!r}: {error}") from error


def _typed_keys(files: Sequence[DataFile], stored: Sequence[str]) -> list[dict[str, pa.Scalar]]:
    """Return {name: value} of the keys in each file's path."""
    names = list(files[0].keys)
    for file in files:
        if set(file.keys) != set(names):
            raise ParquetError(
                f"{file.path}: keys {list(file.keys)} in its path, but {names} in that of "
                f"{files[0].path}"
            )
    twice = [name for name in names if name in stored]
    if twice:
        raise ParquetError(
            f"{files[0].path}: {twice} are keys in the path and also columns in the file. Give a "
            "folder below those keys, or write the files without these columns."
        )
    values = {name: _typed([file.keys[name] for file in files]) for name in names}
    return [{name: values[name][number] for name in names} for number in range(len(files))]


def _typed(texts: Sequence[str | None]) -> pa.Array:
    """Return the values of a key: int64 if all are integers (of up to 18 digits), or text."""
    if all(re.fullmatch("-?[0-9]{1,18}", text) for text in texts if text is not None):
        return pa.array([None if text is None else int(text) for text in texts], pa.int64())
    return pa.array(texts, pa.string())


def _width(kind: str) -> int:
    """Return the bytes of a number of this type, 0 for anything else."""
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        return 0


def _string_nbytes(leaf: Any) -> float:
    """Return about how many bytes the texts of a `ColumnChunkMetaData` have when decoded."""
    stored, statistics = leaf.total_uncompressed_size, leaf.statistics
    if statistics is None or not statistics.has_min_max:
        return stored
    ends = (statistics.min, statistics.max)
    lengths = [len(end.encode() if isinstance(end, str) else bytes(end)) for end in ends]
    return max(stored, leaf.num_values * sum(lengths) / 2)


def _hash(metadata: Any) -> str:
    return hashlib.sha256(repr(metadata).encode()).hexdigest()[:16]
