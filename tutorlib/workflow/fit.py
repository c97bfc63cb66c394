"""Fitting a Workflow: rows in ranges, states of ranges merged in order, on threads or on Dask.

Row ranges are fixed by the data: at most 262,144 rows of one row group. Threads and workers make
the states of ranges in any order, but states are merged in one way only: those of 8 neighbours in
the order of their rows, then 8 of these, and so on. So plain float64 sums give the same bits for
any number of threads, workers and processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from tutorlib.columns import Chunk, Masked, flat_values
from tutorlib.display import row_bar
from tutorlib.filesystems import as_arrow_filesystem
from tutorlib.memory import thread_count
from tutorlib.ops import ColumnGroup, JoinExternal, LearningOp
from tutorlib.ops.encoded import encoded_column
from tutorlib.parquet import ParquetSource, RowRange
from tutorlib.schema import element_type, listed, time_kind
from tutorlib.workflow.threads import map_on_threads

RANGE_ROWS = 262_144  # most rows of a row range; Criteo's 40 columns take 320 bytes a row
FAN_IN = 8  # states merged at a time
TASKS_PER_THREAD = 4  # of a cluster: at least so many, so that a killed worker repeats little
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
DEFAULT_MMAP_BYTES, KEPT_BYTES = 128 << 10, 32 << 20  # the latter is the most that glibc takes

ColumnType = tuple[str, bool]  # NumPy name of one value or "string", whether a row holds a list
States = list[Any]  # columns with nulls, then {key: state} of each op that is fitted


# What a Workflow reads.


def as_source(data: Any) -> ParquetSource:
    """Return `data` as a `ParquetSource`.

    Args:
        data: a `ParquetSource`, also of some rows (`split_rows`); a `Chunk`, or a list of chunks of
            equal columns; or what `ParquetSource` takes: paths, a pyarrow Table, a DataFrame.

    Example:
        >>> import numpy as np
        >>> as_source(Chunk({"x": np.arange(2)})).column_types
        {'x': ('int64', False)}
    """
    if isinstance(data, ParquetSource):
        return data
    if of_chunks(data):
        chunks = data if isinstance(data, list | tuple) else [data]
        data = pa.concat_tables([chunk.to_arrow() for chunk in chunks])
    return ParquetSource(data)


def of_chunks(data: Any) -> bool:
    """Return whether data is a `Chunk`, or a list of chunks."""
    chunks = data if isinstance(data, list | tuple) else [data]
    return bool(chunks) and all(isinstance(chunk, Chunk) for chunk in chunks)


def row_ranges_in(source: ParquetSource, order: Iterable[int] | None = None) -> list[RowRange]:
    """Return all rows of a source as row ranges of at most `RANGE_ROWS` rows.

    `order` gives the positions of the row groups in another order than that of the source.

    Example:
        >>> import numpy as np
        >>> row_ranges_in(as_source(Chunk({"x": np.arange(9)})))
        [RowRange(row_group=0, start=0, stop=9)]
    """
    groups = source.row_groups
    return [
        RowRange(position, start, min(start + RANGE_ROWS, groups[position].num_rows))
        for position in (range(len(groups)) if order is None else order)
        for start in range(0, groups[position].num_rows, RANGE_ROWS)
    ]


def split_by_rows(row_ranges: Iterable[RowRange], rows: int) -> list[list[RowRange]]:
    """Return the row ranges in lists of exactly `rows` rows each; the last list has the rest.

    Example:
        >>> ranges = [RowRange(0, 0, 5), RowRange(1, 0, 5)]
        >>> [[row_range.num_rows for row_range in some] for some in split_by_rows(ranges, 4)]
        [[4], [1, 3], [2]]
    """
    lists: list[list[RowRange]] = []
    taken = 0
    for row_range in row_ranges:
        start = row_range.start
        while start < row_range.stop:
            if taken % rows == 0:
                lists.append([])
            end = min(row_range.stop, start + rows - taken % rows)
            lists[-1].append(RowRange(row_range.row_group, start, end))
            taken, start = taken + end - start, end
    return lists


def read_range(source: ParquetSource, row_range: RowRange, columns: Sequence[str]) -> Chunk:
    """Return the named columns of a row range.

    A row group of up to `RANGE_ROWS` rows is read whole and then sliced: reading a slice would keep
    the row group's file open.
    """
    position, start, stop = row_range.row_group, row_range.start, row_range.stop
    rows = source.row_groups[position].num_rows
    if row_range.num_rows < rows <= RANGE_ROWS:
        return source.read(position, columns, 0, rows).slice(start, stop)
    return source.read(position, columns, start, stop)


def input_paths(source: ParquetSource) -> list[str]:
    """Return the files that a source reads, and the folders that it was given.

    Those of a filesystem other than this machine's are URLs, of which `refuse_overlap` knows them.
    """
    paths = [*source.files, *map(os.fspath, source.paths)]
    where = as_arrow_filesystem(source.filesystem) if source.filesystem else LocalFileSystem()
    if isinstance(where, LocalFileSystem):
        return paths
    return [path if "://" in path else f"{where.type_name}://{path}" for path in paths]


@contextlib.contextmanager
def locate_errors(source: ParquetSource, row_range: RowRange) -> Iterator[None]:
    """Add the location of a row range to each TypeError and ValueError raised in the block."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (In {source.location(row_range.row_group)}.)") from error


