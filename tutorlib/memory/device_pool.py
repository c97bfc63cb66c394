"""DevicePool: memory for batches on a device, used again only when no consumer works on it.

A framework lets go of a batch as soon as it has *asked* the device for the step that reads it, and
tells nobody when the step is done. So what comes back stays aside until the pool has waited for all
that the device was asked for. It waits rarely: when nothing else is free, and then for everything
that came back meanwhile. The reader thread waits, not training.
Does not belong here: what is in a batch, host memory of the CPU path (`buffers.py`).
"""

from __future__ import annotations

import math
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tutorlib.memory.host_pool import size_class
from tutorlib.memory.spaces import MemorySpace


class DevicePool:
    """Memory that comes back by itself when the last array that shows some of it is gone.

    Safe with several threads. What comes back is taken without a lock, for the garbage collector
    may bring it at any time.

    Args:
        space: where the memory is.
        limit_bytes: of memory that is shown by arrays or kept for the next request. Requests go
            beyond it where they must; what then comes back is freed.
        relieve: makes room elsewhere; called where there is no more memory.

    Example:
        >>> from tutorlib.memory.spaces import HostSpace
        >>> pool = DevicePool(HostSpace(), limit_bytes=2**24)
        >>> first = pool.empty((1000, 100), np.float32)
        >>> address, part = first.ctypes.data, first[10:20]
        >>> del first
        >>> pool.empty((1000, 100), np.float32).ctypes.data == address  # `part` is still there
        False
    """

    def __init__(
        self, space: MemorySpace, limit_bytes: int, relieve: Callable[[], None] = lambda: None
    ) -> None:
        self.space, self.limit_bytes, self._relieve = space, limit_bytes, relieve
        self._free: dict[int, list[Any]] = {}
        self._shown: dict[int, int] = {}  # bytes by lease
        self._returned: deque[Any] = deque()  # a consumer may still be working on these
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Memory that is kept for the next request, or has come back."""
        kept = sum(size * len(memories) for size, memories in list(self._free.items()))
        return kept + sum(memory.nbytes for memory in list(self._returned))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array that starts at a multiple of the place's alignment.

        Raises:
            MemoryError: if there is not so much; the message says what to change.
        """
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        memory = self._memory(size_class(max(nbytes, 1)))
        array = self.space.lease(memory, _DeviceLease(self, memory))
        return array[:nbytes].view(dtype).reshape(shape)

    def copy(self, array: Any) -> Any:
        """Return a copy of an array, in memory of its own."""
        made = self.empty(array.shape, array.dtype)
        made[...] = array
        return made

    def _memory(self, size: int) -> Any:
        with self._lock:
            if not self._free.get(size):
                self._reclaim()
            if self._free.get(size):
                return self._free[size].pop()
            try:
                return self.space.allocate(size)
            except MemoryError:
                self._free.clear()
            self._relieve()
            try:
                return self.space.allocate(size)
            except MemoryError as error:
                raise MemoryError(
                    f"no {size / 2**20:,.1f} MiB for batches ({error}). {self.space.advice()}"
                ) from error

    def _reclaim(self) -> None:
        """Take what has come back, once nobody works on it any more; under the lock."""
        returned = []
        while self._returned:
            returned.append(self._returned.popleft())
        if not returned:
            return
        self.space.finish_consumers()
        kept = sum(size * len(memories) for size, memories in self._free.items())
        kept += sum(list(self._shown.values()))
        for memory in returned:
            if kept + memory.nbytes <= self.limit_bytes:
                kept += memory.nbytes
                self._free.setdefault(memory.nbytes, []).append(memory)

    def clear(self) -> None:
        """Free all memory that is not in use."""
        with self._lock:
            self._reclaim()
            self._free = {}

    def __del__(self) -> None:
        if self._returned and not sys.is_finalizing():
            self.space.finish_consumers()


class _DeviceLease:
    """What the arrays over one piece of memory hold on to; gives it back when they are gone."""

    def __init__(self, pool: DevicePool, memory: Any) -> None:
        self._pool, self._memory = pool, memory
        pool._shown[id(self)] = memory.nbytes

    def __del__(self) -> None:
        del self._pool._shown[id(self)]
        self._pool._returned.append(self._memory)
