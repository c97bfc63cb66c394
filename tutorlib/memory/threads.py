"""map_on_threads: call a function for many items on several threads, and stop at an error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from typing import TypeVar

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
    with ThreadPoolExecutor(threads, thread_name_prefix="tutorlib-map") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if not all(future.done() and future.exception() is None for future in futures):
                if stop is not None:
                    stop.set()
                pool.shutdown(cancel_futures=True)
    for future in futures:
        if not _was_cancelled(future):
            future.result()  # raises the error of the first item that failed by itself
    return [future.result() for future in futures]


def _was_cancelled(future: Future[Result]) -> bool:
    return future.cancelled() or isinstance(future.exception(), CancelledError)
