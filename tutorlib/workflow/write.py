"""Transformed rows as Parquet part files, written in parallel by threads or by Dask workers.

The rows of each part file are chosen before the first row is read. So they do not depend on who
writes it, and a part file that an earlier run finished can be kept.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tutorlib.checks import check_choice, check_integer
from tutorlib.columns import Chunk, plain_strings, to_namespace
from tutorlib.memory import map_on_threads, thread_count, working_in
from tutorlib.parquet import ParquetSink, RowRange, with_encoded_strings
from tutorlib.storage import RemotePath, new_file_in, resumable_folder, resumable_remote, row_bar
from tutorlib.workflow import saved_form
from tutorlib.workflow.fit import (
    RowSource,
    as_source,
    input_paths,
    locate_errors,
    read_range,
    row_ranges_in,
    split_by_rows,
    write_on_cluster,
)
from tutorlib.workflow.graph import OpGraph

ENCODINGS = ("fast", "default")
MANIFEST = "_manifest.json"
PREFETCH = 2  # chunks of a part file that are transformed before they are written
SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.=-]*")


@dataclasses.dataclass(frozen=True)
class PartFile:
    """The rows of one part file."""

    split: str  # name of the source that they are from; "" if there is only one, without a name
    number: int  # of the part file in its split
    row_ranges: list[RowRange]

    @property
    def num_rows(self) -> int:
        """Rows of the part file."""
        return sum(row_range.num_rows for row_range in self.row_ranges)

    @property
    def path(self) -> str:
        """Path within the folder."""
        return f"{self.split}/part_{self.number:05d}.parquet".lstrip("/")


@dataclasses.dataclass
class WriteJob:
    """What `Workflow.transform_to_parquet` has to write, checked. Can be pickled."""

    graph: OpGraph
    sources: dict[str, RowSource]  # {name of the split: rows}
    rows_per_file: int  # whole row groups
    row_group_rows: int
    encoding: str
    shuffle_seeds: dict[str, int | None]  # {name of the split: seed}; None keeps the order

    def __post_init__(self) -> None:
        self.graph.check_fitted()
        saved_form.check_functions(self.graph)
        self.graphs = {n: self.graph.for_columns(s.column_types) for n, s in self.sources.items()}
        for split, source in self.sources.items():
            self.graphs[split].check_data(source)
        check_choice("encoding", self.encoding, ENCODINGS)
        self.inputs = [path for source in self.sources.values() for path in input_paths(source)]
        self.sources = {n: with_encoded_strings(source) for n, source in self.sources.items()}

    def part_files(self) -> list[PartFile]:
        """Return the part files: `rows_per_file` rows each."""
        parts = []
        for split, source in self.sources.items():
            order = np.arange(len(source.row_groups))
            if (seed := self.shuffle_seeds.get(split)) is not None:
                np.random.default_rng([seed, 0]).shuffle(order)
            lists = split_by_rows(row_ranges_in(source, order.tolist()), self.rows_per_file)
            parts += [PartFile(split, number, ranges) for number, ranges in enumerate(lists)]
        return parts

    def metadata(self) -> dict[str, Any] | None:
        """Return what decides what the files hold; None for rows in memory and unknown code."""
        sources = {name: _source_metadata(source) for name, source in self.sources.items()}
        if None in sources.values() or not saved_form.code_is_known(self.graph):
            return None
        settings = ("rows_per_file", "row_group_rows", "encoding", "shuffle_seeds")
        return {
            "workflow": saved_form.fingerprint(self.graph),
            "inputs": self.graph.input_names,  # for training, the columns of folds too
            "sources": sources,
            "pyarrow": pa.__version__,
            **{name: getattr(self, name) for name in settings},
        }

    def transform(self, split: str, row_range: RowRange) -> Chunk:
        """Return the transformed rows of a row range as NumPy arrays."""
        source = self.sources[split]
        with working_in(source):
            graph = self.graphs[split]
            chunk = read_range(source, row_range, graph.input_names)
            with locate_errors(source, row_range):
                done = graph.transform(chunk)
            return Chunk({n: to_namespace(plain_strings(column), np) for n, column in done.items()})

    def write(self, folder: Path, part: PartFile, chunks: Iterable[Chunk] | None = None) -> None:
        """Write a part file of these transformed rows; None transforms them here."""
        if chunks is None:
            chunks = (self.transform(part.split, row_range) for row_range in part.row_ranges)
        if (seed := self.shuffle_seeds.get(part.split)) is not None:
            whole = Chunk.concat(list(chunks))
            order = np.random.default_rng([seed, 1, part.number])
            chunks = [whole.take(order.permutation(whole.num_rows))]
            del whole
        with (
            new_file_in(folder, part.path) as path,
            ParquetSink(
                path,
                rows_per_file=2**62,
                row_group_rows=self.row_group_rows,
                encoding=self.encoding,
            ) as sink,
        ):
            for chunk in chunks:
                sink.write(chunk)


def named_sources(source: Any) -> dict[str, RowSource]:
    """Return {name of the split: rows} of what `transform_to_parquet` takes."""
    if not isinstance(source, Mapping) or isinstance(source, Chunk):
        return {"": as_source(source)}
    if not source:
        raise ValueError("source is {}: give {name: data} with at least one split")
    for name in source:
        if not SPLIT_NAME.fullmatch(name):
            raise ValueError(
                "the name of a split becomes that of a folder, so it must start with a letter or "
                f"digit and continue with letters, digits and _ . = -, got {name!r}"
            )
    return {name: as_source(data) for name, data in source.items()}


def named_seeds(
    shuffle_seed: int | Mapping[str, int | None] | None, splits: Iterable[str]
) -> dict[str, int | None]:
    """Return {name of the split: seed} of what `transform_to_parquet` takes."""
    splits = list(splits)
    if not isinstance(shuffle_seed, Mapping):
        shuffle_seed = dict.fromkeys(splits, shuffle_seed)
    if unknown := [name for name in shuffle_seed if name not in splits]:
        raise ValueError(f"shuffle_seed names {unknown}, but the splits are {splits}")
    return {
        split: None if seed is None else check_integer("shuffle_seed", seed, at_least=0)
        for split, seed in shuffle_seed.items()
    }


def write_data_set(
    job: WriteJob,
    folder: Path | RemotePath,
    *,
    client: Any,
    threads: int | None,
    progress: bool | None,
) -> None:
    """Write all part files into a folder that appears whole, or resume what a killed run left."""
    if client is not None and threads is not None:
        raise ValueError("threads are for writing in this process; with client=, its workers write")
    if client is not None and isinstance(folder, RemotePath):
        raise ValueError(
            f"with client=, workers write to a folder that all of them see, not to {folder}. "
            "Write to a shared folder and copy that, or write without client=."
        )
    threads = thread_count(threads)
    parts, metadata = job.part_files(), job.metadata()
    rows = sum(source.num_rows for source in job.sources.values())
    with (
        row_bar("transform", rows, progress) as done,
        _staged(folder, metadata) as building,
    ):
        missing = []
        for part in parts:
            if (building / part.path).exists():
                done(part.num_rows)
            else:
                missing.append(part)
        if client is not None:
            rows_of = [part.num_rows for part in missing]
            write_on_cluster(client, functools.partial(job.write, building), missing, rows_of, done)
        elif missing:
            _write_on_threads(job, building, missing, threads, done)
        files = _remove_empty(building, parts)
        _write_descriptions(job, building)
        with new_file_in(building, MANIFEST) as path:
            manifest = {"metadata": metadata, "files": files}
            path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _staged(
    folder: Path | RemotePath, metadata: Mapping[str, Any] | None
) -> contextlib.AbstractContextManager[Path]:
    if isinstance(folder, RemotePath):
        return resumable_remote(folder, metadata)
    return resumable_folder(folder.absolute(), metadata)  # workers may have another working folder


def _write_on_threads(
    job: WriteJob, folder: Path, parts: list[PartFile], threads: int, done: Callable[[int], None]
) -> None:
    """Write each part file on a thread of its own, `threads` at a time.

    One shared pool transforms the rows, so that the last part file has all threads. If a part file
    fails, those before it are still written: they may hold the first error, which is raised.
    """
    stop, failed = threading.Event(), list[int]()
    with ThreadPoolExecutor(threads, thread_name_prefix="transform") as pool:

        def write(number: int) -> None:
            def is_over() -> bool:
                return stop.is_set() and number > min(failed, default=-1)

            try:
                chunks = _prefetched(job, parts[number], pool, is_over, done)
                job.write(folder, parts[number], chunks)
            except Exception:
                failed.append(number)
                raise

        map_on_threads(write, range(len(parts)), threads, stop)


def _prefetched(
    job: WriteJob,
    part: PartFile,
    pool: ThreadPoolExecutor,
    is_over: Callable[[], bool],
    done: Callable[[int], None],
) -> Iterator[Chunk]:
    """Yield the transformed row ranges of a part file in order, with some transformed ahead."""
    futures: collections.deque[tuple[RowRange, Future[Chunk]]] = collections.deque()
    row_ranges = iter(part.row_ranges)
    try:
        while True:
            while len(futures) < PREFETCH and (row_range := next(row_ranges, None)) is not None:
                futures.append((row_range, pool.submit(job.transform, part.split, row_range)))
            if not futures:
                return
            row_range, future = futures.popleft()
            chunk = future.result()
            if is_over():
                raise CancelledError  # an earlier part file has failed, or the user interrupts
            done(row_range.num_rows)
            yield chunk
    finally:
        for _, future in futures:
            future.cancel()


def _remove_empty(folder: Path, parts: list[PartFile]) -> list[dict[str, Any]]:
    """Remove part files without rows, and return {name, rows, bytes} of the others.

    Raises:
        ValueError: if a split has no output rows.
    """
    files, rows_of = [], collections.Counter[str]()
    for part in parts:
        path = folder / part.path
        rows = pq.read_metadata(path).num_rows
        rows_of[part.split] += rows
        if rows:
            files.append({"name": part.path, "rows": rows, "bytes": path.stat().st_size})
    for part in parts:
        if part.path not in {file["name"] for file in files}:
            (folder / part.path).unlink()
    for split, rows in rows_of.items():
        if rows == 0:
            raise ValueError(
                f"nothing to write{f' for {split!r}' if split else ''}: the data has no rows"
            )
    return files


def _write_descriptions(job: WriteJob, folder: Path) -> None:
    """Write the schema next to the part files of each split, and the workflow below the folder."""
    if job.graph.input_types:
        for split in job.sources:
            path = folder / split / "_schema.json"
            path.write_text(job.graphs[split].output_schema.to_json(), encoding="utf-8")
    saved_form.write_files(job.graph, folder / saved_form.SUBFOLDER)


def _source_metadata(source: RowSource) -> dict[str, Any] | None:
    """Return the fingerprint of a source, and when its files were changed."""
    metadata = source.fingerprint()
    if metadata is None:
        return None
    paths = [path for path in source.files if os.path.exists(path)]
    times = [os.stat(path).st_mtime_ns for path in paths]
    stored = getattr(source, "stored", None)
    remote = [] if stored is None else [file for file in stored.files if not file.is_local]
    return {**metadata, "times": [*times, *(file.version for file in remote)]}