# Passes over the data.


def fit_graph(
    graph: Any, source: ParquetSource, *, client: Any, threads: int | None, progress: bool | None
) -> None:
    """Fit all ops of a Workflow, as `Workflow.fit` says; after an error no op is fitted.

    A pass over the data fits the first unfitted op of each group. Sets `graph.input_types` and
    `graph.time_kinds`, and as `graph.nullable` the columns that may hold nulls in serving, because
    they did here.
    """
    threads = threads_without(client, threads)
    types = source.column_types
    if missing := [name for name in graph.fit_names if name not in types]:
        why = source.why_missing(missing)
        raise ValueError(
            f"columns {listed(missing, types)} are not in the data, which has {listed(types)}{why}"
        )
    times = {name: time_kind(source.arrow_schema.field(name).type) for name in graph.fit_names}
    for group in graph.groups:
        first = next(iter(group.ops), None)
        if isinstance(first, JoinExternal):  # which learns from no row
            first.check_key_type(*types[first.on], times[first.on])
    _reset(graph)
    number, read, nulls = 0, set[str](), set[str]()
    try:
        while unfitted := unfitted_ops(graph.groups):
            if source.num_rows == 0:
                raise ValueError("the data has no rows to fit on")
            number += 1
            work = FitPass(unfitted, source)
            with row_bar(f"fit, pass {number}", source.num_rows, progress) as done:
                if client is not None:
                    found, *states = _fit_on_cluster(client, work, done)
                else:
                    merged = work.learn_from(row_ranges_in(work.source), threads, done)
                    found, *states = work.learned_from(merged)
            nulls |= found
            for op, state in zip(work.ops, states, strict=True):
                op.state = state
            read.update(work.columns)
        nulls |= columns_with_nulls(source, [n for n in graph.input_names if n not in read])
    except BaseException:
        _reset(graph)
        raise
    graph.input_types = {name: types[name] for name in graph.fit_names}
    graph.time_kinds = {name: kind for name, kind in times.items() if kind}
    graph.nullable = [name for name in graph.input_names if name in nulls]


def threads_without(client: Any, threads: int | None) -> int:
    """Return the number of threads of this process; ValueError if a cluster has its own."""
    if client is not None and threads is not None:
        raise ValueError(
            "threads are those of this process; with client=, set threads_per_worker of the "
            "cluster's workers"
        )
    return thread_count(threads)


def _reset(graph: Any) -> None:
    graph.input_types, graph.nullable, graph.time_kinds = {}, [], {}
    for group in graph.groups:
        for op in group.ops:
            if isinstance(op, LearningOp):
                op.state = {}


def unfitted_ops(groups: Sequence[ColumnGroup]) -> list[tuple[ColumnGroup, int]]:
    """Return each group with an unfitted op, and the index of its first one."""
    unfitted = []
    for group in groups:
        for index, (op, names) in enumerate(group.steps()):
            if isinstance(op, LearningOp) and op.unlearned(names):
                unfitted.append((group, index))
                break
    return unfitted


