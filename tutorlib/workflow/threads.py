"""Threads of this process: a function for many items on several of them, until an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from tutorlib.memory import thread_count

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_on_threads(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    stop: threading.Event | None = None,
) -> list[Result]:
    """Return `[function(item) for item in items]`, computed on several threads.

    After an error no item begins. Of several errors, that of the first item is raised, so that the
    message does not depend on threads. No thread runs when the call returns.

    Args:
        function: called with one item; raises `CancelledError` to end early because `stop` is set.
        items: at any number; they begin in this order.
        threads: calls that may run at the same time, at least 1.
        stop: set after an error or an interrupt, so that calls which look at it can end early.

    Example:
        >>> map_on_threads(len, ["a", "bc", "def"], threads=2)
        [1, 2, 3]
    """
    stop = stop or threading.Event()

    def call(item: Item) -> Result:
        if stop.is_set():
            raise CancelledError
        try:
            return function(item)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-map") as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            wait(futures)
        except BaseException:  # an interrupt
            stop.set()
            raise
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, CancelledError)), errors[0])
    return [future.result() for future in futures]


def threads_without(client: Any, threads: int | None) -> int:
    """Return the number of threads of this process; ValueError if a cluster has its own."""
    if client is not None and threads is not None:
        raise ValueError(
            "threads are those of this process; with client=, set threads_per_worker of the "
            "cluster's workers"
        )
    return thread_count(threads)
