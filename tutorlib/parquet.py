"""Parquet in and out: `ParquetSource` reads row groups as `Chunk`, `ParquetSink` writes them.

A source knows from the footers alone how many rows each row group has and what every column is; it
reads a row group, or some columns of it, when asked, from any thread. A sink writes files that a
loader reads fast. Does not belong here: which row group is read when (`plan.py`), what is done to
the values (`ops.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.chunk import Chunk
from tutorlib.files import refuse_existing, written_whole

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Where some rows stand: `num_rows` rows in row group `index` of file number `file`."""

    file: int
    index: int
    num_rows: int


class ParquetError(ValueError):
    """A Parquet file that does not fit: the message names file, row group and column."""


def expand_paths(paths: Any) -> list[str]:
    """Return the Parquet files that `paths` means, in a stable order.

    Args:
        paths: a file, a folder (searched through all its levels), a glob pattern, or a list of
            these. A list keeps its order; a folder or a pattern is sorted by name.

    Raises:
        FileNotFoundError: if nothing is there, saying what was looked for.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    files: list[str] = []
    for item in paths:
        text = os.fspath(item)
        if os.path.isdir(text):
            found = sorted(
                str(path)
                for path in Path(text).rglob("*")
                if path.suffix in PARQUET_ENDINGS
                and not any(part.startswith((".", "_")) for part in path.relative_to(text).parts)
            )
        elif os.path.isfile(text):
            found = [text]
        else:
            found = sorted(
                name
                for name in glob.glob(text, recursive=True)
                if not os.path.basename(name).startswith((".", "_")) and os.path.isfile(name)
            )
        if not found:
            raise FileNotFoundError(
                f"no Parquet file at {text!r} (looked for a file, a folder of "
                f"{'/'.join(PARQUET_ENDINGS)} files, and a glob pattern)"
            )
        files += found
    if not files:
        raise FileNotFoundError("the list of Parquet files is empty")
    return files


def column_type(arrow_type: pa.DataType) -> tuple[str, bool]:
    """Return (NumPy name of one value or "string", whether a row holds a list)."""
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return column_type(arrow_type.value_type)[0], True
    if pa.types.is_fixed_size_list(arrow_type):
        return column_type(arrow_type.value_type)[0], True
    if pa.types.is_dictionary(arrow_type):
        return column_type(arrow_type.value_type)
    if pa.types.is_temporal(arrow_type):
        return f"int{arrow_type.bit_width}", False
    if pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type):
        return np.dtype(arrow_type.to_pandas_dtype()).name, False
    if pa.types.is_boolean(arrow_type):
        return "bool", False
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return "string", False
    if str(arrow_type) == "string_view":
        return "string", False
    return str(arrow_type), False


class ParquetSource:
    """Parquet files as one sequence of row groups; opening it reads the footers only.

    Args:
        paths: file, folder, glob pattern or a list of these (`expand_paths`).

    Attributes:
        files: the files, in order.
        row_groups: `RowGroup` of every row group over all files, in order. Empty ones are left out.
        num_rows: rows in all.
        column_types: {name: (NumPy name of one value or "string", whether a row holds a list)}.

    Raises:
        FileNotFoundError: if no file is there.
        ParquetError: if a file is not Parquet, is cut short, or has other columns or types than the
            first one.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with ParquetSink(folder + "/a.parquet", row_group_rows=2) as sink:
        ...     sink.write(Chunk({"x": np.arange(5)}))
        >>> source = ParquetSource(folder)
        >>> len(source), source.num_rows, source.read(1)["x"].tolist()
        (3, 5, [2, 3])
    """

    def __init__(self, paths: Any) -> None:
        self.files = expand_paths(paths)
        self._footers = [self._footer(path) for path in self.files]
        self.arrow_schema = self._check_schemas()
        self.row_groups = [
            RowGroup(number, index, footer.row_group(index).num_rows)
            for number, footer in enumerate(self._footers)
            for index in range(footer.num_row_groups)
            if footer.row_group(index).num_rows
        ]
        self.num_rows = sum(group.num_rows for group in self.row_groups)
        self.column_types = {field.name: column_type(field.type) for field in self.arrow_schema}

    def __len__(self) -> int:
        return len(self.row_groups)

    def __repr__(self) -> str:
        return (
            f"ParquetSource({len(self.files)} files, {len(self)} row groups, {self.num_rows:,} "
            f"rows, {len(self.column_types)} columns)"
        )

    @staticmethod
    def _footer(path: str) -> pq.FileMetaData:
        try:
            return pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise ParquetError(
                f"{path}: not a whole Parquet file ({error}). Write it again, or take it out."
            ) from error

    def _check_schemas(self) -> pa.Schema:
        first = self._footers[0].schema.to_arrow_schema()
        want = {field.name: _stored_type(field.type) for field in first}
        for path, footer in zip(self.files[1:], self._footers[1:], strict=True):
            have = {f.name: _stored_type(f.type) for f in footer.schema.to_arrow_schema()}
            missing, extra = [sorted(a.keys() - b.keys()) for a, b in ((want, have), (have, want))]
            if missing or extra:
                raise ParquetError(
                    f"{path}: columns differ from {self.files[0]}: missing {missing}, extra {extra}"
                )
            for name, kind in want.items():
                if have[name] != kind:
                    raise ParquetError(
                        f"{path}: column {name!r} is {_say(have[name])}, but {_say(kind)} in "
                        f"{self.files[0]}. Write both with one type."
                    )
        return first

    def nbytes_per_row(self, columns: Sequence[str] | None = None) -> float:
        """Return the mean uncompressed bytes of a row over the given columns, from the footers."""
        wanted = tuple(self.column_types if columns is None else columns)
        total = 0
        for footer in self._footers:
            for index in range(footer.num_row_groups):
                group = footer.row_group(index)
                for position in range(group.num_columns):
                    column = group.column(position)
                    path = column.path_in_schema
                    if path in wanted or path.startswith(tuple(f"{name}." for name in wanted)):
                        total += column.total_uncompressed_size
        return total / max(1, self.num_rows)

    def place(self, position: int) -> str:
        """Return words for where row group number `position` stands, for an error message."""
        group = self.row_groups[position]
        return f"row group {group.index} of {self.files[group.file]}"

    def read_table(self, position: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return row group number `position` (over all files) as an Arrow table, on this thread.

        Raises:
            ParquetError: if a column is not there or the data cannot be decoded.
        """
        group = self.row_groups[position]
        columns = list(self.column_types) if columns is None else list(columns)
        missing = [name for name in columns if name not in self.column_types]
        if missing:
            raise ParquetError(
                f"{self.files[group.file]}: no columns {missing}; it has {list(self.column_types)}"
            )
        try:
            with pq.ParquetFile(
                self.files[group.file],
                metadata=self._footers[group.file],
                memory_map=True,
                pre_buffer=False,
            ) as file:
                table = file.read_row_group(group.index, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise ParquetError(
                f"{self.place(position)}: cannot be read ({type(error).__name__}: {error})"
            ) from error
        if table.num_rows != group.num_rows:
            raise ParquetError(
                f"{self.place(position)}: {table.num_rows} rows, but the footer read before said "
                f"{group.num_rows}. The file has changed; open the source again."
            )
        return table.select(columns)

    def read(self, position: int, columns: Sequence[str] | None = None) -> Chunk:
        """Return row group number `position` (over all files) as a `Chunk`.

        Args:
            position: 0 to len(self) - 1.
            columns: names, None for all.

        Raises:
            ParquetError: if a column is not there, has a type that has no place in a chunk, or
                cannot be decoded.
        """
        table = self.read_table(position, columns)
        try:
            return Chunk.from_arrow(table)
        except TypeError as error:
            raise ParquetError(f"{self.place(position)}: {error}") from error

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


def _stored_type(kind: pa.DataType) -> tuple[str, bool]:
    """Return the column type, and for a time also its unit, which must not be mixed."""
    return (str(kind), False) if pa.types.is_temporal(kind) else column_type(kind)


def _say(kind: tuple[str, bool]) -> str:
    return f"a list of {kind[0]}" if kind[1] else kind[0]


class ParquetSink:
    """Writes chunks to a Parquet file, or to a folder of part files, whole or not at all.

    Everything goes to a name with the ending `.partial` beside the target, which is renamed when
    the `with` block ends well and removed when it ends by an error.

    Args:
        path: target. A name that ends in `.parquet` is one file; anything else is a folder of
            `part_00000.parquet` and so on.
        row_group_rows: rows of a row group; the unit in which a loader reads.
        rows_per_file: rows of a part file, for a folder; rounded down to whole row groups.
        encoding: "fast" stores numbers without a dictionary, byte-stream split, LZ4: about 1.5
            times as fast to read as "default" (dictionary, snappy); smaller for columns with many
            different values, larger (up to 1.7 times) for those with few.
        overwrite: whether a target that is there may be replaced.
        schema: `pyarrow.Schema` to cast to; by default that of the first chunk.

    Raises:
        FileExistsError: if the target is there and `overwrite` is False.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/train"
        >>> with ParquetSink(path, row_group_rows=2, rows_per_file=4) as sink:
        ...     sink.write(Chunk({"x": np.arange(6)}))
        >>> ParquetSource(path)
        ParquetSource(2 files, 3 row groups, 6 rows, 1 columns)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        row_group_rows: int = 131_072,
        rows_per_file: int = 4_194_304,
        encoding: str = "fast",
        overwrite: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        if row_group_rows < 1 or rows_per_file < row_group_rows:
            raise ValueError(
                "need 1 <= row_group_rows <= rows_per_file, got "
                f"row_group_rows={row_group_rows}, rows_per_file={rows_per_file}"
            )
        if encoding not in ("fast", "default"):
            raise ValueError(f"encoding must be 'fast' or 'default', got {encoding!r}")
        self.path = Path(path)
        refuse_existing(self.path, overwrite)
        self.single_file = self.path.suffix in PARQUET_ENDINGS
        self.row_group_rows = row_group_rows
        self.rows_per_file = rows_per_file - rows_per_file % row_group_rows
        self.encoding = encoding
        self.num_rows = 0
        self._schema = schema
        self._place = contextlib.ExitStack()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_file = 0
        self._files = 0

    def __enter__(self) -> ParquetSink:
        self._partial = self._place.enter_context(written_whole(self.path))
        self._place.push(self._end)
        if not self.single_file:
            self._partial.mkdir()
        return self

    def write(self, chunk: Chunk | pa.Table) -> None:
        """Add rows; memory: at most one row group more than what is given."""
        table = chunk.to_arrow() if isinstance(chunk, Chunk) else chunk
        if self._schema is None:
            self._schema = table.schema
        if set(table.schema.names) != set(self._schema.names):
            raise ValueError(
                f"{self.path}: rows with columns {table.schema.names} do not fit the file's "
                f"{self._schema.names}"
            )
        self._held.append(table.select(self._schema.names).cast(self._schema))
        self._held_rows += table.num_rows
        while self._held_rows >= self.row_group_rows:
            self._write_row_group(self.row_group_rows)

    def _write_row_group(self, rows: int) -> None:
        whole = pa.concat_tables(self._held)
        if self._writer is None or (
            self._rows_in_file >= self.rows_per_file and not self.single_file
        ):
            self._open()
        self._writer.write_table(whole.slice(0, rows), row_group_size=max(1, rows))
        self._rows_in_file += rows
        self.num_rows += rows
        rest = whole.slice(rows)
        self._held, self._held_rows = ([rest] if rest.num_rows else []), rest.num_rows

    def _open(self) -> None:
        if self._writer is not None:
            self._writer.close()
        path = self._partial
        if not self.single_file:
            path = self._partial / f"part_{self._files:05d}.parquet"
        options = fast_encoding(self._schema) if self.encoding == "fast" else {}
        self._writer = pq.ParquetWriter(path, self._schema, **options)
        self._files += 1
        self._rows_in_file = 0

    def __exit__(self, *error: Any) -> None:
        self._place.__exit__(*error)

    def _end(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Write what is held and close the file; called before it is renamed or removed."""
        try:
            if kind is None and self._schema is None:
                raise ValueError(f"nothing was written to {self.path}; give at least one chunk")
            if kind is None and (self._held_rows or self._writer is None):
                self._write_row_group(self._held_rows)
        finally:
            if self._writer is not None:
                self._writer.close()


def fast_encoding(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of `pyarrow.parquet.ParquetWriter` that make files fast to read.

    Numbers of 4 or 8 bytes: no dictionary, byte-stream split (the first bytes of all values, then
    the second bytes, ..., which LZ4 compresses well). Other columns keep the dictionary.
    """
    split, dictionary = [], []
    for field in schema:
        kind, path = field.type, field.name
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind, path = kind.value_type, f"{field.name}.list.element"
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        (split if number and kind.bit_width in (32, 64) else dictionary).append(path)
    return {
        "compression": "lz4",
        "use_dictionary": dictionary or False,
        "use_byte_stream_split": split or False,
        "write_statistics": True,
    }
