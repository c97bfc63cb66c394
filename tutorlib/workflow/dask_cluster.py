"""One pass of fitting, and the writing of part files, on a Dask cluster.

Works with any `distributed.Client`: one machine, many machines, GPU workers (dask-cuda). States
stay on the workers, which merge them in a tree; the client receives only what the ops learned.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tutorlib.parquet import RowRange
from tutorlib.workflow.fit_pass import FAN_IN, FitPass, States

TASKS_PER_THREAD = 8  # a killed worker repeats about an eighth of a thread's work
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
DEFAULT_MMAP_BYTES, KEPT_BYTES = 128 << 10, 32 << 20  # the latter is the most that glibc takes

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
            leaves.append(client.submit(_learn, on_worker, tasks[0], pure=False))
            return leaves[-1]
        size = math.ceil(len(tasks) / FAN_IN)
        below = [tree(tasks[start : start + size]) for start in range(0, len(tasks), size)]
        return client.submit(_merge, on_worker, below, pure=False, priority=1)

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
    futures = [client.submit(_write, on_worker, part, pure=False) for part in parts]
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
def _learn(work: FitPass, row_ranges: list[RowRange]) -> States:
    return work.learn_from_all(row_ranges)


@_memory_kept()
def _merge(work: FitPass, states: list[States]) -> States:
    return work.merge_all(states)


@_memory_kept()
def _finalize(work: FitPass, states: States) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (small part, tables) of what each op learned."""
    return [op.learned_from(state) for op, state in zip(work.ops, states, strict=True)]


@_memory_kept()
def _write(write: Callable[[Part], None], part: Part) -> None:
    write(part)
