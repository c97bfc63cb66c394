"""ParquetFiles: Parquet files of one schema, whose row groups are read as they are stored.

Every fault of a file is found here, and its error names file, row group and column. Changed bytes
in a page that can still be decoded are found if the file has page checksums, as `ParquetSink`
writes them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutorlib.columns import column_from_arrow
from tutorlib.parquet.footers import leaf_count, read_footers, schemas_of
from tutorlib.parquet.paths import DataFile
from tutorlib.parquet.shared_schema import shared_schema
from tutorlib.parquet.sizes import decoded_bytes, number_width, stream_bytes
from tutorlib.parquet.slices import Stream, Streams
from tutorlib.parquet.types import ParquetError, RowGroup, column_type
from tutorlib.storage import etag_of, store_failure

STREAM_BUFFER = 262_144  # bytes that a stream reads ahead for each column
STREAM_PAGE = 1_572_864  # bytes that a stream holds for each column, measured with 1 MiB pages
STREAM_ROWS = 16_384  # least number of rows that a stream decodes in one step
STEP_COPIES = 2  # of a decoded step that a stream holds: the reader's buffers, and what is left
STEP_PARTS = 8  # of a step, which are decoded one by one
SMALL_BYTES = 2**20  # a row group of so many stays in a core's cache, so it is decoded in one call


class ParquetFiles:
    """Parquet files with their footers, read as the columns that they share.

    A warning, on opening, names columns whose types differ or which cannot be used.

    Args:
        files: the files, at least one.

    Attributes:
        paths: paths or URLs of the files, for messages.
        footers: `pyarrow.parquet.FileMetaData` of each file.
        shared: `SharedSchema` of the files.
        schema: `pyarrow.Schema` of the columns that all files share.
        streams: `Streams`, row groups that are being read in slices.
        step_bytes: bytes of a slice that are decoded at a time; None for `STREAM_ROWS` rows or all
            of the slice.

    Raises:
        ParquetError: if a file is not Parquet, is truncated or may not be read.

    Example:
        >>> import tempfile
        >>> from tutorlib.parquet.paths import find_files
        >>> path = tempfile.mkdtemp() + "/a.parquet"
        >>> pq.write_table(pa.table({"x": [1, 2, 3]}), path)
        >>> files = ParquetFiles(find_files(path))
        >>> [(name, array.to_pylist()) for name, array in files.columns(RowGroup(0, 0, 3), ["x"])]
        [('x', [1, 2, 3])]
    """

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = list(files)
        self.paths = [file.path for file in self.files]
        read = read_footers(self.files)
        self.footers = [footer for footer, _ in read]
        self._etags = [etag for _, etag in read]
        self.shared = shared_schema(self.paths, list(schemas_of(self.footers)))
        self.schema = self.shared.schema
        if doubts := self.shared.doubts():
            warnings.warn(doubts, stacklevel=3)
        self.streams = Streams()
        self.step_bytes: int | None = None
        self._longest_strings: dict[tuple[int, int, str], int] = {}
        self._leaves_of_files: dict[int, dict[str, range]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "streams": self.streams.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, streams=Streams(state["streams"]))

    @functools.cached_property
    def is_local(self) -> bool:
        """Whether all files are on this machine."""
        return all(file.is_local for file in self.files)

    def _in_shared_types(self, table: pa.Table) -> pa.Table:
        """Return a table of one file with the columns whose types differ in those of all files."""
        if self.shared.promoted.isdisjoint(table.column_names):
            return table
        fields = [
            self.schema.field(field.name) if field.name in self.shared.promoted else field
            for field in table.schema
        ]
        return table.cast(pa.schema(fields))

    def row_groups(self) -> list[RowGroup]:
        """Return the row groups of all files that have rows, in order."""
        return [
            RowGroup(number, index, rows)
            for number, footer in enumerate(self.footers)
            for index in range(footer.num_row_groups)
            if (rows := footer.row_group(index).num_rows)
        ]

    def num_rows(self, group: RowGroup) -> int:
        """Return the number of stored rows of a row group, whether they pass a filter or not."""
        return self.footers[group.file].row_group(group.index).num_rows

    def nbytes(self, group: RowGroup) -> int:
        """Return the uncompressed bytes of a row group."""
        return self.footers[group.file].row_group(group.index).total_byte_size

    def footer_bytes(self) -> Iterator[Any]:
        """Yield each footer as bytes: places, sizes and statistics of every column chunk."""
        for footer in self.footers:
            written = pa.BufferOutputStream()
            footer.write_metadata_file(written)
            yield written.getvalue()

    @functools.cached_property
    def hash_of_footers(self) -> str:
        """Hash of all footers."""
        digest = hashlib.sha256()
        for footer in self.footer_bytes():
            digest.update(footer)
        return digest.hexdigest()[:16]

    def leaves(self, group: RowGroup, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield (name, `pyarrow.parquet.ColumnChunkMetaData`) of the named columns.

        A number or list has one, a struct has one for each field.
        """
        stored, numbers = self.footers[group.file].row_group(group.index), self._leaves(group.file)
        for name in names:
            for k in numbers.get(name, ()):
                yield name, stored.column(k)

    def _leaves(self, file: int) -> dict[str, range]:
        """Return {column: numbers of its leaves} of a file; columns differ in order by file.

        Paths of leaves do not tell the column: `a.b.list.element` may be of `a` or of `a.b`.
        """
        if file not in self._leaves_of_files:
            numbers, first = {}, 0
            for field in self.footers[file].schema.to_arrow_schema():
                stop = first + leaf_count(field.type)
                numbers[field.name], first = range(first, stop), stop
            self._leaves_of_files[file] = numbers
        return self._leaves_of_files[file]

    @functools.cached_property
    def hash_of_content(self) -> str:
        """Hash of all bytes of the files."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.filesystem.open_input_stream(file.inner) as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
        return digest.hexdigest()[:16]

    def location(self, group: RowGroup) -> str:
        """Return what error messages call a row group."""
        return f"row group {group.index} of {self.paths[group.file]}"

    def columns(
        self, group: RowGroup, names: Sequence[str], first: int = 0, last: int | None = None
    ) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """Yield (name, stored rows [first, last)), each column decoded when it is asked for.

        The columns are decoded together if only a part of the row group is read, if it is small, or
        if the file is remote, so that it is requested once.

        Raises:
            ParquetError: if a column cannot be decoded, or the file has changed.
        """
        rows = self.num_rows(group)
        last = rows if last is None else last
        together = not self.files[group.file].is_local or self.nbytes(group) <= SMALL_BYTES
        if together or last - first < rows:
            table = self.table(group, names, first, last)
            for name in names:
                yield name, table.column(name)
            return
        with contextlib.ExitStack() as stack:
            file = None
            for name in names:
                with self.errors_at(group, [name]):
                    file = file or stack.enter_context(self._open(group))
                    table = file.read_row_group(group.index, columns=[name], use_threads=False)
                    table = self._in_shared_types(_check_length(table, rows))
                yield name, table.column(name)

    def column(self, array: Any) -> Any:
        """Return an Arrow array as a column of a chunk."""
        return column_from_arrow(array)

    def take(self, array: Any, rows: np.ndarray) -> Any:
        """Return the given rows of an Arrow array."""
        return array.take(pa.array(rows))

    def table(self, group: RowGroup, names: Sequence[str], first: int, last: int) -> pa.Table:
        """Return stored rows [first, last), at least one, decoded on this thread.

        Raises:
            ParquetError: if a column cannot be decoded, or the file has changed.
        """
        names, rows = list(names), self.num_rows(group)
        if not names:
            return pa.table({})
        with self.errors_at(group, names):
            if last - first == rows:
                with self._open(group) as file:
                    table = file.read_row_group(group.index, columns=names, use_threads=False)
                    return self._in_shared_types(_check_length(table, rows))
            self.refuse_change(group)
            key = (group.file, group.index, *names)
            decoded_rows = max(last - first, STREAM_ROWS)
            if self.step_bytes is not None:
                decoded_rows = self.step_rows(group, names, self.step_bytes)
            opener = functools.partial(self._open_stream, group, names, decoded_rows)
            return self._in_shared_types(self.streams.read(key, first, last, rows, opener))

    def tables(
        self,
        group: RowGroup,
        names: Sequence[str],
        first: int,
        last: int,
        step_rows: int,
        step_bytes: int | None = None,
    ) -> Generator[pa.Table]:
        """Yield stored rows [first, last), `step_rows` at a time, decoded on this thread.

        The stream of the row group belongs to this thread until the last table has been taken. With
        `step_bytes`, an eighth of a step is decoded at a time, and a step ends when it has so many
        bytes: footers tell the mean width of rows, and those in one place may be wider.

        Raises:
            ParquetError: if a column cannot be decoded, or the file has changed.
        """
        names, rows = list(names), self.num_rows(group)
        decoded_rows = step_rows if step_bytes is None else max(1, step_rows // STEP_PARTS)
        self.refuse_change(group)
        with contextlib.ExitStack() as stack:
            with self.errors_at(group, names):
                if last - first == rows:
                    stream: Any = self._open_stream(group, names, decoded_rows)
                    stack.callback(stream.close)
                else:
                    key = (group.file, group.index, *names)
                    opener = functools.partial(self._open_stream, group, names, decoded_rows)
                    held = self.streams.hold(key, first, last, rows, opener)
                    stream = stack.enter_context(held)
            parts: list[pa.Table] = []
            for start in range(first, last, decoded_rows):
                stop = min(start + decoded_rows, last)
                with self.errors_at(group, names):
                    parts.append(self._in_shared_types(stream.read(start, stop)))
                rows_left = step_rows - sum(part.num_rows for part in parts)
                wide = step_bytes is not None and sum(part.nbytes for part in parts) >= step_bytes
                if wide or rows_left <= 0 or stop == last:
                    yield _joined(parts)

    def refuse_change(self, group: RowGroup) -> None:
        """Raise ParquetError if a local file has changed since its footer was read.

        A remote file is compared when a row group is opened, which then reads ahead all of it.
        """
        if self.files[group.file].is_local:
            self._refuse(group, self.files[group.file].change())

    def _refuse(self, group: RowGroup, change: str) -> None:
        if change:
            raise ParquetError(
                f"{self.location(group)}: the file has changed since it was opened: {change}. "
                "Open the source again."
            )

    @contextlib.contextmanager
    def errors_at(self, group: RowGroup, names: Sequence[str] = ()) -> Iterator[None]:
        """Raise errors of reading as ParquetError that names the row group and the column."""
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as error:
            file = self.files[group.file]
            if failure := store_failure(error, file.filesystem):
                raise ParquetError(f"{self.location(group)}: {failure}") from error
            self._refuse(group, file.change())
            at_fault = [n for n in names if len(names) == 1 or not self._can_be_read(group, n)]
            column = f", column {at_fault[0]!r}" if at_fault else ""
            raise ParquetError(
                f"{self.location(group)}{column}: cannot be read ({type(error).__name__}: {error})"
            ) from error

    def _can_be_read(self, group: RowGroup, name: str) -> bool:
        rows = self.num_rows(group)
        try:
            with contextlib.closing(self._open_stream(group, [name], STREAM_ROWS)) as stream:
                stream.read(rows - 1, rows)
        except (pa.ArrowException, OSError, EOFError):
            return False
        return True

    def _open(self, group: RowGroup, **options: Any) -> pq.ParquetFile:
        self.refuse_change(group)
        file = self.files[group.file]
        source: Any = file.inner
        if not file.is_local:
            source, etag = file.filesystem.open_input_file(file.inner), self._etags[group.file]
            change = "it was written again" if etag != etag_of(source) else ""
            self._refuse(group, change if etag else file.change())
        # Not memory-mapped: that is no faster, and a signal would kill the process if the file is
        # truncated meanwhile, where reading raises an error.
        return pq.ParquetFile(
            source,
            filesystem=file.filesystem if file.is_local else None,
            metadata=self.footers[group.file],
            pre_buffer=not file.is_local,
            page_checksum_verification=True,
            **options,
        )

    def _open_stream(self, group: RowGroup, names: list[str], decoded_rows: int) -> Stream:
        file = self._open(group, buffer_size=STREAM_BUFFER)
        batches = file.iter_batches(
            decoded_rows, row_groups=[group.index], columns=names, use_threads=False
        )
        return Stream(batches, file.close)

    def first_rows(self, group: RowGroup, names: Sequence[str], rows: int) -> pa.Table:
        """Return the first rows of a row group, at most `rows`, and keep nothing open.

        Raises:
            ParquetError: if a column cannot be decoded, or the file has changed.
        """
        rows = min(rows, self.num_rows(group))
        with self.errors_at(group, names):
            with contextlib.closing(self._open_stream(group, list(names), rows)) as stream:
                return stream.read(0, rows)

    def step_rows(self, group: RowGroup, names: Sequence[str], step_bytes: int) -> int:
        """Return how many rows of these columns have about `step_bytes` when decoded, at least 1.

        A step of wide rows has few; there are never more than `STREAM_ROWS`.
        """
        strings = [n for n in names if column_type(self.schema.field(n).type)[0] == "string"]
        width = max(
            self.row_nbytes(group, names),
            sum(self.longest_string(group, name) for name in strings),
        )
        return max(1, min(STREAM_ROWS, int(step_bytes / max(1, width))))

    def longest_string(self, group: RowGroup, name: str) -> int:
        """Return the bytes of the longest string in the dictionary of a column, 0 without one.

        Footers do not tell how long strings are that a dictionary holds once. Remembered.

        Raises:
            ParquetError: if the column cannot be read.
        """
        place = group.file, group.index, name
        if place not in self._longest_strings:
            leaves = [leaf for _, leaf in self.leaves(group, [name])]
            has_dictionary = all(
                leaf.has_dictionary_page and not any("DELTA" in e for e in leaf.encodings)
                for leaf in leaves
            )
            longest = self._longest_in_dictionary(group, name) if has_dictionary else 0
            self._longest_strings[place] = longest
        return self._longest_strings[place]

    def _longest_in_dictionary(self, group: RowGroup, name: str) -> int:
        paths = [leaf.path_in_schema for _, leaf in self.leaves(group, [name])]
        with self.errors_at(group, [name]), self._open(group, read_dictionary=paths) as file:
            batches = file.iter_batches(
                1, row_groups=[group.index], columns=[name], use_threads=False
            )
            array = next(batches).column(0)
        if pa.types.is_null(array.type):  # in this file
            return 0
        if not pa.types.is_dictionary(array.type):
            array = array.values
        lengths = pc.binary_length(array.dictionary)
        return pc.max(lengths).as_py() or 0

    def row_nbytes(self, group: RowGroup, names: Sequence[str]) -> float:
        """Return the mean bytes of a decoded row of a row group, with offsets."""
        kinds = {name: column_type(self.schema.field(name).type) for name in names}
        fixed = [number_width(k) for k, is_list in kinds.values() if not is_list]
        rest = {
            n: number_width(k)
            for n, (k, is_list) in kinds.items()
            if is_list or not number_width(k)
        }
        stored = decoded_bytes(self.leaves(group, rest), rest)
        return sum(fixed) + 8 * len(rest) + stored / self.num_rows(group)

    def stream_nbytes(self, group: RowGroup, names: Iterable[str]) -> int:
        """Return about how many bytes a row group holds while it is open between two slices."""
        return sum(
            min(leaf.total_uncompressed_size, STREAM_PAGE)
            + min(leaf.total_compressed_size, STREAM_BUFFER)
            for _, leaf in self.leaves(group, names)
        )

    def measured_stream_nbytes(self, group: RowGroup, names: Sequence[str], step_bytes: int) -> int:
        """Return how many bytes a row group holds while it is read in steps, by its page headers.

        Raises:
            ParquetError: if the file cannot be read.
        """
        file, row = self.files[group.file], self.row_nbytes(group, names)
        decoded = max(row, min(STREAM_ROWS * row, self.num_rows(group) * row, step_bytes))
        with self.errors_at(group), file.filesystem.open_input_file(file.inner) as opened:
            leaves = self.leaves(group, names)
            pages = sum(stream_bytes(opened, leaf, STREAM_BUFFER) for _, leaf in leaves)
        return int(pages + STEP_COPIES * decoded)


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Return the tables one after the other; the list is then empty and holds none of them."""
    table = pa.concat_tables(parts)
    parts.clear()
    return table


def _check_length(table: pa.Table, rows: int) -> pa.Table:
    if table.num_rows != rows:
        raise EOFError(f"{table.num_rows} rows, but the footer says {rows}")
    return table
