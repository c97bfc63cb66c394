"""Transformed rows as Parquet part files: written side by side, each by one thread or worker.

Which rows go to which part file is settled before the first is read, so that it does not depend on
who writes it, and a file that a killed run has finished can stay. Does not belong here: folders
that survive being killed (`unfinished.py`), what transforms (`workflow.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.checks import check_choice
from tutorlib.chunk import Chunk, to_namespace
from tutorlib.encoded_strings import plain_strings
from tutorlib.memory import working_in
from tutorlib.parquet import ParquetSink, RowRange, with_encoded_strings
from tutorlib.storage import map_on_threads, unfinished_folder, written_into
from tutorlib.workflow.dask_cluster import write_on_cluster
from tutorlib.workflow.inputs import locate_errors, read_range, row_ranges_in, split_by_rows

ENCODINGS = ("fast", "default")
MANIFEST = "_manifest.json"
AHEAD = 2  # chunks that a part file has transformed before they are wanted


@dataclasses.dataclass(frozen=True)
class Unit:
    """The rows of one part file.

    Args:
        split: name of the source that they are from.
        number: of the part file.
        parts: where the rows are.
    """

    split: str
    number: int
    row_ranges: list[RowRange]

    @property
    def num_rows(self) -> int:
        """Rows that are read for it."""
        return sum(row_range.num_rows for row_range in self.row_ranges)

    @property
    def file(self) -> str:
        """Path of the part file in the folder."""
        return f"{self.split}/part_{self.number:05d}.parquet".lstrip("/")


@dataclasses.dataclass
class Rewriting:
    """What has to be written; can be sent to another process.

    Args:
        workflow: fitted, transforms.
        sources: {name of the split: source}; the name "" stands for the folder itself.
        rows_per_file: rows of a part file.
        row_group_rows: rows of a row group.
        encoding: see `ParquetSink`.
        shuffle_seeds: {name of the split: seed}; None keeps the order.
    """

    workflow: Any
    sources: Mapping[str, Any]
    rows_per_file: int
    row_group_rows: int
    encoding: str
    shuffle_seeds: Mapping[str, int | None]

    def __post_init__(self) -> None:
        if not 1 <= self.row_group_rows <= self.rows_per_file:
            raise ValueError(
                "need 1 <= row_group_rows <= rows_per_file, got "
                f"row_group_rows={self.row_group_rows}, rows_per_file={self.rows_per_file}"
            )
        check_choice("encoding", self.encoding, ENCODINGS)
        self.sources = {n: with_encoded_strings(source) for n, source in self.sources.items()}

    def units(self) -> list[Unit]:
        """Return the part files: `rows_per_file` rows each, rounded down to whole row groups."""
        rows = self.rows_per_file - self.rows_per_file % self.row_group_rows
        units = []
        for split, source in self.sources.items():
            order = np.arange(len(source.row_groups))
            if (seed := self.shuffle_seeds.get(split)) is not None:
                np.random.default_rng([seed, 0]).shuffle(order)
            lists = split_by_rows(row_ranges_in(source, order.tolist()), rows)
            units += [Unit(split, number, row_ranges) for number, row_ranges in enumerate(lists)]
        return units

    def metadata(self) -> dict[str, Any] | None:
        """Return what decides what is in the files, None if not all of it can be told.

        It cannot for rows in memory, and for functions of the user, of which the name is known.
        """
        ops = [*self.workflow.row_ops, *(op for g in self.workflow.groups for op in g.ops)]
        sources = {name: _metadata_of(source) for name, source in self.sources.items()}
        if None in sources.values() or any(getattr(op, "function", None) for op in ops):
            return None
        settings = ("rows_per_file", "row_group_rows", "encoding", "shuffle_seeds")
        return {
            "workflow": self.workflow.fingerprint,
            "sources": sources,
            "pyarrow": pa.__version__,
            **{name: getattr(self, name) for name in settings},
        }

    def transformed(self, split: str, row_range: RowRange) -> Chunk:
        """Return the transformed rows of a part, in the memory of the CPU."""
        source, workflow = self.sources[split], self.workflow
        with working_in(source):
            chunk = read_range(source, row_range, workflow.input_names)
            with locate_errors(source, row_range):
                done = workflow.transform(chunk)
            return Chunk({n: to_namespace(plain_strings(column), np) for n, column in done.items()})

    def write(self, folder: Path, unit: Unit, chunks: Iterable[Chunk] | None = None) -> None:
        """Write the part file of a unit.

        Args:
            folder: in which it goes.
            unit: its rows.
            chunks: the transformed rows in order, if they are being worked on elsewhere.
        """
        if chunks is None:
            chunks = (self.transformed(unit.split, row_range) for row_range in unit.row_ranges)
        if (seed := self.shuffle_seeds.get(unit.split)) is not None:
            whole = Chunk.concat(list(chunks))
            order = np.random.default_rng([seed, 1, unit.number])
            chunks = [whole.take(order.permutation(whole.num_rows))]
            del whole
        options = {"row_group_rows": self.row_group_rows, "encoding": self.encoding}
        with (
            written_into(folder, unit.file) as path,
            ParquetSink(path, rows_per_file=2**62, **options) as sink,
        ):
            for chunk in chunks:
                sink.write(chunk)


def rewrite(
    work: Rewriting,
    target: str | os.PathLike[str],
    *,
    threads: int,
    client: Any,
    bar: Callable[[int], None],
    finish: Callable[[Path], None],
) -> None:
    """Write all part files into a folder that appears whole, or go on where a killed run ended.

    Args:
        work: what to write.
        target: folder.
        threads: each transforms a part at a time, and as many others write.
        client: `distributed.Client`, whose workers write in place of threads; or None.
        bar: called with the rows that are done.
        finish: is called with the folder when all part files are there.
    """
    target = Path(target).absolute()  # for workers that were started in another folder
    units = work.units()
    metadata = work.metadata()
    with unfinished_folder(target, metadata) as folder:
        left = []
        for unit in units:
            if (folder / unit.file).exists():
                bar(unit.num_rows)
            else:
                left.append(unit)
        if client is not None:
            write_on_cluster(client, functools.partial(work.write, folder), left, bar)
        elif left:
            _write_on_threads(work, folder, left, threads, bar)
        files = _without_empty(folder, units)
        finish(folder)
        with written_into(folder, MANIFEST) as path:
            path.write_text(json.dumps({"facts": metadata, "files": files}, indent=1), "utf-8")


def _write_on_threads(
    work: Rewriting, folder: Path, units: list[Unit], threads: int, bar: Callable[[int], None]
) -> None:
    """Write each unit on a thread of its own, `threads` at a time; others transform for them.

    What transforms is shared, so that the last part file has all threads.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="transform") as pool:

        def write(unit: Unit) -> None:
            work.write(folder, unit, _ahead(work, unit, pool, stop, bar))

        map_on_threads(write, units, threads, stop)


