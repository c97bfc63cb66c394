"""A Dask cluster: any `distributed.Client`, of one machine or many."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def write_on_cluster(client: Any, write: Callable[[Any], None], parts: Sequence[Any]) -> None:
    """Call `write(part)` for all parts on the workers.

    A part may be written twice, when a worker dies.
    """
    on_worker = sent(client, write)
    futures = [client.submit(operator.call, on_worker, part, pure=False) for part in parts]
    try:
        wait_for(list(futures))
    finally:
        release([*futures, on_worker])


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


def sent(client: Any, value: Any) -> Any:
    """Return the future of a value that each worker unpickles once, not for each task."""
    from distributed.protocol.pickle import dumps, loads

    return client.submit(loads, dumps(value), pure=False)
