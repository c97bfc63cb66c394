"""ParquetSink: writes chunks as Parquet files that a loader reads fast, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutorlib.checks import check_positive
from tutorlib.columns import Chunk
from tutorlib.output import local_path, new_file, new_folder, refuse_existing
from tutorlib.parquet.files import FOOTER_CRC, NO_CRC, PARQUET_ENDINGS, footer_crc, footer_of
from tutorlib.schema import is_list


class ParquetSink:
    """Writes chunks to a Parquet file, or to a folder of part files, whole or not at all.

    Everything is written in a temporary folder beside the target, which readers skip. It is renamed
    at the end of the `with` block, or removed if the block ends with an error.

    Numbers are stored without a dictionary, byte-stream split, LZ4, which reads about 1.5 times as
    fast as pyarrow's default (dictionary, snappy): smaller for columns with many different values,
    up to 1.7 times larger for those with few. Pages and footer have a CRC-32, which `ParquetSource`
    verifies, except for columns that a GPU decodes: reading takes about a third longer, a loader's
    epoch about a tenth.

    Args:
        path: target. A name that ends in `.parquet` is one file; anything else is a folder of
            `part_00000.parquet` and so on.
        row_group_rows: rows of a row group, the unit in which a loader reads; at least 1. None for
            131,072, or `rows_per_file` if that is less.
        rows_per_file: rows of a part file of a folder, rounded down to whole row groups. None for
            4,194,304, or `row_group_rows` if that is more.
        overwrite: whether an existing target is replaced, a folder with all that it holds.
        schema: `pyarrow.Schema` to cast to. None takes that of the first chunk, with columns
            nullable where the first row group of a file has nulls, and all of them if others have
            more: without definition levels, reading takes a fifth less time.

    Raises:
        FileExistsError: if the target exists and `overwrite` is False.
        ValueError: if the target is a URL: outputs are written on this machine.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tutorlib.parquet import ParquetSource
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
        row_group_rows: int | None = None,
        rows_per_file: int | None = None,
        overwrite: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        self.path = local_path(path)
        self.overwrite = overwrite
        refuse_existing(self.path, overwrite)
        self.single_file = self.path.suffix in PARQUET_ENDINGS
        self.row_group_rows, self.rows_per_file = file_rows(
            row_group_rows, rows_per_file, default=4_194_304
        )
        self.num_rows = 0
        self._schema = schema
        self._may_be_null = schema is not None
        self._stack = contextlib.ExitStack()
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._writer: Any = None  # `ParquetWriter` of the current file
        self._rows_in_file = 0
        self._files = 0

    def __enter__(self) -> ParquetSink:
        if self.single_file:
            output = new_file(self.path)
        else:
            output = new_folder(self.path, overwrite=self.overwrite)
        self._partial = self._stack.enter_context(output)
        self._stack.push(self._end)
        return self

    def write(self, chunk: Chunk | pa.Table) -> None:
        """Write rows; at most one row group of them is held in memory.

        Raises:
            ValueError: if the rows have other columns than earlier ones.
        """
        table = chunk.to_arrow() if isinstance(chunk, Chunk) else chunk
        if self._schema is None:
            self._schema = table.schema
        if set(table.schema.names) != set(self._schema.names):
            raise ValueError(
                f"{self.path}: rows have the columns {table.schema.names}, but earlier ones have "
                f"{self._schema.names}"
            )
        self._held.append(table.select(self._schema.names).cast(self._schema))
        self._held_rows += table.num_rows
        while self._held_rows >= self.row_group_rows:
            self._write_row_group(self.row_group_rows)

    def _write_row_group(self, rows: int) -> None:
        whole = pa.concat_tables(self._held)
        group = whole.slice(0, rows).combine_chunks()  # equal rows give equal files
        schema = self._schema if self._may_be_null else _as_nulls_are(group)
        if self._writer is None or (
            self._rows_in_file >= self.rows_per_file and not self.single_file
        ):
            self._close_writer()
            name = f"part_{self._files:05d}.parquet"
            self._file = self._partial if self.single_file else self._partial / name
            self._files += 1
            self._rows_in_file = 0
            self._open(schema)
        elif pa.unify_schemas([self._writer.schema, schema]) != self._writer.schema:
            self._write_again(self._schema)
        self._writer.write_table(group.cast(self._writer.schema), row_group_size=max(1, rows))
        self._rows_in_file += rows
        self.num_rows += rows
        rest = whole.slice(rows)
        self._held = [rest] if rest.num_rows else []
        self._held_rows = rest.num_rows

    def _open(self, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(
            self._file, schema, write_page_checksum=True, **_fast_encoding(schema)
        )

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.add_key_value_metadata({FOOTER_CRC: NO_CRC})
            self._writer.close()
            _write_crc(self._file)

    def _write_again(self, schema: pa.Schema) -> None:
        """Rewrite the current file with columns that may all be null: once a file at most."""
        self._close_writer()
        earlier = self._file.with_name(self._file.name + ".earlier")
        self._file.rename(earlier)
        self._open(schema)
        with pq.ParquetFile(earlier) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number).cast(schema)
                self._writer.write_table(group, row_group_size=max(1, group.num_rows))
        earlier.unlink()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _end(self, kind: type[BaseException] | None, *_: Any) -> None:
        """Write the remaining rows and close the file, before it is renamed or removed."""
        try:
            if kind is None and self._schema is None:
                raise ValueError(f"nothing was written to {self.path}: write at least one chunk")
            if kind is None and (self._held_rows or self._writer is None):
                self._write_row_group(self._held_rows)
            if kind is None:
                self._close_writer()
        finally:
            if self._writer is not None:
                self._writer.close()  # also after an error; closed once