def _ahead(
    work: Rewriting,
    unit: Unit,
    pool: ThreadPoolExecutor,
    stop: threading.Event,
    bar: Callable[[int], None],
) -> Iterator[Chunk]:
    """Yield the transformed parts of a unit in order, worked on by the pool before they are due."""
    futures: collections.deque[tuple[RowRange, Future[Chunk]]] = collections.deque()
    row_ranges = iter(unit.row_ranges)
    try:
        while True:
            while len(futures) < AHEAD and (row_range := next(row_ranges, None)) is not None:
                futures.append((row_range, pool.submit(work.transformed, unit.split, row_range)))
            if not futures:
                return
            row_range, future = futures.popleft()
            chunk = future.result()
            if stop.is_set():
                raise RuntimeError("another part file has failed")  # of which all are told
            bar(row_range.num_rows)
            yield chunk
    finally:
        for _, future in futures:
            future.cancel()


def _without_empty(folder: Path, units: list[Unit]) -> list[dict[str, Any]]:
    """Remove part files without rows, and return {name, rows, bytes} of the others.

    Raises:
        ValueError: if no row came out for one of the splits.
    """
    files, rows_of = [], collections.Counter[str]()
    for unit in units:
        path = folder / unit.file
        rows = pq.read_metadata(path).num_rows
        rows_of[unit.split] += rows
        if rows:
            files.append({"name": unit.file, "rows": rows, "bytes": path.stat().st_size})
    for split, rows in rows_of.items():
        if rows == 0:
            raise ValueError(f"no row came out{f' for {split!r}' if split else ''}")
    for unit in units:
        if unit.file not in {file["name"] for file in files}:
            (folder / unit.file).unlink()
    return files


def _metadata_of(source: Any) -> dict[str, Any] | None:
    """Return the fingerprint of a source and, of files on this machine, the times of change."""
    metadata = source.fingerprint()
    if metadata is None:
        return None
    while not hasattr(source, "files"):
        source = source.source
    paths = [path for path in source.files if os.path.exists(path)]
    return {**metadata, "times": [os.stat(path).st_mtime_ns for path in paths]}
