"""How any form is written: what writers take, who writes which rows, and a folder that is whole.

Which rows go where is settled before the first is read, so the files are the same for any number of
threads. Does not belong here: the forms themselves (`writers.py`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tutorlib.chunk import Chunk, Masked, Ragged, Strings
from tutorlib.parquet import RowRange
from tutorlib.progress import row_bar
from tutorlib.storage import refuse_existing, written_whole
from tutorlib.tfrecords.metadata import ENDING, METADATA_FILE
from tutorlib.workflow.inputs import as_source, cut, errors_at, read, row_ranges_of

Write = Callable[[Chunk], None]


class Written(NamedTuple):
    """What a writer wrote.

    Args:
        files: number of files, without that of the facts.
        rows: rows in them.
        nbytes: bytes of all of them.
        elapsed_s: seconds it took.
    """

    files: int
    rows: int
    nbytes: int
    elapsed_s: float


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """What every writer takes by name, beside the arguments of its own.

    Args:
        columns: names of the columns to write; None for all.
        limit_rows: write only the first so many rows.
        overwrite: whether a folder that an earlier call wrote may be replaced.
        progress: True draws a progress bar (needs tqdm), False none, None one where tqdm is
            installed and the standard error output is a terminal.
        workers: threads, each of which writes whole files; what they hold does not depend on it.
            Only `write_examples` gains: on two busy cores, two threads took 0.85 of the time, while
            the other forms, which only copy, got slower. (Processes would have to start
            TensorFlow first, 5 s of one core each: the time of a million examples.)

    Raises:
        ValueError: if a number is below 1.

    Example:
        >>> WriteOptions(limit_rows=100).overwrite
        False
    """

    columns: Sequence[str] | None = None
    limit_rows: int | None = None
    overwrite: bool = False
    progress: bool | None = None
    workers: int = 1

    def __post_init__(self) -> None:
        positive(limit_rows=self.limit_rows, workers=self.workers)


class Form(abc.ABC):
    """What the writers differ in: numbered TFRecord files here, unless a form says otherwise.

    Attributes:
        name: of the form, for the facts.
        rows_per_file: rows that one thread writes in one go.
        block_rows: rows that become records together.
    """

    name: str
    rows_per_file: int
    block_rows: int

    @abc.abstractmethod
    def check(self, name: str, values: Any, lists: bool) -> None:
        """Raise ValueError if the form has no place for the values of a column."""

    @abc.abstractmethod
    def records(self, chunk: Chunk) -> Iterable[bytes]:
        """Return the records of at most `block_rows` rows."""

    def metadata(self) -> dict[str, Any]:
        """Return what a reader must know beside rows and columns."""
        return {}

    @contextlib.contextmanager
    def file(self, folder: Path, number: int, columns: int) -> Iterator[Write]:
        """Open file `number`; gives a function that writes rows into it."""
        import tensorflow as tf

        with tf.io.TFRecordWriter(str(folder / f"part_{number:05d}{ENDING}")) as file:

            def write(chunk: Chunk) -> None:
                for record in self.records(chunk):
                    file.write(record)

            yield write


def write_form(
    form: Form, source: Any, folder: str | os.PathLike[str], options: WriteOptions
) -> Written:
    """Write rows in a form, into a folder that appears when it is whole.

    Raises:
        FileExistsError: if the folder may not be replaced.
        ValueError: if columns are missing, or hold what the form has no place for.
    """
    started = time.perf_counter()
    folder, source = Path(folder), as_source(source)
    _refuse_foreign(folder, options.overwrite)
    columns = list(source.column_types if options.columns is None else options.columns)
    missing = [name for name in columns if name not in source.column_types]
    if missing:
        raise ValueError(
            f"columns {missing} are not in the source, which has {list(source.column_types)}"
        )
    rows = min(source.num_rows, options.limit_rows or source.num_rows)
    files = cut(cut(row_ranges_of(source), rows)[0], form.rows_per_file)
    with written_whole(folder) as partial, row_bar(folder.name, rows, options.progress) as bar:
        partial.mkdir()

        def write_file(number: int, stop: threading.Event) -> None:
            chunks = _checked(form, source, columns, files[number])
            with form.file(partial, number, len(columns)) as write:
                for chunk in _blocks(chunks, form.block_rows):
                    if stop.is_set():
                        return
                    write(chunk)
                    bar(chunk.num_rows)

        _on_threads(write_file, len(files), options.workers)
        paths = list(partial.iterdir())
        nbytes = sum(path.stat().st_size for path in paths)
        metadata = {"form": form.name, "rows": rows, "files": len(paths), "nbytes": nbytes}
        metadata |= {"columns": {name: list(source.column_types[name]) for name in columns}}
        metadata |= form.metadata()
        (partial / METADATA_FILE).write_text(json.dumps(metadata, indent=1), encoding="utf-8")
    return Written(len(paths), rows, nbytes, time.perf_counter() - started)


def _refuse_foreign(folder: Path, overwrite: bool) -> None:
    """Raise FileExistsError for a folder that may not, or should not, be replaced."""
    refuse_existing(folder, overwrite)
    if folder.exists() and not (folder / METADATA_FILE).is_file():
        raise FileExistsError(
            f"{folder} was not written by tutorlib.tfrecords (it has no {METADATA_FILE}), so it is "
            "not replaced; choose another folder or remove it yourself"
        )


def _checked(
    form: Form, source: Any, columns: list[str], row_ranges: list[RowRange]
) -> Iterator[Chunk]:
    """Yield the rows of each part in order; errors say where they stand."""
    for row_range in row_ranges:
        chunk = read(source, row_range, columns)
        with errors_at(source, row_range):
            whole = Chunk({name: _without_mask(name, column) for name, column in chunk.items()})
            for name, column in whole.items():
                lists = isinstance(column, Ragged)
                form.check(name, column.values if lists else column, lists)
        yield whole


def _blocks(chunks: Iterable[Chunk], rows: int) -> Iterator[Chunk]:
    """Yield the same rows in chunks of `rows` rows each, the last one with what is left."""
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


def _on_threads(task: Callable[[int, threading.Event], None], count: int, threads: int) -> None:
    """Call task(0), task(1), ... on threads; after an error, raised here, the others stop."""
    stop = threading.Event()
    with ThreadPoolExecutor(min(threads, count), thread_name_prefix="tfrecords") as pool:
        futures = [pool.submit(task, number, stop) for number in range(count)]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def positive(**values: int | None) -> None:
    """Raise ValueError for a value below 1; None is fine."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _without_mask(name: str, column: Any) -> Any:
    """Return a column that may have nulls, and has none, as one that cannot have any."""
    if isinstance(column, Ragged):
        return Ragged(_without_mask(name, column.values), column.offsets)
    if not isinstance(column, Masked):
        return column
    if nulls := int((~column.valid).sum()):
        raise ValueError(
            f"column {name!r}: {nulls} nulls, and a record has no place for them. Fill them first "
            "(FillMissing or Categorify in a Workflow)."
        )
    return column.values


def refuse_text(name: str, values: Any) -> None:
    """Raise ValueError for text, which has no fixed width."""
    if isinstance(values, Strings):
        raise ValueError(
            f"column {name!r}: text has no fixed width. Turn it into ids first (Categorify or "
            "HashBucket in a Workflow), or use write_examples."
        )


def refuse_outside(name: str, values: Any, dtype: type[np.signedinteger]) -> None:
    """Raise ValueError for integers that do not fit into `dtype`; floating point is fine."""
    if isinstance(values, Strings) or values.dtype.kind not in "iu" or not len(values):
        return
    limits = np.iinfo(dtype)
    own = np.iinfo(values.dtype)
    if limits.min <= own.min and own.max <= limits.max:
        return
    for value in (values.min(), values.max()):
        if not limits.min <= int(value) <= limits.max:
            raise ValueError(f"column {name!r}: {value} does not fit into {limits.dtype}")
