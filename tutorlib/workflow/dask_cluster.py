"""A pass over the data, and the writing of row_range files, on a Dask cluster.

Works with any `distributed.Client`: of one machine, of many, of GPU workers (dask-cuda). Workers
import tutorlib and see the files under the same paths. A state stays on the workers: they merge in
a tree, and what the last one learned from the whole, a vocabulary, is all that the client gets.
Does not belong here: what a row_range gives (`learning.py`, `rewriting.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tutorlib.parquet import RowRange
from tutorlib.workflow.fit import FitPass, States

TASKS_PER_THREAD = 8  # what a killed worker has to do again is an eighth of a thread's work
FAN_IN = 4  # states merged by one task


def learn_on_cluster(client: Any, work: FitPass, done: Callable[[int], None]) -> None:
    """Let the ops of a pass learn on the workers of `client`.

    Dask runs the tasks of a worker that dies on another one, three times by its default
    (`distributed.scheduler.allowed-failures`).

    Args:
        client: `distributed.Client`.
        work: the pass.
        done: called with the rows of each task that has ended.

    Raises:
        ValueError, TypeError: of an op, as on threads.
        distributed.scheduler.KilledWorker: if tasks have died with their workers too often.
    """
    row_ranges = work.row_ranges()
    threads = max(1, sum(client.nthreads().values()))
    step = math.ceil(len(row_ranges) / (TASKS_PER_THREAD * threads))
    batches = [row_ranges[start : start + step] for start in range(0, len(row_ranges), step)]
    packed = client.submit(_unpacked, _packed(work), pure=False)
    leaves: list[Any] = []

    def tree(batches: Sequence[list[RowRange]]) -> Any:
        """Submit in the order in which the tree can be worked off with few states at a time."""
        if len(batches) == 1:
            leaves.append(client.submit(_learn, packed, batches[0], pure=False))
            return leaves[-1]
        share = math.ceil(len(batches) / FAN_IN)
        below = [tree(batches[at : at + share]) for at in range(0, len(batches), share)]
        return client.submit(_merge, packed, below, pure=False, priority=1)

    learned = client.submit(_finalize, packed, tree(batches), pure=False, priority=1)
    rows = [sum(row_range.num_rows for row_range in batch) for batch in batches]
    try:
        _follow(leaves, rows, done)
        results = learned.result()
    finally:
        _release([learned, packed])
    for op, (small, tables) in zip(work.ops, results, strict=True):
        op.restore(small, tables)


def write_on_cluster(
    client: Any, write: Callable[[Any], None], units: Iterable[Any], done: Callable[[int], None]
) -> None:
    """Call `write(unit)` for all units on the workers of `client`.

    Args:
        client: `distributed.Client`.
        write: writes a file that all machines see; a second time it writes the same.
        units: with `num_rows`.
        done: called with the rows of each unit that is written.
    """
    units = list(units)
    packed = client.submit(_unpacked, _packed(write), pure=False)
    futures = [client.submit(_call, packed, unit, pure=False) for unit in units]
    every = list(futures)
    try:
        _follow(futures, [unit.num_rows for unit in units], done)
    finally:
        _release([*every, packed])


def _follow(futures: list[Any], rows: list[int], done: Callable[[int], None]) -> None:
    """Wait for all futures, or the first error; lets go of each, and so of its result, at once."""
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
    """Let go of futures, whose tasks are then not begun.

    `Client.cancel` would do the same, but makes the scheduler drop the client if a future has
    failed meanwhile (distributed 2026.8, `stimulus_cancel`).
    """
    for future in futures:
        future.release()


def _packed(thing: Any) -> bytes:
    from distributed.protocol.pickle import dumps

    return dumps(thing)


def _unpacked(data: bytes) -> Any:
    from distributed.protocol.pickle import loads

    return loads(data)


def _learn(work: FitPass, row_ranges: list[RowRange]) -> States:
    return work.merge_all(work.learn_from(row_range) for row_range in row_ranges)


def _merge(work: FitPass, states: list[States]) -> States:
    return work.merge_all(states)


def _finalize(work: FitPass, states: States) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (small part, tables) of what each op learned."""
    results = []
    for op, state in zip(work.ops, states, strict=True):
        op = copy.copy(op)  # other tasks of this worker have the same one
        op.finalize(state)
        results.append((op.learned(), op.learned_tables()))
    return results


def _call(function: Callable[[Any], None], argument: Any) -> None:
    function(argument)