@dataclasses.dataclass
class FitPass:
    """The ops to fit in one pass over the data, and the data. Can be pickled."""

    unfitted: list[tuple[ColumnGroup, int]]  # index of each op; those before it are fitted
    source: ParquetSource

    def __post_init__(self) -> None:
        self.source = self.source.with_strings_as(encoded_column)
        self.ops: list[Any] = [group.ops[index] for group, index in self.unfitted]

    @property
    def columns(self) -> list[str]:
        """Columns of the data that the pass reads."""
        return list(dict.fromkeys(n for group, _ in self.unfitted for n in group.fit_names))

    def learn_from(
        self,
        row_ranges: list[RowRange],
        threads: int = 1,
        done: Callable[[int], None] = lambda rows: None,
    ) -> States:
        """Return the states of the rows in row ranges; `done` gets the rows of each range."""
        merger = OrderedMerge(self.merge, len(row_ranges))

        def learn(place: int) -> None:
            row_range = row_ranges[place]
            chunk = read_range(self.source, row_range, self.columns)
            with locate_errors(self.source, row_range):
                states = [group.partial(chunk, index) for group, index in self.unfitted]
            merger.add(place, [with_nulls_in(chunk), *states])
            done(row_range.num_rows)

        map_on_threads(learn, range(len(row_ranges)), threads)
        return merger.result

    def merge(self, several: Sequence[States]) -> States:
        """Return the states of the rows of all, which are in the order of their rows."""
        nulls, *by_op = zip(*several, strict=True)
        merged = [op.merge(*states) for op, states in zip(self.ops, by_op, strict=True)]
        return [set().union(*nulls), *merged]

    def learned_from(self, states: States) -> States:
        """Return the columns with nulls, then the state of each op once it has learned."""
        nulls, *of_ops = states
        return [nulls, *(op.learned_from(s) for op, s in zip(self.ops, of_ops, strict=True))]


