"""DeviceCache: what an op has learned, in the memory of every device where it is wanted.

Does not belong here: columns of the data, which are where they were read.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tutorlib.chunk import to_namespace


class DeviceCache:
    """A column that is copied once to each device that asks for it, and stays there.

    Safe with several threads, each with a stream of its own: who copies waits until it is done, for
    the others may use the copy at once.

    Args:
        column: of any kind, in the CPU's memory.

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
        """Return the column in the memory that the array library `xp` works on.

        Args:
            xp: numpy or cupy.
        """
        if xp is np:
            return self._column
        with self._lock:
            if xp.__name__ not in self._copies:
                copy = to_namespace(self._column, xp)
                xp.cuda.get_current_stream().synchronize()
                self._copies[xp.__name__] = copy
            return self._copies[xp.__name__]
