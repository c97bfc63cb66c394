"""DeviceCache: what an op has learned, copied to the memory of each device that uses it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tutorlib.columns import to_namespace


class DeviceCache:
    """A column that is copied once to each device that uses it, and kept there.

    Thread-safe: a copy is complete before any thread gets it, whatever stream the thread works on.

    Args:
        column: column of any kind, in the CPU's memory.

    Example:
        >>> DeviceCache(np.array([1, 2])).on(np).tolist()
        [1, 2]
    """

    def __init__(self, column: Any) -> None:
        self._column = column
        self._lock = threading.Lock()
        self._copies: dict[str, Any] = {}

    def __reduce__(self) -> Any:
        return DeviceCache, (self._column,)

    def on(self, xp: Any) -> Any:
        """Return the column in the memory of the array library `xp`, numpy or cupy."""
        if xp is np:
            return self._column
        with self._lock:
            if xp.__name__ not in self._copies:
                copy = to_namespace(self._column, xp)
                xp.cuda.get_current_stream().synchronize()
                self._copies[xp.__name__] = copy
            return self._copies[xp.__name__]
