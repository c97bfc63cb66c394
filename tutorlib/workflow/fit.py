"""Fitting ops: rows in ranges, states of ranges merged in order, on threads or on Dask.

Row ranges are fixed by the data: at most 262,144 rows of one row group. Threads and workers make
the states of ranges in any order, but states are merged in one way only: those of 8 neighbours in
the order of their rows, then 8 of these, and so on. So plain float64 sums give the same bits for
any number of threads, workers and processes.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, Generic, Protocol, TypeVar

from tutorlib.columns import Chunk, encoded_column
from tutorlib.memory import thread_count
from tutorlib.ops import ColumnGroup, LearningOp
from tutorlib.ops.base import State
from tutorlib.parquet import ParquetSource, RowRange

RANGE_ROWS = 262_144  # most rows of a row range; Criteo's 40 columns take 320 bytes a row
FAN_IN = 8  # states merged at a time
TASKS_PER_THREAD = 4  # of a cluster: at least so many, so that a killed worker repeats little
Item = TypeVar("Item")
Result = TypeVar("Result")


# ---- rows ----------------------------------------------------------------------------------------


def as_source(data: Any) -> ParquetSource:
    """Return what `ParquetSource` takes as one, which also may be given."""
    return data if isinstance(data, ParquetSource) else ParquetSource(data)


def row_ranges_in(source: ParquetSource, order: Iterable[int] | None = None) -> list[RowRange]:
    """Return all rows of a source as row ranges of at most `RANGE_ROWS` rows.

    `order` gives the positions of the row groups in another order than that of the source.

    Example:
        >>> import numpy as np
        >>> row_ranges_in(ParquetSource(Chunk({"x": np.arange(9)})))
        [RowRange(row_group=0, start=0, stop=9)]
    """
    ranges = []
    for position in range(len(source.row_groups)) if order is None else order:
        rows = source.row_groups[position].num_rows
        for start in range(0, rows, RANGE_ROWS):
            ranges.append(RowRange(position, start, min(start + RANGE_ROWS, rows)))
    return ranges


def on_range(
    source: ParquetSource,
    row_range: RowRange,
    columns: Sequence[str],
    function: Callable[[Chunk], Result],
) -> Result:
    """Return what a function makes of the named columns of a row range; errors name the place.

    A row group of up to `RANGE_ROWS` rows is read whole and then sliced: reading a slice would keep
    the row group's file open.
    """
    position = row_range.row_group
    rows = source.row_groups[position].num_rows
    if row_range.num_rows < rows <= RANGE_ROWS:
        chunk = source.read(position, columns, 0, rows).slice(row_range.start, row_range.stop)
    else:
        chunk = source.read(position, columns, row_range.start, row_range.stop)
    try:
        return function(chunk)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{error} (In {source.location(position)}.)") from error


# ---- threads -------------------------------------------------------------------------------------


def map_on_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> list[Result]:
    """Return `[function(item) for item in items]`, computed on several threads.

    After an error no item begins, and those that have begun end. Of several errors, that of the
    first item is raised, so that the message does not depend on threads.

    Args:
        function: called with one item.
        items: at any number; they begin in this order.
        threads: calls that may run at the same time, at least 1.

    Example:
        >>> map_on_threads(len, ["a", "bc", "def"], threads=2)
        [1, 2, 3]
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-map") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # also after an interrupt
            pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def threads_without(client: Client | None, threads: int | None) -> int:
    """Return the number of threads of this process; ValueError if a cluster has its own."""
    if client is not None and threads is not None:
        raise ValueError(
            "threads are those of this process; with client=, set threads_per_worker of the "
            "cluster's workers"
        )
    return thread_count(threads)


# ---- fitting -------------------------------------------------------------------------------------


def unfitted_ops(groups: Sequence[ColumnGroup]) -> list[tuple[ColumnGroup, int]]:
    """Return each group with an unfitted op, and the index of its first one."""
    unfitted = []
    for group in groups:
        for index, (op, names) in enumerate(group.steps()):
            if isinstance(op, LearningOp) and op.unlearned(names):
                unfitted.append((group, index))
                break
    return unfitted


def reset_ops(groups: Sequence[ColumnGroup]) -> None:
    """Make all ops forget what they have learned."""
    for group in groups:
        for op in group.ops:
            if isinstance(op, LearningOp):
                op.state = {}


def fit_ops(
    groups: Sequence[ColumnGroup], source: ParquetSource, client: Client | None, threads: int
) -> None:
    """Fit all ops of groups; a pass over the data fits the first unfitted op of each group."""
    while unfitted := unfitted_ops(groups):
        if source.num_rows == 0:
            raise ValueError("the data has no rows to fit on")
        fit_pass = FitPass(unfitted, source.with_strings_as(encoded_column))
        if client is not None:
            states = _fit_on_cluster(client, fit_pass)
        else:
            merged = fit_pass.learn_from(row_ranges_in(source), threads)
            states = fit_pass.learned_from(merged)
        for op, state in zip(fit_pass.ops, states, strict=True):
            op.state = state


