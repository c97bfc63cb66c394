"""Data that is not in Parquet files, as temporary Parquet files: tables in memory, Arrow files.

So row groups, memory budgets, ranks, filters and resuming work the same whatever the rows come
from. Nothing of pandas or polars is imported: both offer their rows through Arrow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from tutorlib.columns import Chunk
from tutorlib.parquet.paths import ARROW_ENDINGS, DataFile, find_files
from tutorlib.parquet.sink import ParquetSink
from tutorlib.parquet.types import ParquetError
from tutorlib.storage import TemporaryFolder

PREFIX = "tutorlib_rows_"  # of temporary folders
IN_MEMORY = "the rows in memory"  # what messages call them
SOURCES = (
    "a path of Parquet or Arrow files (file, folder, glob pattern, URL, or a list of these), a "
    "ParquetSource, a pyarrow Table, a pandas or polars DataFrame, or a part of split_rows"
)


def data_files(data: Any, filesystem: Any = None) -> tuple[list[Any], list[DataFile]]:
    """Return (the paths that were given, Parquet files with the rows) of what a reader has.

    Rows in memory and Arrow files are written to Parquet files in TMPDIR, which are removed with
    the last object that holds them. Of 5 million rows of 10 columns (300 MB) this takes 1.3 s on
    one core and 150 MB there. Arrow files are converted batch by batch and may be larger than
    memory.

    Args:
        data: paths as `find_files` takes them; a pyarrow Table, RecordBatch or RecordBatchReader;
            a DataFrame of pandas, whose index must not have a name, or of polars; any object with
            `__arrow_c_stream__`; a `Chunk`; or any object with the members of `RowSource`.
        filesystem: `pyarrow.fs` or fsspec filesystem that holds the paths; None takes it from URLs.

    Raises:
        TypeError: for anything else; it says what to do instead.
        FileNotFoundError: if a path has no file.
        ParquetError: if an Arrow file is truncated or damaged.
        ValueError: if columns share a name, or if a pandas index has one.
    """
    paths = _paths_in(data)
    if paths is None:
        folder = TemporaryFolder(PREFIX)
        return [], [_written(_batches_of(data), folder, IN_MEMORY)]
    files = find_files(paths, filesystem)
    if any(_is_arrow(file) for file in files):
        folder = TemporaryFolder(PREFIX)
        files = [_converted(file, folder) if _is_arrow(file) else file for file in files]
    return paths, files


def table_of(data: Any) -> pa.Table:
    """Return rows in memory, of any kind that `data_files` takes, as a pyarrow Table.

    Raises:
        TypeError: for anything else; it says what to do instead.
    """
    return _plain(_batches_of(data).read_all())


def _is_arrow(file: DataFile) -> bool:
    return file.path.endswith(ARROW_ENDINGS)


def _paths_in(data: Any) -> list[Any] | None:
    """Return `data` as a list if it is one or more paths, else None."""
    if isinstance(data, str | os.PathLike):
        return [data]
    if isinstance(data, list | tuple | set | frozenset | Iterator) and not _is_stream(data):
        items = list(data)
        if all(isinstance(item, str | os.PathLike) for item in items):
            return items
        raise TypeError(_refusal(items))
    return None


def _batches_of(data: Any) -> pa.RecordBatchReader:
    """Return the rows of an object, batch by batch; raise TypeError if it has none."""
    kind = type(data)
    if kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame":
        if named := [name for name in data.index.names if name is not None]:
            raise ValueError(
                f"the DataFrame's index {named} is not a column. df.reset_index() makes it one, "
                "df.reset_index(drop=True) leaves it out."
            )
        return pa.Table.from_pandas(data, preserve_index=False).to_reader()
    if isinstance(data, Chunk):
        return data.to_arrow().to_reader()
    if hasattr(data, "row_groups") and hasattr(data, "read"):  # a RowSource
        return _batches_of_row_groups(data)
    if isinstance(data, pa.RecordBatch):
        data = pa.table(data)
    if _is_stream(data):
        with contextlib.suppress(pa.ArrowException):  # a stream of values, not of rows
            return pa.RecordBatchReader.from_stream(data)
    raise TypeError(_refusal(data))


def _is_stream(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__")


def _batches_of_row_groups(source: Any) -> pa.RecordBatchReader:
    def tables() -> Iterator[pa.Table]:
        for position, group in enumerate(source.row_groups):
            yield source.read(position, list(source.column_types), 0, group.num_rows).to_arrow()

    first = source.read(0, list(source.column_types), 0, 0).to_arrow()
    batches = (batch for table in tables() for batch in table.to_batches())
    return pa.RecordBatchReader.from_batches(first.schema, batches)


def _refusal(data: Any) -> str:
    """Return the message for what is not a source, with a remedy."""
    kind = type(data)
    name = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}".removeprefix("builtins.")
    remedy = ""
    if isinstance(data, Mapping):
        remedy = "pyarrow.table({...}) makes a Table of columns of equal length."
    elif name.startswith("tensorflow."):
        remedy = "fit takes a tf.data.Dataset as it is; a loader reads the files itself."
    elif name == "polars.LazyFrame":
        remedy = "Give its collect(), or write it with sink_parquet."
    elif hasattr(data, "source"):
        remedy = "Give what it was made of: its attribute source."
    elif isinstance(data, Iterable):
        remedy = "Values need the names of their columns: pyarrow.table({'x': values})."
    return f"the data must be {SOURCES}, got a {name}. {remedy}".rstrip()


def _converted(file: DataFile, folder: TemporaryFolder) -> DataFile:
    """Return a Parquet file of the rows of an Arrow file, under its path and keys."""
    try:
        with file.filesystem.open_input_file(file.inner) as opened:
            if opened.read(6) == b"ARROW1":
                whole = pa.ipc.open_file(opened)
                batches = map(whole.get_batch, range(whole.num_record_batches))
                reader = pa.RecordBatchReader.from_batches(whole.schema, batches)
            else:
                opened.seek(0)
                reader = pa.ipc.open_stream(opened)
            written = _written(reader, folder, file.path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the system, not of the file's content
            raise
        raise ParquetError(
            f"{file.path}: not a whole Arrow file ({error}). Write it again, or remove it."
        ) from error
    return dataclasses.replace(written, keys=file.keys)


def _written(reader: pa.RecordBatchReader, folder: TemporaryFolder, name: str) -> DataFile:
    """Write rows to a Parquet file in the folder; `name` stands for it in messages."""
    twice = {n for n in reader.schema.names if reader.schema.names.count(n) > 1}
    if twice:
        raise ValueError(f"{name}: column names must be unique, these appear twice: {twice}")
    path = folder.path / f"{sum(1 for _ in folder.path.iterdir())}.parquet"
    try:
        with ParquetSink(path, checksums=False) as sink:
            sink.write(_plain(pa.Table.from_batches([], reader.schema)))
            for batch in reader:
                sink.write(_plain(pa.table(batch)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            errno.ENOSPC,
            f"{name}: no room for a temporary Parquet file in {path.parent}. The environment "
            "variable TMPDIR chooses another folder",
        ) from error
    (file,) = find_files(path)
    return dataclasses.replace(file, path=name, keys={}, held_by=folder)


def _plain(table: pa.Table) -> pa.Table:
    """Return a table without dictionaries and views, so that equal rows give equal files."""
    columns = {f.name: _plain_column(table[f.name], f.type) for f in table.schema}
    return pa.table(columns)


def _plain_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    plain = _plain_type(kind)
    if pa.types.is_dictionary(kind):
        chunks = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(chunks, plain)
    return column if plain == kind else column.cast(plain)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind
