"""Transformed rows as Parquet part files, written in parallel by threads or by Dask workers.

The rows of each part file, and their order, are chosen before the first row is read, so they do not
depend on who writes it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.checks import check_integer
from tutorlib.columns import Chunk, encoded_column
from tutorlib.parquet import ParquetSink, ParquetSource, RowRange
from tutorlib.workflow import saved
from tutorlib.workflow.fit import (
    Client,
    as_source,
    call_on_cluster,
    map_on_threads,
    on_range,
    row_ranges_in,
    threads_without,
)

PREFETCH = 2  # row ranges of a part file that are transformed while one is written
SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.=-]*")


@dataclasses.dataclass(frozen=True)
class PartFile:
    """The rows of one part file."""

    split: str  # name of the source that they are from; "" if there is only one, without a name
    number: int  # of the part file in its split
    row_ranges: list[RowRange]

    @property
    def path(self) -> str:
        """Path within the folder."""
        return f"{self.split}/part_{self.number:05d}.parquet".lstrip("/")


@dataclasses.dataclass
class WriteJob:
    """What `Workflow.transform_to_parquet` has to write, checked. Can be pickled."""

    workflow: Any  # a fitted `Workflow`
    sources: dict[str, ParquetSource]  # {name of the split: rows}
    rows_per_file: int  # whole row groups
    row_group_rows: int
    shuffle_seed: int | None  # None keeps the order

    def __post_init__(self) -> None:
        self.workflow.check_fitted()
        saved.check_savable(self.workflow)  # the folder holds the workflow too
        if self.shuffle_seed is not None:
            self.shuffle_seed = check_integer("shuffle_seed", self.shuffle_seed, at_least=0)
        self.inputs: list[str] = []  # files and folders of this machine
        self.workflows: dict[str, Any] = {}
        self.schemas: dict[str, str] = {}
        for split, source in self.sources.items():
            self.workflow.check_data(source)
            if source.num_rows == 0:
                raise ValueError(f"nothing to write: {split or 'the data'} has no rows")
            self.workflows[split] = self.workflow.for_columns(source.column_types)
            self.schemas[split] = self.workflows[split].output_schema.to_json()
            self.sources[split] = source.with_strings_as(encoded_column)
            if source.is_local:
                self.inputs += [*source.files, *map(os.fspath, source.paths)]

    def part_files(self) -> list[PartFile]:
        """Return the part files: `rows_per_file` rows each."""
        parts = []
        for split, source in self.sources.items():
            order = np.arange(len(source.row_groups))
            if self.shuffle_seed is not None:
                np.random.default_rng([self.shuffle_seed, 0]).shuffle(order)
            lists = split_by_rows(row_ranges_in(source, order.tolist()), self.rows_per_file)
            parts += [PartFile(split, number, ranges) for number, ranges in enumerate(lists)]
        return parts

    def transform(self, split: str, row_range: RowRange) -> Chunk:
        """Return the transformed rows of a row range."""
        workflow = self.workflows[split]
        return on_range(self.sources[split], row_range, workflow.input_names, workflow.transform)

    def write(self, folder: Path, part: PartFile, chunks: Iterable[Chunk] | None = None) -> None:
        """Write a part file of these transformed rows; None transforms them here."""
        if chunks is None:
            chunks = (self.transform(part.split, row_range) for row_range in part.row_ranges)
        if self.shuffle_seed is not None:
            whole = Chunk.concat(list(chunks))
            order = np.random.default_rng([self.shuffle_seed, 1, part.number])
            chunks = [whole.take(order.permutation(whole.num_rows))]
            del whole
        # A worker that was thought to be dead may have written the same part file.
        with ParquetSink(
            folder / part.path, row_group_rows=self.row_group_rows, overwrite=True
        ) as sink:
            for chunk in chunks:
                sink.write(chunk)


def split_by_rows(row_ranges: Iterable[RowRange], rows: int) -> list[list[RowRange]]:
    """Return the row ranges in lists of exactly `rows` rows each; the last list has the rest.

    Example:
        >>> ranges = [RowRange(0, 0, 5), RowRange(1, 0, 5)]
        >>> [[row_range.num_rows for row_range in some] for some in split_by_rows(ranges, 4)]
        [[4], [1, 3], [2]]
    """
    lists: list[list[RowRange]] = []
    count = 0
    for row_range in row_ranges:
        start = row_range.start
        while start < row_range.stop:
            if count % rows == 0:
                lists.append([])
            end = min(row_range.stop, start + rows - count % rows)
            lists[-1].append(RowRange(row_range.row_group, start, end))
            count += end - start
            start = end
    return lists


def named_sources(source: Any) -> dict[str, ParquetSource]:
    """Return {name of the split: rows} of what `transform_to_parquet` takes."""
    if not isinstance(source, Mapping) or isinstance(source, Chunk):
        return {"": as_source(source)}
    if not source:
        raise ValueError("source is {}: give {name: data} with at least one split")
    sources = {}
    for name, data in source.items():
        if not SPLIT_NAME.fullmatch(name):
            raise ValueError(
                "the name of a split becomes that of a folder, so it must start with a letter or "
                f"digit and continue with letters, digits and _ . = -, got {name!r}"
            )
        sources[name] = as_source(data)
    return sources


def write_data_set(job: WriteJob, folder: Path, client: Client | None, threads: int | None) -> None:
    """Write all part files, the schemas and the workflow into an empty folder."""
    threads = threads_without(client, threads)
    if client is None:
        _write_on_threads(job, folder, threads)
    else:
        write = functools.partial(job.write, folder.absolute())  # workers may be elsewhere
        call_on_cluster(client, write, job.part_files())
    for killed in folder.rglob("*.partial"):  # what a dead worker left
        shutil.rmtree(killed)
    for split, schema in job.schemas.items():
        (folder / split / "_schema.json").write_text(schema, encoding="utf-8")
    saved.write_files(job.workflow, folder / saved.SUBFOLDER)


def _write_on_threads(job: WriteJob, folder: Path, threads: int) -> None:
    """Write each part file on a thread of its own, `threads` at a time.

    One shared pool transforms the rows, so that the last part file has all threads.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="transform") as pool:

        def chunks_of(part: PartFile) -> Iterator[Chunk]:
            """Yield the transformed row ranges in order, while the next ones are transformed."""
            tasks = (pool.submit(job.transform, part.split, rows) for rows in part.row_ranges)
            ahead = collections.deque(itertools.islice(tasks, PREFETCH))
            while ahead:
                chunk = ahead.popleft().result()
                ahead.extend(itertools.islice(tasks, 1))
                yield chunk

        def write(part: PartFile) -> None:
            job.write(folder, part, chunks_of(part))

        map_on_threads(write, job.part_files(), threads)
