"""The three writers: a record per row, a record per batch, and bare cells.

Every writer takes the options of `WriteOptions` by name and writes below `FOLDER.partial`, which is
gone at the end and after an error. What a killed process leaves of it is removed by the next call.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tfrecords.encoding import encode_batch, encode_cells, encode_examples
from tfrecords.metadata import CELLS_FILE, METADATA_FILE, RECORDS_ENDING, Folder, digest
from tutorlib.checks import check_positive
from tutorlib.columns import Chunk, Masked, Ragged, Strings
from tutorlib.output import new_folder, refuse_overlap
from tutorlib.parquet import ParquetSource

BLOCK_ROWS = 4096  # rows encoded at a time: about 3 MB for 40 columns, which fits into the cache


class Written(NamedTuple):
    """What a writer wrote.

    Args:
        files: number of files, not counting the metadata.
        rows: rows in these files.
        nbytes: total size of these files, bytes.
        elapsed_s: seconds that the call took.
    """

    files: int
    rows: int
    nbytes: int
    elapsed_s: float


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """Options that every writer takes by name.

    Args:
        columns: names of the columns to write; None writes all.
        limit_rows: write only the first `limit_rows` rows, at least 1; None writes all.
        overwrite: whether to replace a folder that an earlier call wrote.

    Raises:
        ValueError: if `limit_rows` is below 1.

    Example:
        >>> WriteOptions(limit_rows=100).overwrite
        False
    """

    columns: Sequence[str] | None = None
    limit_rows: int | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_positive(limit_rows=self.limit_rows)


def write_examples(
    source: Any, folder: Folder, *, rows_per_file: int = 262_144, **options: Any
) -> Written:
    """Write rows, in order, as TFRecord files with one `tf.train.Example` per row.

    Integers become int64 lists, floating point becomes float32 lists; a scalar is a list of one.
    Rows are encoded thousands at a time: one core writes 100 thousand rows/s of 40 columns, eight
    times as many as with one protobuf object per row.

    Args:
        source: `ParquetSource`, or what it takes (file, folder, glob pattern, list of these); or
            rows in memory: a `Chunk` or `pyarrow.Table`.
        folder: folder for the files `part_00000.tfrecord`, `part_00001.tfrecord`, ...
        rows_per_file: rows of a file, at least 1; the last file has fewer.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`.

    Raises:
        FileExistsError: if the folder exists and `overwrite` is False, or it is not a folder that
            this package wrote.
        ValueError: if a column holds strings, nulls or an integer outside int64; names the row
            group.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> rows = Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")})
        >>> write_examples(rows, folder + "/examples").rows
        5

    Source: tensorflow/core/example/{example,feature}.proto.
    """
    check_positive(rows_per_file=rows_per_file)
    form = _Form("examples", encode_examples, rows_per_file=rows_per_file)
    return _write(form, source, folder, WriteOptions(**options))


def write_prebatched(
    source: Any, folder: Folder, *, batch_size: int, batches_per_file: int = 64, **options: Any
) -> Written:
    """Write rows, in order, as TFRecord files with one record per batch.

    A record is a `tf.train.Example` in which each column is one bytes value: the batch's values as
    they are in memory (int32, int64 or float32, little-endian). A reader copies instead of parsing,
    tens of times as fast as one example per row. The cost: the batch size, and which rows share a
    batch, are fixed when the files are written.

    Args:
        source: as for `write_examples`.
        folder: folder for the files `part_00000.tfrecord`, `part_00001.tfrecord`, ...
        batch_size: rows of a record, at least 1; the last record has fewer.
        batches_per_file: records of a file, at least 1.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`. A multi-hot column `g` is stored as `g__values`
        and `g__nnzs` (int32).

    Raises:
        FileExistsError: as `write_examples`.
        ValueError: if a column holds strings, nulls or an integer outside int64.
    """
    check_positive(batch_size=batch_size, batches_per_file=batches_per_file)
    form = _Form(
        "prebatched",
        lambda chunk: [encode_batch(chunk)],
        rows_per_file=batch_size * batches_per_file,
        batch_size=batch_size,
    )
    return _write(form, source, folder, WriteOptions(**options))


def write_raw(source: Any, folder: Folder, **options: Any) -> Written:
    """Write rows as bare cells, row after row; every row takes 4 bytes per column.

    `cells.bin` holds nothing but numbers (int32 or float32, little-endian), in the order of the
    columns. `tf.data.FixedLengthRecordDataset` reads rows, or batches of any size, from it.
    `tfrecords.json` in the same folder names the columns.

    Args:
        source: as for `write_examples`.
        folder: folder for `cells.bin`.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`; nbytes is 4 x rows x columns.

    Raises:
        FileExistsError: as `write_examples`.
        ValueError: if a column holds strings or lists, which have no fixed width, nulls, or an
            integer outside int32.
    """
    form = _Form("raw", lambda chunk: [encode_cells(chunk).T.tobytes()])
    return _write(form, source, folder, WriteOptions(**options))


# ---- what the writers share ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Form:
    """What the three forms differ in.

    Args:
        name: of the form, for the metadata.
        encode: returns the bytes of a block of rows, a value per record.
        rows_per_file: rows of a file of records; None for a form of cells, which has one file.
        batch_size: rows of a batch, which are encoded together; None if the form has no batches.
    """

    name: str
    encode: Callable[[Chunk], Iterable[bytes]]
    rows_per_file: int | None = None
    batch_size: int | None = None

    @property
    def of_cells(self) -> bool:
        """Whether every row takes 4 bytes per column."""
        return self.rows_per_file is None

    def new_file(self, folder: Path, number: int) -> Any:
        """Return file `number` of a folder, open for writing records or cells."""
        if self.of_cells:
            return open(folder / CELLS_FILE, "wb")
        import tensorflow as tf

        return tf.io.TFRecordWriter(str(folder / f"part_{number:05d}{RECORDS_ENDING}"))

    def check(self, name: str, column: Any) -> None:
        """Raise ValueError if the form cannot store a column."""
        values = column.values if isinstance(column, Ragged) else column
        if self.of_cells and isinstance(column, Ragged):
            raise ValueError(
                f"column {name!r}: lists have no fixed width. Use write_prebatched or "
                "write_examples, or leave it out (columns=)."
            )
        if isinstance(values, Strings):
            raise ValueError(
                f"column {name!r}: these formats hold numbers. Turn strings into ids first "
                "(Categorify or HashBucket in a Workflow)."
            )
        if values.dtype.kind in "iu":
            _check_range(name, values, np.iinfo(np.int32 if self.of_cells else np.int64))


def _check_range(name: str, values: np.ndarray, limits: np.iinfo) -> None:
    """Raise ValueError if a value is outside the limits."""
    for value in map(int, (values.min(), values.max()) if len(values) else ()):
        if not limits.min <= value <= limits.max:
            raise ValueError(
                f"column {name!r}: {value} does not fit into {limits.dtype}. Turn the values into "
                "smaller ids first (Categorify or HashBucket in a Workflow)."
            )


def _write(form: _Form, source: Any, folder: Folder, options: WriteOptions) -> Written:
    """Write rows in a form, into a folder that appears when it is complete."""
    started, target = time.perf_counter(), Path(folder)
    if isinstance(source, pa.Table):
        source = Chunk.from_arrow(source.select(options.columns or source.column_names))
    elif not isinstance(source, Chunk | ParquetSource):
        source = ParquetSource(source)
    if isinstance(source, ParquetSource):
        refuse_overlap(target, source.files)
    types: dict[str, list[Any]] = {}
    rows = min(source.num_rows, options.limit_rows or source.num_rows)
    step = form.rows_per_file or rows
    with new_folder(target, overwrite=options.overwrite) as partial:
        for number, start in enumerate(range(0, rows, step)):
            chunks = _chunks(source, options.columns, start, min(start + step, rows), form)
            with form.new_file(partial, number) as file:
                for chunk in _blocks(chunks, form.batch_size or BLOCK_ROWS):
                    for record in form.encode(chunk):
                        file.write(record)
                    types = {name: _type(column) for name, column in chunk.items()}
        sizes = [path.stat().st_size for path in partial.iterdir()]
        metadata = {"form": form.name, "rows": rows, "files": len(sizes), "nbytes": sum(sizes)}
        metadata |= {"columns": types} | (
            {"batch_size": form.batch_size} if form.batch_size else {}
        )
        content = {"sha256": digest(metadata), "metadata": metadata}
        (partial / METADATA_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return Written(len(sizes), rows, sum(sizes), time.perf_counter() - started)


def _type(column: Any) -> list[Any]:
    """Return [dtype of a value, whether a row holds a list]."""
    is_list = isinstance(column, Ragged)
    return [(column.values if is_list else column).dtype.name, is_list]


def _chunks(
    source: Chunk | ParquetSource, columns: Any, start: int, stop: int, form: _Form
) -> Iterator[Chunk]:
    """Yield rows [start, stop), by row group, checked; an error names the row group."""
    if isinstance(source, Chunk):
        yield _checked(source.select(columns or list(source)).slice(start, stop), form)
        return
    first = 0
    for position, group in enumerate(source.row_groups):
        low, high = max(start - first, 0), min(stop - first, group.num_rows)
        first += group.num_rows
        if low < high:
            chunk = source.read(position, columns, low, high)
            try:
                yield _checked(chunk, form)
            except ValueError as error:
                raise ValueError(f"{error} (In {source.location(position)}.)") from error


def _checked(chunk: Chunk, form: _Form) -> Chunk:
    """Return rows that the form can store."""
    whole = Chunk({name: _without_mask(name, column) for name, column in chunk.items()})
    for name, column in whole.items():
        form.check(name, column)
    return whole


def _without_mask(name: str, column: Any) -> Any:
    """Return a column without its mask, which must not hide any null."""
    if isinstance(column, Ragged):
        return Ragged(_without_mask(name, column.values), column.offsets)
    if not isinstance(column, Masked):
        return column
    if nulls := int((~column.valid).sum()):
        raise ValueError(
            f"column {name!r}: {nulls} nulls, which these formats cannot store. Fill them first "
            "(FillMissing or Categorify in a Workflow)."
        )
    return column.values


def _blocks(chunks: Iterable[Chunk], rows: int) -> Iterator[Chunk]:
    """Yield the same rows in chunks of `rows` rows; the last one has the rest."""
    held: list[Chunk] = []
    count = 0
    for chunk in chunks:
        held.append(chunk)
        count += chunk.num_rows
        if count < rows:
            continue
        whole = held[0] if len(held) == 1 else Chunk.concat(held)
        full = count - count % rows
        for start in range(0, full, rows):
            yield whole.slice(start, start + rows)
        held, count = [whole.slice(full, count)], count - full
    if count:
        yield Chunk.concat(held)
