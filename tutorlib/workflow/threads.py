"""Threads of this process: a function for many items on several of them, until an error."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
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
    message does not depend on threads. No thread runs when the call returns. Items may
    be small: there is no future for each.

    Args:
        function: called with one item; raises `CancelledError` to end early because `stop` is set.
        items: at any number; they begin in this order.
        threads: calls that may run at the same time, at least 1.
        stop: set after an error or an interrupt, so that calls which look at it can end early.

    Example:
        >>> map_on_threads(len, ["a", "bc", "def"], threads=2)
        [1, 2, 3]
    """
    todo = list(items)
    numbers = iter(range(len(todo)))  # shared: its `next` is one step under the interpreter lock
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        for number in numbers:
            try:
                results[number] = function(todo[number])
            except BaseException as error:
                errors[number] = error
                deque(numbers, maxlen=0)  # nothing is left to begin
                raise

    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-map") as pool:
        futures = [pool.submit(work) for _ in range(min(threads, len(todo)))]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() and future.exception() is None for future in futures):
                deque(numbers, maxlen=0)
                if stop is not None:
                    stop.set()
    if errors:
        cancelled = {number for number in errors if isinstance(errors[number], CancelledError)}
        raise errors[min(errors.keys() - cancelled or cancelled)]
    return [results[number] for number in range(len(todo))]


def threads_without(client: Any, threads: int | None) -> int:
    """Return the number of threads of this process; ValueError if a cluster has its own."""
    if client is not None and threads is not None:
        raise ValueError(
            "threads are those of this process; with client=, set threads_per_worker of the "
            "cluster's workers"
        )
    return thread_count(threads)