def _write_crc(path: Path) -> None:
    """Put the checksum of a footer into the place that is kept for it."""
    with pa.OSFile(str(path)) as opened:
        footer = footer_of(opened)
    crc = footer_crc(footer)
    assert crc is not None
    place, _, value = crc
    with open(path, "r+b") as file:
        file.seek(place - len(footer), os.SEEK_END)
        file.write(value)


def _as_nulls_are(table: pa.Table) -> pa.Schema:
    """Return the schema of a table in which only fields with nulls are nullable."""
    fields = zip(table.schema, table.columns, strict=True)
    return pa.schema([_field_as_in(f, column) for f, column in fields], table.schema.metadata)


def _field_as_in(field: pa.Field, values: pa.ChunkedArray) -> pa.Field:
    kind = field.type
    if pa.types.is_fixed_size_list(kind) and not values.null_count:
        kind = pa.list_(_field_as_in(kind.value_field, pc.list_flatten(values)), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        kind = make(_field_as_in(kind.value_field, pc.list_flatten(values)))
    return pa.field(field.name, kind, field.nullable and values.null_count > 0, field.metadata)


def file_rows(
    row_group_rows: int | None, rows_per_file: int | None, *, default: int
) -> tuple[int, int]:
    """Return the rows of a row group, and those of a file, which are whole row groups.

    Args:
        row_group_rows: None for 131,072, or `rows_per_file` if that is less.
        rows_per_file: None for `default`, or `row_group_rows` if that is more.
        default: rows of a file.

    Raises:
        ValueError: if a number is not an integer of at least 1, or no row group fits in a file.

    Example:
        >>> file_rows(None, 50_000, default=10**6), file_rows(300, 1000, default=10**6)
        ((50000, 50000), (300, 900))
    """
    check_positive(row_group_rows=row_group_rows, rows_per_file=rows_per_file)
    group = min(131_072, rows_per_file or 131_072) if row_group_rows is None else row_group_rows
    rows = max(default, group) if rows_per_file is None else rows_per_file
    if rows < group:
        raise ValueError(
            f"a file holds whole row groups, but row_group_rows={group:,} is above rows_per_file="
            f"{rows:,}. Give rows_per_file alone, or a smaller row_group_rows."
        )
    return group, rows - rows % group


def _fast_encoding(schema: pa.Schema) -> dict[str, Any]:
    """Return options of `pyarrow.parquet.ParquetWriter` that make files fast to read.

    Numbers of 4 or 8 bytes are stored without a dictionary, byte-stream split: the first bytes of
    all values, then the second bytes, and so on, which LZ4 compresses well. Other columns keep the
    dictionary.
    """
    split: list[str] = []
    dictionary: list[str] = []
    for field in schema:
        kind = field.type
        path = field.name
        if is_list(kind):
            kind = kind.value_type
            path += ".list.element"
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        (split if number and kind.bit_width in (32, 64) else dictionary).append(path)
    return {
        "compression": "lz4",
        "use_dictionary": dictionary or False,
        "use_byte_stream_split": split or False,
    }
