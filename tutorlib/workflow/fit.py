"""Fitting a Workflow: rows in ranges, states of ranges merged in order, on threads or on Dask.

Row ranges are fixed by the data: at most 262,144 rows of one row group. Threads and workers make
the states of ranges in any order, but states are merged in one way only: those of 8 neighbours in
the order of their rows, then 8 of these, and so on. So plain float64 sums give the same bits for
any number of threads, workers and processes.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tutorlib.ops import ColumnGroup, LearningOp
from tutorlib.ops.encoded import encoded_column
from tutorlib.parquet import ParquetSource, RowRange
from tutorlib.schema import listed, time_kind
from tutorlib.workflow import cluster
from tutorlib.workflow.rows import locate_errors, read_range, row_ranges_in
from tutorlib.workflow.threads import map_on_threads, threads_without

FAN_IN = 8  # states merged at a time
TASKS_PER_THREAD = 4  # of a cluster: at least so many, so that a killed worker repeats little
States = list[Any]  # of each op that is fitted


def fit_graph(graph: Any, source: ParquetSource, *, client: Any, threads: int | None) -> None:
    """Fit all ops of a Workflow, as `Workflow.fit` says; after an error no op is fitted.

    A pass over the data fits the first unfitted op of each group. Sets `graph.input_types` and
    `graph.time_kinds`.
    """
    threads = threads_without(client, threads)
    types = source.column_types
    if missing := [name for name in graph.input_names if name not in types]:
        raise ValueError(
            f"columns {listed(missing)} are not in the data, which has {listed(types)}"
        )
    times = {name: time_kind(source.arrow_schema.field(name).type) for name in graph.input_names}
    _reset(graph)
    try:
        while unfitted := unfitted_ops(graph.groups):
            if source.num_rows == 0:
                raise ValueError("the data has no rows to fit on")
            work = FitPass(unfitted, source)
            if client is not None:
                states = _fit_on_cluster(client, work)
            else:
                states = work.learned_from(work.learn_from(row_ranges_in(work.source), threads))
            for op, state in zip(work.ops, states, strict=True):
                op.state = state
    except BaseException:
        _reset(graph)
        raise
    graph.input_types = {name: types[name] for name in graph.input_names}
    graph.time_kinds = {name: kind for name, kind in times.items() if kind}


def _reset(graph: Any) -> None:
    graph.input_types, graph.time_kinds = {}, {}
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
        return list(dict.fromkeys(n for group, _ in self.unfitted for n in group.names))

    def learn_from(self, row_ranges: list[RowRange], threads: int = 1) -> States:
        """Return the states of the rows in row ranges."""
        merger = OrderedMerge(self.merge, len(row_ranges))

        def learn(place: int) -> None:
            row_range = row_ranges[place]
            chunk = read_range(self.source, row_range, self.columns)
            with locate_errors(self.source, row_range):
                states = [group.partial(chunk, index) for group, index in self.unfitted]
            merger.add(place, states)

        map_on_threads(learn, range(len(row_ranges)), threads)
        return merger.result

    def merge(self, several: Sequence[States]) -> States:
        """Return the states of the rows of all, which are in the order of their rows."""
        by_op = zip(*several, strict=True)
        return [op.merge(*states) for op, states in zip(self.ops, by_op, strict=True)]

    def learned_from(self, states: States) -> States:
        """Return the state of each op once it has learned."""
        return [op.learned_from(state) for op, state in zip(self.ops, states, strict=True)]


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


def _fit_on_cluster(client: Any, work: FitPass) -> States:
    """Return what `FitPass.learned_from` does, made on the workers.

    States stay on the workers, which merge them; the client receives only what the ops learned. If
    a worker dies, Dask runs its tasks on another one. If that happens more often than
    `distributed.scheduler.allowed-failures`, three by default, it raises `KilledWorker`.
    """
    row_ranges = row_ranges_in(work.source)
    threads = max(1, sum(client.nthreads().values()))
    step = 1  # ranges of a task: a whole group of the merge, so that the bits are those of threads
    while len(row_ranges) >= TASKS_PER_THREAD * threads * step * FAN_IN:
        step *= FAN_IN
    tasks = [row_ranges[start : start + step] for start in range(0, len(row_ranges), step)]
    on_worker = cluster.sent(client, work)
    submit = functools.partial(client.submit, pure=False)
    leaves = [submit(FitPass.learn_from, on_worker, task) for task in tasks]
    merge = functools.partial(submit, priority=1)
    level = list(leaves)
    while len(level) > 1:
        groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
        level = [merge(FitPass.merge, on_worker, g) if len(g) > 1 else g[0] for g in groups]
    learned = merge(FitPass.learned_from, on_worker, level.pop())
    try:
        cluster.wait_for(leaves)
        states: States = learned.result()
        return states
    finally:
        cluster.release([learned, on_worker])
