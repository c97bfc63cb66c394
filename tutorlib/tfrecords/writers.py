"""The four writers: a record a row, a record a batch, and bare cells by row or by column.

Each takes the same options by name (`WriteOptions`), writes beside the place of the folder and
renames at the end: a writer that fails removes what it wrote, one that is killed leaves
`FOLDER.partial`, which the next one removes. Does not belong here: the machinery (`writing.py`),
bytes (`encoding.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.chunk import Chunk
from tutorlib.tfrecords.encoding import encode_batch, encode_cells, encode_examples
from tutorlib.tfrecords.metadata import (
    CELL_BYTES,
    CELLS_FILE,
    EXAMPLES,
    PREBATCHED,
    RAW,
    RAW_BATCHES,
)
from tutorlib.tfrecords.writing import (
    Form,
    Write,
    WriteOptions,
    Written,
    positive,
    refuse_outside,
    refuse_text,
    write_form,
)

BLOCK_ROWS = 4096  # rows encoded at a time: about 3 MB for 40 columns, which stays in the cache
PIECE_ROWS = 1 << 19  # of raw cells that one thread writes in one go: 84 MB of 40 columns


def write_examples(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    rows_per_file: int = 262_144,
    **options: Any,
) -> Written:
    """Write rows as TFRecord files, one `tf.train.Example` a row, in order.

    Integers become int64 lists, floating point float32 lists, text bytes lists; a scalar is a list
    of one. Rows are encoded thousands at a time: about 100 thousand rows/s of 40 columns on one
    core, eight times as fast as building one protobuf object a row.

    Args:
        source: `ParquetSource`, or what it takes (file, folder, glob, list); or rows in memory.
        folder: where the files go, `part_00000.tfrecord` and so on.
        rows_per_file: rows of a file, the last one has fewer.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`.

    Raises:
        FileExistsError: if the folder is there and `overwrite` is False, or it was not written by
            this package.
        ValueError: if a column has nulls or an integer above int64, naming where.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> rows = Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")})
        >>> write_examples(rows, folder + "/examples").rows
        5

    Source: tensorflow/core/example/{example,feature}.proto.
    """
    positive(rows_per_file=rows_per_file)
    return write_form(_Examples(rows_per_file), source, folder, WriteOptions(**options))


def write_prebatched(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    batch_size: int,
    batches_per_file: int = 64,
    **options: Any,
) -> Written:
    """Write rows as TFRecord files, one record a batch, in order.

    A record is a `tf.train.Example` in which each column is one bytes value: the numbers of the
    batch as they lie in memory (int32, int64 or float32, little-endian). Reading it is a copy, no
    parsing: tens of times as fast as an example a row. The price: batch size and the company that
    a row keeps in its batch are fixed when the files are written.

    A multi-hot column g is stored as `g__values` and `g__nnzs` (int32).

    Args:
        source: as for `write_examples`.
        folder: where the files go, `part_00000.tfrecord` and so on.
        batch_size: rows of a record; the last one has fewer.
        batches_per_file: records of a file.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`.

    Raises:
        FileExistsError: as `write_examples`.
        ValueError: if a column is text, has nulls, or an integer above int64.

    Example:
        >>> import tempfile
        >>> rows = Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")})
        >>> write_prebatched(rows, tempfile.mkdtemp() + "/batches", batch_size=2).rows
        5
    """
    positive(batch_size=batch_size, batches_per_file=batches_per_file)
    form = _Prebatched(batch_size * batches_per_file, batch_size)
    return write_form(form, source, folder, WriteOptions(**options))


def write_raw(source: Any, folder: str | os.PathLike[str], **options: Any) -> Written:
    """Write rows as bare cells, row after row: every row takes the same 4 bytes a column.

    The file holds nothing but numbers (int32 or float32, little-endian), in the order of the
    columns; `tf.data.FixedLengthRecordDataset` reads rows or whole batches of any size out of it.
    What the numbers are is in the JSON file beside it.

    Args:
        source: as for `write_examples`.
        folder: where `cells.bin` goes.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`; nbytes is 4 x rows x columns.

    Raises:
        FileExistsError: as `write_examples`.
        ValueError: if a column is text or multi-hot, which have no fixed width, has nulls, or an
            integer outside int32.

    Example:
        >>> import tempfile
        >>> rows = Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")})
        >>> write_raw(rows, tempfile.mkdtemp() + "/raw").nbytes
        40
    """
    return write_form(_Raw(), source, folder, WriteOptions(**options))


def write_raw_batches(
    source: Any, folder: str | os.PathLike[str], *, batch_size: int, **options: Any
) -> Written:
    """Write rows as bare cells, batch after batch, and in a batch column after column.

    As `write_raw`, but what lies together is what becomes one tensor, so that reading is copying
    only. As with `write_prebatched`, the batches are fixed when the file is written.

    Args:
        source: as for `write_examples`.
        folder: where `cells.bin` goes.
        batch_size: rows of a batch; the last one has fewer.
        options: those of `WriteOptions`.

    Returns:
        `Written(files, rows, nbytes, elapsed_s)`; nbytes is 4 x rows x columns.

    Raises:
        FileExistsError: as `write_examples`.
        ValueError: as `write_raw`.

    Example:
        >>> import tempfile
        >>> rows = Chunk({"C1": np.arange(5), "label": np.ones(5, "float32")})
        >>> write_raw_batches(rows, tempfile.mkdtemp() + "/raw", batch_size=2).nbytes
        40
    """
    positive(batch_size=batch_size)
    return write_form(_RawBatches(batch_size), source, folder, WriteOptions(**options))


# ---- the forms ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Examples(Form):
    rows_per_file: int
    name = EXAMPLES
    block_rows = BLOCK_ROWS

    def check(self, name: str, values: Any, lists: bool) -> None:
        refuse_outside(name, values, np.int64)

    def records(self, chunk: Chunk) -> Iterable[bytes]:
        return encode_examples(chunk)


@dataclasses.dataclass(frozen=True)
class _Prebatched(Form):
    rows_per_file: int
    batch_size: int
    name = PREBATCHED

    def metadata(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    @property
    def block_rows(self) -> int:
        return self.batch_size

    def check(self, name: str, values: Any, lists: bool) -> None:
        refuse_text(name, values)
        refuse_outside(name, values, np.int64)

    def records(self, chunk: Chunk) -> Iterable[bytes]:
        return [encode_batch(chunk)]


class _Cells(Form):
    """One file of known length, into which each thread writes its rows at their place."""

    def check(self, name: str, values: Any, lists: bool) -> None:
        if lists:
            raise ValueError(
                f"column {name!r}: lists have no fixed width. Use write_prebatched or "
                "write_examples, or leave it out (columns=)."
            )
        refuse_text(name, values)
        refuse_outside(name, values, np.int32)

    @contextlib.contextmanager
    def file(self, folder: Path, number: int, columns: int) -> Iterator[Write]:
        with open(folder / CELLS_FILE, "r+b", opener=_open_or_make) as file:
            file.seek(number * self.rows_per_file * columns * CELL_BYTES)
            yield lambda chunk: file.writelines(self.records(chunk))


def _open_or_make(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


class _Raw(_Cells):
    name = RAW
    rows_per_file = PIECE_ROWS
    block_rows = BLOCK_ROWS

    def records(self, chunk: Chunk) -> Iterable[bytes]:
        return [encode_cells(chunk).T.tobytes()]


@dataclasses.dataclass(frozen=True)
class _RawBatches(_Cells):
    batch_size: int
    name = RAW_BATCHES

    def metadata(self) -> dict[str, Any]:
        return {"batch_size": self.batch_size}

    @property
    def rows_per_file(self) -> int:
        return self.batch_size * max(1, PIECE_ROWS // self.batch_size)

    @property
    def block_rows(self) -> int:
        return self.batch_size

    def records(self, chunk: Chunk) -> Iterable[bytes]:
        return [encode_cells(chunk).tobytes()]