class OrderedMerge:
    """Merges states in one way, in whatever order they arrive, from any thread.

    State k goes into group k // 8. When a group is complete, its states are merged in order, and
    the result is state k // 8 of the next level. n states of size s cost O(n s log n), and a state
    that comes early waits for its neighbours alone.

    Args:
        merge: returns the state of the rows of two or more states in order.
        count: number of states, at least 1.

    Attributes:
        result: the state of all rows, once each state was added.

    Example:
        >>> merger = OrderedMerge("".join, 3)
        >>> for place in (2, 0, 1):
        ...     merger.add(place, "abc"[place])
        >>> merger.result
        'abc'
    """

    def __init__(self, merge: Callable[[list[Any]], Any], count: int) -> None:
        self._merge, self._count = merge, count
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], dict[int, Any]] = {}
        self.result: Any = None

    def add(self, place: int, state: Any) -> None:
        """Add the state of a row range by its place among all."""
        count = self._count  # of states on this level
        while count > 1:
            group = place // FAN_IN
            size = min(FAN_IN, count - group * FAN_IN)
            with self._lock:
                waiting = self._waiting.setdefault((count, group), {})
                waiting[place] = state
                if len(waiting) < size:
                    return
                del self._waiting[count, group]
            state = state if size == 1 else self._merge([waiting[k] for k in sorted(waiting)])
            place, count = group, -(-count // FAN_IN)
        self.result = state


def with_nulls_in(chunk: Chunk) -> set[str]:
    """Return the columns that hold a null that is not NaN."""
    columns = {name: flat_values(column) for name, column in chunk.items()}
    return {n for n, c in columns.items() if isinstance(c, Masked) and not bool(c.valid.all())}


def columns_with_nulls(source: ParquetSource, names: Iterable[str]) -> set[str]:
    """Return those of the named columns that hold a null that is not NaN.

    The footers of Parquet files answer for nearly all columns; others are read until one is found.
    Rows that a filter drops may count too.
    """
    types = source.column_types
    unsure = [n for n in names if not element_type(types[n][0])[0].startswith("float")]
    counts = {name: source.null_count(name) for name in unsure}
    # The null count of a list column also counts lists that are empty.
    nulls = {name for name, count in counts.items() if count and not types[name][1]}
    unsure = [name for name, count in counts.items() if count != 0 and name not in nulls]
    for row_range in row_ranges_in(source):
        if not unsure:
            break
        nulls |= with_nulls_in(read_range(source, row_range, unsure))
        unsure = [name for name in unsure if name not in nulls]
    return nulls


# On a Dask cluster: any `distributed.Client`, of one machine, many machines or GPU workers. States
# stay on the workers, which merge them; the client receives only what the ops have learned.


def _fit_on_cluster(client: Any, work: FitPass, done: Callable[[int], None]) -> States:
    """Return what `FitPass.learned_from` does, made on the workers.

    If a worker dies, Dask runs its tasks on another one. If that happens more often than
    `distributed.scheduler.allowed-failures`, three by default, it raises `KilledWorker`.
    """
    row_ranges = row_ranges_in(work.source)
    threads = max(1, sum(client.nthreads().values()))
    step = 1  # ranges of a task: a whole group of the merge, so that the bits are those of threads
    while len(row_ranges) >= TASKS_PER_THREAD * threads * step * FAN_IN:
        step *= FAN_IN
    tasks = [row_ranges[start : start + step] for start in range(0, len(row_ranges), step)]
    on_worker = _sent(client, work)
    leaves = [client.submit(_call, FitPass.learn_from, on_worker, t, pure=False) for t in tasks]
    merge = functools.partial(client.submit, _call, pure=False, priority=1)
    level = list(leaves)
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = [merge(FitPass.merge, on_worker, g) if len(g) > 1 else g[0] for g in groups]
    learned = merge(FitPass.learned_from, on_worker, level.pop())
    try:
        _wait(leaves, [sum(r.num_rows for r in task) for task in tasks], done)
        states: States = learned.result()
        return states
    finally:
        _release([learned, on_worker])


def write_on_cluster(
    client: Any,
    write: Callable[[Any], None],
    parts: Sequence[Any],
    rows: Sequence[int],
    done: Callable[[int], None],
) -> None:
    """Call `write(part)` for all parts on the workers; `done` gets the rows of each finished one.

    A part may be written twice, when a worker dies.
    """
    on_worker = _sent(client, write)
    futures = [client.submit(_call, on_worker, part, pure=False) for part in parts]
    try:
        _wait(list(futures), rows, done)
    finally:
        _release([*futures, on_worker])


def _wait(futures: list[Any], rows: Sequence[int], done: Callable[[int], None]) -> None:
    """Wait for all futures or the first error. Clears the list, so that results are freed early."""
    from distributed import as_completed

    rows_of = {future.key: count for future, count in zip(futures, rows, strict=True)}
    waiting = as_completed(futures)
    futures.clear()
    try:
        for future in waiting:
            if future.status != "finished":
                future.result()  # raises
            done(rows_of[future.key])
    finally:
        waiting.clear()


def _release(futures: Iterable[Any]) -> None:
    """Release futures; tasks of theirs that have not begun never will.

    `Client.cancel` would do the same, but makes the scheduler drop the client if a future has
    failed meanwhile (distributed 2026.8, `stimulus_cancel`).
    """
    for future in futures:
        future.release()


def _sent(client: Any, value: Any) -> Any:
    """Return the future of a value that each worker unpickles once, not for each task."""
    from distributed.protocol.pickle import dumps, loads

    return client.submit(loads, dumps(value), pure=False)


@contextlib.contextmanager
def _memory_kept() -> Iterator[None]:
    """Let glibc keep freed memory during the block, and give it back to the system at its end.

    Dask has glibc give back each array at once (MALLOC_TRIM_THRESHOLD_), so that the next one needs
    new pages: without this, `fit` on a worker takes twice the CPU time of a thread. Where Dask does
    not set it, nothing is changed.
    """
    threshold = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" and threshold.isdecimal() else None
    if not hasattr(libc, "mallopt") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        yield
        return
    libc.mallopt(TRIM_THRESHOLD, 2 * KEPT_BYTES)
    libc.mallopt(MMAP_THRESHOLD, KEPT_BYTES)
    try:
        yield
    finally:  # other threads of the worker go on with Dask's setting until their next task
        libc.mallopt(TRIM_THRESHOLD, int(threshold))
        libc.mallopt(MMAP_THRESHOLD, DEFAULT_MMAP_BYTES)
        libc.malloc_trim(0)


@_memory_kept()
def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)