@dataclasses.dataclass
class FitPass:
    """The ops to fit in one pass over the data, and the data. Can be pickled."""

    unfitted: list[tuple[ColumnGroup, int]]  # index of each op; those before it are fitted
    source: ParquetSource

    @property
    def ops(self) -> list[Any]:
        """The ops to fit."""
        return [group.ops[index] for group, index in self.unfitted]

    def learn_from(self, row_ranges: list[RowRange], threads: int = 1) -> list[State]:
        """Return the state of each op for the rows in row ranges."""
        merger = OrderedMerge(self.merge, len(row_ranges))
        columns: dict[str, None] = {}  # in order, each once
        for group, _ in self.unfitted:
            columns |= dict.fromkeys(group.names)

        def partial(chunk: Chunk) -> list[State]:
            return [group.partial(chunk, index) for group, index in self.unfitted]

        def learn(place: int) -> None:
            merger.add(place, on_range(self.source, row_ranges[place], [*columns], partial))

        map_on_threads(learn, range(len(row_ranges)), threads)
        return merger.result

    def merge(self, several: Sequence[list[State]]) -> list[State]:
        """Return the state of each op for the rows of all, which are in the order of their rows."""
        merged = []
        for number, op in enumerate(self.ops):
            merged.append(op.merge(*[states[number] for states in several]))
        return merged

    def learned_from(self, states: list[State]) -> list[State]:
        """Return the state of each op once it has learned."""
        return [op.learned_from(state) for op, state in zip(self.ops, states, strict=True)]


class OrderedMerge(Generic[Item]):
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

    result: Item

    def __init__(self, merge: Callable[[list[Item]], Item], count: int) -> None:
        self._merge = merge
        self._count = count
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], dict[int, Item]] = {}

    def add(self, place: int, state: Item) -> None:
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
            place = group
            count = -(-count // FAN_IN)
        self.result = state


# ---- Dask: any `distributed.Client`, of one machine or many --------------------------------------


class Client(Protocol):
    """What is used of a `distributed.Client`."""

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the future of a call on a worker."""

    def nthreads(self) -> dict[str, int]:
        """Return {worker: its threads}."""


def call_on_cluster(
    client: Client, function: Callable[[Item], None], items: Sequence[Item]
) -> None:
    """Call a function with each item on the workers; with one twice, when a worker dies."""
    on_worker = sent(client, function)
    futures = []
    for item in items:
        futures.append(client.submit(operator.call, on_worker, item, pure=False))
    try:
        wait_for(list(futures))
    finally:
        release([*futures, on_worker])


def sent(client: Client, value: object) -> Any:
    """Return the future of a value that each worker unpickles once, not for each task."""
    from distributed.protocol.pickle import dumps, loads

    return client.submit(loads, dumps(value), pure=False)


def wait_for(futures: list[Any]) -> None:
    """Wait for all futures or the first error. Clears the list, so that results are freed early."""
    from distributed import as_completed

    waiting = as_completed(futures)
    futures.clear()
    try:
        for future in waiting:
            if future.status != "finished":
                future.result()  # raises
    finally:
        waiting.clear()


def release(futures: Iterable[Any]) -> None:
    """Release futures; tasks of theirs that have not begun never will.

    `Client.cancel` would do the same, but makes the scheduler drop the client if a future has
    failed meanwhile (distributed 2026.8, `stimulus_cancel`).
    """
    for future in futures:
        future.release()


def _fit_on_cluster(client: Client, fit_pass: FitPass) -> list[State]:
    """Return what `FitPass.learned_from` does, made on the workers.

    States stay on the workers, which merge them; the client receives only what the ops learned. If
    a worker dies, Dask runs its tasks on another one. If that happens more often than
    `distributed.scheduler.allowed-failures`, three by default, it raises `KilledWorker`.
    """
    row_ranges = row_ranges_in(fit_pass.source)
    many = TASKS_PER_THREAD * max(1, sum(client.nthreads().values()))
    # A task of several ranges has a whole group of the merge: the bits are those of threads.
    step = FAN_IN if len(row_ranges) >= many * FAN_IN else 1
    on_worker = sent(client, fit_pass)
    submit = functools.partial(client.submit, pure=False)
    leaves = []
    for start in range(0, len(row_ranges), step):
        leaves.append(submit(FitPass.learn_from, on_worker, row_ranges[start : start + step]))
    level = list(leaves)
    while len(level) > 1:
        merged = []
        for start in range(0, len(level), FAN_IN):
            group = level[start : start + FAN_IN]
            if len(group) > 1:
                group = [submit(FitPass.merge, on_worker, group, priority=1)]
            merged += group
        level = merged
    learned = submit(FitPass.learned_from, on_worker, level.pop(), priority=1)
    try:
        wait_for(leaves)
        states: list[State] = learned.result()
        return states
    finally:
        release([learned, on_worker])
