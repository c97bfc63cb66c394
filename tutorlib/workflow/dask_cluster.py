"""One pass of fitting, and the writing of part files, on a Dask cluster.

Works with any `distributed.Client`: one machine, many machines, GPU workers (dask-cuda). States
stay on the workers, which merge them in a tree; the client receives only what the ops learned.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tutorlib.parquet import RowRange
from tutorlib.workflow.fit_pass import FitPass, States

TASKS_PER_THREAD = 8  # a killed worker repeats about an eighth of a thread's work
FAN_IN = 4  # states merged by one task

Part = TypeVar("Part")


def fit_on_cluster(client: Any, work: FitPass, done: Callable[[int], None]) -> None:
    """Fit the ops of a pass on the workers; `done` is called with the rows of each finished task.

    If a worker dies, Dask runs its tasks on another one. If that happens more often than
    `distributed.scheduler.allowed-failures`, three by default, it raises `KilledWorker`.
    """
    row_ranges = work.row_ranges()
    threads = max(1, sum(client.nthreads().values()))
    step = math.ceil(len(row_ranges) / (TASKS_PER_THREAD * threads))
    tasks = [row_ranges[start : start + step] for start in range(0, len(row_ranges), step)]
    on_worker = _sent(client, work)
    leaves: list[Any] = []

    def tree(tasks: Sequence[list[RowRange]]) -> Any:
        """Submit in an order that lets workers merge early, with few states in memory."""
        if len(tasks) == 1:
            leaves.append(client.submit(FitPass.learn_from_all, on_worker, tasks[0], pure=False))
            return leaves[-1]
        size = math.ceil(len(tasks) / FAN_IN)
        below = [tree(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        return client.submit(FitPass.merge_all, on_worker, below, pure=False, priority=1)

    learned = client.submit(_finalize, on_worker, tree(tasks), pure=False, priority=1)
    rows = [sum(row_range.num_rows for row_range in task) for task in tasks]
    try:
        _wait(leaves, rows, done)
        results = learned.result()
    finally:
        _release([learned, on_worker])
    for op, (small, tables) in zip(work.ops, results, strict=True):
        op.restore(small, tables)


def write_on_cluster(
    client: Any,
    write: Callable[[Part], None],
    parts: Sequence[Part],
    rows: Sequence[int],
    done: Callable[[int], None],
) -> None:
    """Call `write(part)` for all parts on the workers; `done` gets the rows of each finished one.

    A part may be written twice, when a worker dies.
    """
    on_worker = _sent(client, write)
    futures = [client.submit(operator.call, on_worker, part, pure=False) for part in parts]
    every = list(futures)
    try:
        _wait(futures, rows, done)
    finally:
        _release([*every, on_worker])


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
    from distributed.protocol.pickle import dumps

    return client.submit(_unpickled, dumps(value), pure=False)


def _unpickled(data: bytes) -> Any:
    from distributed.protocol.pickle import loads

    return loads(data)


def _finalize(work: FitPass, states: States) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (small part, tables) of what each op learned."""
    results = []
    for op, state in zip(work.ops, states, strict=True):
        op = copy.copy(op)  # other tasks of this worker share the op
        op.finalize(state)
        results.append((op.learned(), op.learned_tables()))
    return results
