"""A Dask cluster: any `distributed.Client`, of one machine or many."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
DEFAULT_MMAP_BYTES, KEPT_BYTES = 128 << 10, 32 << 20  # the latter is the most that glibc takes


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
    on_worker = sent(client, write)
    futures = [client.submit(call, on_worker, part, pure=False) for part in parts]
    try:
        wait_for(list(futures), rows, done)
    finally:
        release([*futures, on_worker])


def wait_for(futures: list[Any], rows: Sequence[int], done: Callable[[int], None]) -> None:
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


def release(futures: Iterable[Any]) -> None:
    """Release futures; tasks of theirs that have not begun never will.

    `Client.cancel` would do the same, but makes the scheduler drop the client if a future has
    failed meanwhile (distributed 2026.8, `stimulus_cancel`).
    """
    for future in futures:
        future.release()


def sent(client: Any, value: Any) -> Any:
    """Return the future of a value that each worker unpickles once, not for each task."""
    from distributed.protocol.pickle import dumps, loads

    return client.submit(loads, dumps(value), pure=False)


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
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


@memory_kept()
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, called on a worker within `memory_kept`."""
    return function(*arguments)
