"""Transformed rows as Parquet part files, written in parallel by threads or by Dask workers.

The rows of each part file, and their order, are chosen before the first row is read. So they do not
depend on who writes it, and a run keeps each part file that an earlier one finished and was stopped
after. `split_rows` makes sources of training and validation rows.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tutorlib
from tutorlib import output
from tutorlib.checks import check_integer
from tutorlib.columns import Chunk, Masked, Strings, to_namespace
from tutorlib.display import row_bar
from tutorlib.hashing import hash_integers, hash_values
from tutorlib.ops.base import is_builtin
from tutorlib.ops.encoded import encoded_column
from tutorlib.parquet import ParquetSink, ParquetSource, RowRange
from tutorlib.workflow import saved
from tutorlib.workflow.fit import (
    as_source,
    input_paths,
    locate_errors,
    read_range,
    row_ranges_in,
    split_by_rows,
    threads_without,
    write_on_cluster,
)
from tutorlib.workflow.threads import map_on_threads

MANIFEST = "_manifest.json"
WRITING = "_writing"  # folder of part files that are not finished
PREFETCH = 2  # row ranges of a part file that are transformed while one is written
SPLIT_NAME = re.compile(r"[A-Za-z0-9][\w.=-]*")
HASHES = 2**64  # number of different hashes


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
        self.workflows: dict[str, Any] = {}
        for split, source in self.sources.items():
            self.workflow.check_data(source)
            if source.num_rows == 0:
                raise ValueError(f"nothing to write: {split or 'the data'} has no rows")
            self.workflows[split] = self.workflow.for_columns(source.column_types)
        self.schemas = {split: w.output_schema.to_json() for split, w in self.workflows.items()}
        self.inputs = [path for source in self.sources.values() for path in input_paths(source)]
        self.sources = {n: s.with_strings_as(encoded_column) for n, s in self.sources.items()}

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

    def metadata(self) -> dict[str, Any] | None:
        """Return what decides what the files hold; None for code of the user."""
        if not all(is_builtin(type(op)) for group in self.workflow.groups for op in group.ops):
            return None
        settings = ("rows_per_file", "row_group_rows", "shuffle_seed")
        return {
            "workflow": self.workflow.fingerprint,
            "sources": {name: source.fingerprint() for name, source in self.sources.items()},
            "versions": [tutorlib.__version__, pa.__version__, np.__version__],
            **{name: getattr(self, name) for name in settings},
        }

    def transform(self, split: str, row_range: RowRange) -> Chunk:
        """Return the transformed rows of a row range as NumPy arrays."""
        source, workflow = self.sources[split], self.workflows[split]
        chunk = read_range(source, row_range, workflow.input_names)
        with locate_errors(source, row_range):
            done = workflow.transform(chunk)
        return Chunk({n: to_namespace(column, np) for n, column in done.items()})

    def write(self, folder: Path, part: PartFile, chunks: Iterable[Chunk] | None = None) -> None:
        """Write a part file of these transformed rows; None transforms them here."""
        if chunks is None:
            chunks = (self.transform(part.split, row_range) for row_range in part.row_ranges)
        if self.shuffle_seed is not None:
            whole = Chunk.concat(list(chunks))
            order = np.random.default_rng([self.shuffle_seed, 1, part.number])
            chunks = [whole.take(order.permutation(whole.num_rows))]
            del whole
        # A name of its own: a worker that was thought to be dead may write the same part file.
        path = folder / WRITING / f"{uuid.uuid4().hex}.parquet"
        with ParquetSink(path, rows_per_file=2**62, row_group_rows=self.row_group_rows) as sink:
            for chunk in chunks:
                sink.write(chunk)
        (folder / part.path).parent.mkdir(exist_ok=True)
        path.replace(folder / part.path)


def named_sources(source: Any) -> dict[str, ParquetSource]:
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


def write_data_set(
    job: WriteJob,
    folder: Path | output.RemotePath,
    *,
    client: Any,
    threads: int | None,
    progress: bool | None,
) -> None:
    """Write all part files into a folder that appears whole, or those that a stopped run lacks."""
    threads = threads_without(client, threads)
    if client is not None and isinstance(folder, output.RemotePath):
        raise ValueError(
            f"with client=, workers write to a folder that all of them see, not to {folder}. "
            "Write to a shared folder and copy that, or write without client=."
        )
    parts, metadata = job.part_files(), job.metadata()
    rows = sum(source.num_rows for source in job.sources.values())
    # A file may have other values and the same footer, but not the same time of its last change.
    times = [version for source in job.sources.values() for version in source.versions]
    with (
        row_bar("transform", rows, progress) as done,
        output.new_folder(folder, metadata and {**metadata, "times": times}) as building,
    ):
        shutil.rmtree(building / WRITING, ignore_errors=True)
        missing = [part for part in parts if not (building / part.path).exists()]
        done(rows - sum(part.num_rows for part in missing))
        if client is not None:
            write = functools.partial(job.write, building.absolute())  # workers may be elsewhere
            write_on_cluster(client, write, missing, [part.num_rows for part in missing], done)
        else:
            _write_on_threads(job, building, missing, threads, done)
        shutil.rmtree(building / WRITING, ignore_errors=True)
        for split, schema in job.schemas.items():
            (building / split / "_schema.json").write_text(schema, encoding="utf-8")
        saved.write_files(job.workflow, building / saved.SUBFOLDER)
        files = [
            {"name": p.path, "rows": p.num_rows, "bytes": (building / p.path).stat().st_size}
            for p in parts
        ]
        manifest = {"metadata": metadata, "files": files}
        (building / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _write_on_threads(
    job: WriteJob, folder: Path, parts: list[PartFile], threads: int, done: Callable[[int], None]
) -> None:
    """Write each part file on a thread of its own, `threads` at a time.

    One shared pool transforms the rows, so that the last part file has all threads.
    """
    stop = threading.Event()  # set after an error or an interrupt
    with ThreadPoolExecutor(threads, thread_name_prefix="transform") as pool:

        def chunks_of(part: PartFile) -> Iterator[Chunk]:
            """Yield the transformed row ranges in order, while the next ones are transformed."""
            begun = (pool.submit(job.transform, part.split, rows) for rows in part.row_ranges)
            ahead = collections.deque(itertools.islice(begun, PREFETCH))
            while ahead:
                chunk = ahead.popleft().result()
                if stop.is_set():
                    raise CancelledError
                done(chunk.num_rows)
                ahead.extend(itertools.islice(begun, 1))
                yield chunk

        map_on_threads(lambda part: job.write(folder, part, chunks_of(part)), parts, threads, stop)


def split_rows(
    data: Any,
    shares: Mapping[str, float],
    seed: int | None = None,
    by: str | Sequence[str] | None = None,
) -> dict[str, ParquetSource]:
    """Return {name: its rows of `data`}: each row is in exactly one part, in the original order.

    Parts of one call can be added, which gives the rows of both. Of rows that are sorted by label,
    a part without a seed may have only one label.

    Args:
        data: a `ParquetSource`, or what it takes, such as paths or a DataFrame; a chunk or several
            in a list. To split by the values of a column, use two sources with filters instead:
            `ParquetSource(paths, filters=[("day", "<", 6)])` and its counterpart.
        shares: {name: share of the rows}, each above 0, together 1.
        seed: None cuts the rows in order, exact to a row: the first name gets the first rows, which
            is a split by time where rows are in time order. An integer in [0, 2**63) draws each row
            by a hash of the seed and the row's number. Then a part has about
            `sqrt(share * num_rows)` rows more or less than its share, and a row is in the same part
            on every machine.
        by: columns of integers, strings or times, for a split by group: rows with equal values,
            such as all rows of a user, are in one part, which a hash of seed (0 if it is None) and
            values draws. The columns are read once; an eighth of a byte is kept for each row and
            part. A part has about its share of the groups: of the rows too if no group is large.

    Returns:
        A source for each name, which `Workflow` and `KerasSequenceLoader` take.

    Raises:
        ValueError: if the shares do not add up to 1, a share is not above 0, or a part has no row.
        TypeError: if the shares have no names, or a column of `by` has another type.
        ParquetError: if there is no such column.

    Five-fold cross-validation:

        folds = split_rows(source, {f"fold_{n}": 1 / 5 for n in range(5)}, seed=0)
        for name, valid in folds.items():
            train = sum(fold for other, fold in folds.items() if other != name)

    By group, and by time:

        parts = split_rows(source, {"train": 0.8, "valid": 0.2}, by="user")
        train = ParquetSource(paths, filters=[("time", "<", "2024-06-01")])
        valid = ParquetSource(paths, filters=[("time", ">=", "2024-06-01")])

    Random parts also shuffle a data set that does not fit into memory, however it is sorted:

        parts = split_rows(source, {f"part_{n}": 1 / 8 for n in range(8)}, seed=0)
        workflow.transform_to_parquet(parts, "shuffled", shuffle_seed=0)

    Choose so many parts that one has at most `rows_per_file` rows: it is then shuffled as a whole.
    Each part reads all row groups. 4 million rows sorted by label in one row group, in 4 parts:
    a batch of 4,096 rows is worth 3,800 random rows (`shuffle_quality`), 20 without the parts, and
    writing takes 2.5 s instead of 1.0 s.

    Example:
        >>> rows = Chunk({"x": np.arange(10)})
        >>> split = split_rows(rows, {"train": 0.8, "valid": 0.2})
        >>> split["valid"].read(0, ["x"])["x"].tolist()
        [8, 9]
        >>> split = split_rows(rows, {"train": 0.8, "valid": 0.2}, seed=1)
        >>> split["valid"].read(0, ["x"])["x"].tolist()
        [4]
    """
    source = as_source(data)
    if not isinstance(shares, Mapping):
        raise TypeError(f"shares takes {{name: share}}, got {shares!r}")
    if abs(sum(shares.values()) - 1) > 1e-9 or not all(share > 0 for share in shares.values()):
        raise ValueError(f"shares must be above 0 and add up to 1, got {dict(shares)}")
    if seed is not None:
        seed = check_integer("seed", seed, at_least=0, bits=63)
    names = [by] if isinstance(by, str) else list(by or ())
    seed = seed or 0 if names else seed
    hashes = _hashes_of_groups(source, names, seed or 0) if names else {}
    size = source.num_rows if seed is None else HASHES
    ends = np.cumsum(list(shares.values()))[:-1].tolist()
    bounds = [0, *((round if seed is None else int)(end * size) for end in ends), size]
    parts = {}
    for name, low, high in zip(shares, bounds[:-1], bounds[1:], strict=True):
        share = RowShare(low, high, seed)
        numbers: RowShare | GroupShare = share
        if names:
            bits = {
                first: np.packbits((h >= np.uint64(low)) & (h <= np.uint64(high - 1)))
                for first, h in hashes.items()
            }
            numbers = GroupShare(share, tuple(names), bits)
        parts[name] = source.choose(numbers)
        if parts[name].num_rows == 0:
            raise ValueError(
                f"the share {shares[name]} of {name!r} gives it none of the {source.num_rows} rows"
            )
    return parts


def _hashes_of_groups(source: ParquetSource, names: list[str], seed: int) -> dict[int, Any]:
    """Return {number of the first row of a row group: hash of seed and values of each row}."""
    hashes, first, source = {}, 0, source.on("cpu")
    for position, group in enumerate(source.row_groups):
        chunk = source.read(position, names)
        total = hash_integers(np.full(group.num_rows, seed))
        for name in names:
            column, nulls = chunk[name], None
            if isinstance(column, Masked):
                column, nulls = column.values, ~column.valid
            if isinstance(column, np.ndarray) and column.dtype.kind in "mM":
                column = column.view(np.int64)
            is_array = isinstance(column, np.ndarray) and column.ndim == 1
            if not (is_array and column.dtype.kind in "biu") and not isinstance(column, Strings):
                kind, is_list = source.column_types[name]
                raise TypeError(
                    f"by takes columns of integers, strings or times, got {name!r} of "
                    f"{'lists of ' * is_list}{kind}"
                )
            values = hash_values(column)
            if nulls is not None:
                values[nulls] = np.uint64(0)
            total = hash_integers(total ^ values)
        hashes[first] = total
        first += group.num_rows
    return hashes


@dataclasses.dataclass(frozen=True)
class GroupShare:
    """Rows whose hash of the values of some columns is in a share."""

    share: RowShare
    names: tuple[str, ...]
    bits: Mapping[int, np.ndarray]  # {number of the first row of a row group: packed bits}

    @property
    def identity(self) -> str:
        """Text that two shares have in common only if they are equal."""
        return f"{self.share.identity} by {list(self.names)}"

    def __call__(self, first: int, rows: int) -> np.ndarray:
        """Return which of the rows of a row group belong to it, as numbers from 0."""
        return np.flatnonzero(np.unpackbits(self.bits[first], count=rows))


@dataclasses.dataclass(frozen=True)
class RowShare:
    """Rows of which the number, or its hash if there is a seed, is in [low, high)."""

    low: int
    high: int
    seed: int | None

    @property
    def identity(self) -> str:
        """Text that two shares have in common only if they are equal."""
        return f"split {self.low} {self.high} {self.seed}"

    def __call__(self, first: int, rows: int) -> range | np.ndarray:
        """Return which of the rows first, ..., first + rows - 1 belong to it, as numbers from 0."""
        if self.seed is None:
            return range(max(0, self.low - first), max(0, min(rows, self.high - first)))
        start = int(hash_integers(np.array([self.seed]))[0])
        hashes = hash_integers(np.arange(first, first + rows, dtype=np.uint64) + np.uint64(start))
        return np.flatnonzero((hashes >= self.low) & (hashes < self.high))
