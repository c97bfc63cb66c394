"""ParquetSource: Parquet files as one sequence of row groups, read as chunks of columns.

Opening reads the footers; they give the row counts and column types. Any thread may then read
a row group, a slice of it, or some of its columns.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tutorlib.checks import check_positive
from tutorlib.columns import Chunk, as_vectors
from tutorlib.memory import MemorySpace, memory_space
from tutorlib.parquet.files import ParquetFiles
from tutorlib.parquet.fingerprint import fingerprint_of
from tutorlib.parquet.path_keys import typed_keys
from tutorlib.parquet.source_sizes import SourceSizes
from tutorlib.parquet.tables import data_files
from tutorlib.parquet.types import ParquetError, column_types
from tutorlib.parquet.vectors import vector_lengths

if TYPE_CHECKING:
    from tutorlib.parquet.filtered import RowChoice, RowNumbers
    from tutorlib.parquet.filters import PassingRows
    from tutorlib.parquet.slices import Streams


class ParquetSource:
    """Parquet files as one sequence of row groups; opening reads footers and a few rows of lists.

    Folders named `key=value`, as Hive and Spark write them, add a column `key` that has this value
    in all rows below the folder. For a folder that is given, the folders below it count; for a file
    or pattern, all folders of its path. With `filters`, the source has only the rows that pass.
    Row groups in which neither keys nor statistics decide are counted on opening, by reading the
    columns of the condition.

    Args:
        paths: file, folder, glob pattern or a list of these, also as URLs (see `find_files`); or a
            pyarrow Table, a pandas or polars DataFrame, or other rows in memory (see `data_files`).
        filters: rows to keep, as a `pyarrow.compute.Expression` or a list of conditions such as
            `[("day", "<", 6), ("C1", "in", [1, 2])]` (see `RowFilter`); None keeps all.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds `paths`; None takes it from URLs.
        device: "cpu" decodes with Arrow into NumPy arrays, "gpu" with cuDF into CuPy arrays (see
            `at`); None means "cpu".

    Attributes:
        files: paths or URLs of the files, in order.
        filesystem: the filesystem that was given.
        row_groups: `RowGroup` of every row group over all files, in order, without empty ones.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)};
            "(8,)float32" for vectors, see `vector_lengths`.
        arrow_schema: `pyarrow.Schema` of the columns, keys included.
        stored: `ParquetFiles`, the files without filter and keys.
        memory: `MemorySpace` of the columns; None for NumPy arrays that Arrow decoded.

    Raises:
        FileNotFoundError: if there is no file.
        TypeError: for anything that is neither paths nor rows; it says what to do.
        ParquetError: if a file is not Parquet, is truncated, or has other keys than the first.
        ValueError: if a filter cannot be parsed or does not fit the columns.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib.parquet import ParquetSink
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
        self.memory: MemorySpace | None = memory_space(device)
        self.paths, files = data_files(paths, filesystem)
        self.filesystem = filesystem
        self.stored = ParquetFiles(files)
        self.files = self.stored.paths
        self._keys = typed_keys(self.stored.files, self.stored.schema.names)
        keys = [pa.field(name, value.type) for name, value in self._keys[0].items()]
        self.arrow_schema = pa.schema([*self.stored.schema, *keys])
        self._vectors = vector_lengths(self.stored)
        self.column_types = column_types(self.arrow_schema, self._vectors)
        self.row_groups = self.stored.row_groups()
        self._choice: RowChoice | None = None
        self._partial = set[int]()  # positions of row groups of which only some rows pass
        if filters is not None:
            from tutorlib.parquet.filtered import FilteredRowGroups
            from tutorlib.parquet.filters import RowFilter

            row_filter = RowFilter(filters, self.arrow_schema)
            self._apply(FilteredRowGroups(self.stored, self._keys, row_filter))
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
        return self._device_reader or self.stored

    def _reader_at(self, space: MemorySpace | None) -> Any:
        if space is None:
            return None
        from tutorlib.parquet.device_reader import DeviceReader

        return DeviceReader(self.stored, space)

    def over(self, stored: ParquetFiles, space: MemorySpace | None) -> ParquetSource:
        """Return a source of the same rows that reads through `stored` into a memory space."""
        other = copy.copy(self)
        other.memory, other.stored = space, stored
        other._device_reader = other._reader_at(space)
        return other

    def at(self, space: MemorySpace | None) -> ParquetSource:
        """Return a source of the same rows whose columns are in a memory space.

        A GPU decodes a row group once and keeps it until all slices have been read: slices do not
        reduce the memory that is needed there. Code that works on a GPU's columns runs within
        `with space.work()`.

        Args:
            space: such as `gpu_space()`; None for NumPy arrays that Arrow decodes.
        """
        return self.over(copy.copy(self.stored), space)

    def save_memory(self) -> None:
        """Trade speed for device memory in all later reads; does nothing on the CPU."""
        if self.memory is not None:
            self._reader.save_memory()

    @property
    def streams(self) -> Streams:
        """Row groups that are being read in slices; `limit` is how many may stay open."""
        return self.stored.streams

    @property
    def num_rows(self) -> int:
        """Number of rows of all row groups."""
        return sum(group.num_rows for group in self.row_groups)

    def choose(self, numbers: RowNumbers) -> ParquetSource:
        """Return a source of the rows that a function chooses by their numbers; none is read."""
        from tutorlib.parquet.filtered import ChosenRows

        other = copy.copy(self)
        other._apply(ChosenRows(self.stored, self.row_groups, self._choice, numbers))
        return other

    def _apply(self, choice: RowChoice) -> None:
        """Remove row groups and rows that are not chosen."""
        chosen = [(group, rows) for group, rows in choice.counts(self.row_groups) if rows]
        self._choice = choice
        self.row_groups = [dataclasses.replace(group, num_rows=rows) for group, rows in chosen]
        stored = self.stored.num_rows
        self._partial = {n for n, g in enumerate(self.row_groups) if g.num_rows < stored(g)}

    def _passing(self, position: int) -> PassingRows | None:
        """Return which stored rows of a row group pass the filter; None if all do."""
        if position not in self._partial or self._choice is None:
            return None
        return self._choice.passing(self.row_groups[position])

    @property
    def sizes(self) -> SourceSizes:
        """Bytes of decoded rows and of open row groups, estimated from the footers."""
        return SourceSizes(self.stored, self.row_groups, self.column_types, self._keys)

    def location(self, position: int) -> str:
        """Return what error messages call the row group number `position`."""
        return self.stored.location(self.row_groups[position])

    def null_count(self, name: str) -> int | None:
        """Return the nulls of a column in all row groups; None if a footer does not tell."""
        total = 0
        for group in self.row_groups:
            statistics = [leaf.statistics for _, leaf in self.stored.leaves(group, [name])]
            if not statistics or any(s is None or not s.has_null_count for s in statistics):
                return None
            total += sum(s.null_count for s in statistics)
        return total

    def fingerprint(self) -> dict[str, Any]:
        """Return metadata, as JSON values, that is equal for the same data set.

        A later process compares the entries and can say which one differs. Modification times do
        not count, and paths only where they differ from file to file: a data set may be moved.

        Example:
            >>> import tempfile
            >>> import numpy as np
            >>> from tutorlib.parquet import ParquetSink
            >>> path = tempfile.mkdtemp() + "/a.parquet"
            >>> with ParquetSink(path) as sink:
            ...     sink.write(Chunk({"x": np.arange(5)}))
            >>> metadata = ParquetSource(path).fingerprint()
            >>> metadata["files"], metadata["rows"], metadata["filters"]
            (1, 5, None)
        """
        filters = None if self._choice is None else self._choice.identity
        return fingerprint_of(self.stored, self.row_groups, self.column_types, filters)

    def columns(
        self, position: int, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield (name, column) one by one, each decoded when it is asked for.

        A caller that drops each column before it asks for the next needs the memory of one column,
        and decoding is a tenth faster, since that memory is still in the cache. The columns of a
        small row group, of a slice and of a remote file are decoded together. A row group of which
        slices are read stays open: slices read in order decode it once in all.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            names: columns, in the order in which they are yielded.
            start: first row.
            stop: end of the rows; None for all that follow.

        Raises:
            ParquetError: if a column does not exist, cannot be decoded, or has a type that a chunk
                cannot hold, or if the file has changed. It names file, row group and column.
            IndexError: if the row group does not have these rows.

        Example:
            >>> import tempfile
            >>> import numpy as np
            >>> from tutorlib.parquet import ParquetSink
            >>> path = tempfile.mkdtemp() + "/a.parquet"
            >>> with ParquetSink(path) as sink:
            ...     sink.write(Chunk({"x": np.arange(5), "y": np.ones(5)}))
            >>> [(n, c.tolist()) for n, c in ParquetSource(path).columns(0, ["y", "x"], 1, 3)]
            [('y', [1.0, 1.0]), ('x', [1, 2])]
        """
        arrays = self._arrays(position, self._known(position, names), start, stop)
        with contextlib.closing(arrays):
            for name, array in arrays:
                yield name, self._column(position, name, array, start)

    def table(
        self, position: int, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Return rows [start, stop) of a row group with columns of any Arrow type.

        Columns have the types of `arrow_schema`, with dictionaries decoded. Arguments and errors
        are those of `columns`; not for a source `at` a device's memory.
        """
        stored = [self.arrow_schema.field(name).type for name in self._known(position, names)]
        types = [t.value_type if pa.types.is_dictionary(t) else t for t in stored]
        arrays = dict(self._arrays(position, names, start, stop))
        return pa.table(arrays).cast(pa.schema(zip(names, types, strict=True)))

    def _arrays(
        self, position: int, names: Sequence[str], start: int, stop: int | None
    ) -> Generator[tuple[str, Any]]:
        """Yield (name, column) as the reader has them, each decoded when it is asked for."""
        start, stop = self._bounds(position, start, stop)
        group = self.row_groups[position]
        keys = self._keys[group.file]
        if start == stop:
            empty = pa.schema([self.arrow_schema.field(name) for name in names]).empty_table()
            yield from ((name, empty[name]) for name in names)
            return
        first, last, taken = self._stored_slice(position, start, stop)
        stored = [name for name in names if name not in keys]
        with contextlib.closing(self._reader.columns(group, stored, first, last)) as arrays:
            for name in names:
                if name in keys:
                    yield name, pa.repeat(keys[name], stop - start)
                else:
                    _, array = next(arrays)
                    yield name, array if taken is None else self._reader.take(array, taken)

    def steps(
        self, position: int, names: Sequence[str], start: int, stop: int, step_bytes: int
    ) -> Generator[tuple[int, int, Iterator[tuple[str, Any]]]]:
        """Yield rows [start, stop) in steps of about `step_bytes` decoded bytes.

        No more than a step is decoded at a time, also where few rows pass a filter. The row group
        belongs to this thread until the last step has been taken.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            names: columns, in the order in which they are yielded.
            start: first row.
            stop: end of the rows, above `start`.
            step_bytes: bytes of a step; a step has at least one row.

        Yields:
            (first row, end, (name, column) of each column, as `columns` yields them).

        Raises:
            ParquetError: as `columns` does.
            IndexError: as `columns` does.
        """
        names = self._known(position, names)
        start, stop = self._bounds(position, start, stop)
        group = self.row_groups[position]
        keys = self._keys[group.file]
        stored = [name for name in names if name not in keys]
        if not stored:
            yield start, stop, self.columns(position, names, start, stop)
            return
        step_rows = self.stored.step_rows(group, stored, step_bytes)
        passing = self._passing(position)
        if passing is not None:
            from tutorlib.parquet.filtered import passing_tables

            first = int(passing.rows(start, start + 1)[0])
            last = int(passing.rows(stop - 1, stop)[0]) + 1
            tables = self.stored.tables(group, stored, first, last, step_rows, step_bytes)
            tables = passing_tables(tables, passing, first, step_rows, step_bytes)
        else:
            tables = self.stored.tables(group, stored, start, stop, step_rows, step_bytes)
        with contextlib.closing(tables):
            for table in tables:
                end = start + table.num_rows
                yield start, end, self._columns_of(position, names, table, start)
                start = end
                del table

    def _columns_of(
        self, position: int, names: Sequence[str], table: pa.Table, start: int
    ) -> Iterator[tuple[str, Any]]:
        keys = self._keys[self.row_groups[position].file]
        for name in names:
            array = pa.repeat(keys[name], table.num_rows) if name in keys else table[name]
            yield name, self._column(position, name, array, start)

    def read(
        self, position: int, columns: Sequence[str] | None = None, start: int = 0,
        stop: int | None = None,
    ) -> Chunk:  # fmt: skip
        """Return rows [start, stop) of a row group as a `Chunk`.

        Args:
            position: number of the row group over all files, 0 to len(self) - 1.
            columns: names; None for all.
            start: first row.
            stop: end of the rows; None for all that follow.

        Raises:
            ParquetError: as `columns` does.
            IndexError: if the row group does not have these rows.
        """
        names = list(self.column_types) if columns is None else list(columns)
        return Chunk(dict(self.columns(position, names, start, stop)))

    def chunks(
        self, columns: Sequence[str] | None = None, *, rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield all rows in order, in memory of one row group and, with `rows`, one chunk.

        Args:
            columns: names; None for all.
            rows: rows of a chunk, at least 1 (the last has the rest); None for a row group each.
        """
        check_positive(rows=rows)
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

    def for_a_pass(self, open_row_groups: int, step_bytes: int | None = None) -> ParquetSource:
        """Return the same source with streams of its own, so that closing it affects no other pass.

        Args:
            open_row_groups: number of row groups that are read in slices at the same time.
            step_bytes: bytes that a slice decodes at a time; no other row groups then stay open.
                None for a speed that needs more memory.
        """
        own = self.at(self.memory)
        own.stored.step_bytes = step_bytes
        least = 1 if step_bytes is not None else own.streams.limit
        own.streams.limit = max(least, open_row_groups)
        return own

    def close(self) -> None:
        """Close the row groups that are open between slices; a later read opens them again."""
        self.streams.close()

    def _known(self, position: int, names: Sequence[str]) -> list[str]:
        missing = [name for name in names if name not in self.column_types]
        if missing:
            path = self.files[self.row_groups[position].file]
            why = self.stored.shared.why_missing(missing)
            raise ParquetError(f"{path}: no columns {missing}{why}; it has {[*self.column_types]}")
        return list(names)

    def _bounds(self, position: int, start: int, stop: int | None) -> tuple[int, int]:
        rows = self.row_groups[position].num_rows
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise IndexError(
                f"rows [{start}, {stop}) of the {rows} rows in {self.location(position)}: need "
                "0 <= start <= stop <= rows"
            )
        return start, stop

    def _stored_slice(self, position: int, start: int, stop: int) -> tuple[int, int, Any]:
        """Return the stored rows [first, last) of a slice, and which to take of them; None is all.

        All passing rows of a row group are taken from the whole row group: that is faster than to
        skip its first rows.
        """
        group = self.row_groups[position]
        passing = self._passing(position)
        if passing is None:
            return start, stop, None
        self.stored.refuse_change(group)
        rows = passing.rows(start, stop)
        if stop - start == group.num_rows:
            return 0, self.stored.num_rows(group), rows
        first, last = int(rows[0]), int(rows[-1]) + 1
        return first, last, rows - first

    def _column(self, position: int, name: str, array: Any, first_row: int) -> Any:
        try:
            column, length = self._reader.column(array), self._vectors.get(name)
            return column if length is None else as_vectors(column, length, first_row)
        except (TypeError, ValueError) as error:
            raise ParquetError(f"{self.location(position)}, column {name!r}: {error}") from error
