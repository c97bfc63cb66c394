"""DevicePool: memory for batches on a device, reused only when no consumer works on it.

A framework drops a batch as soon as it has *launched* the step that reads it, and does not report
when the step is done. So returned memory is set aside until the pool has waited for all launched
work. It waits rarely: when no memory is free, and then for everything returned since. The reader
thread waits, training does not.
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
    """Memory that returns to the pool when the last array over it is deleted.

    Thread-safe. Returning takes no lock, since the garbage collector may return memory at any time.

    Args:
        space: where the memory is.
        limit_bytes: limit of the bytes in use and kept for later requests. Requests may exceed it;
            memory beyond it is freed when it returns.
        relieve: frees memory elsewhere; called when the device has no more.

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
        self._returned: deque[Any] = deque()  # a consumer may still work on these
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept for later requests, or were returned."""
        kept = sum(size * len(memories) for size, memories in list(self._free.items()))
        return kept + sum(memory.nbytes for memory in list(self._returned))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array that starts at a multiple of the space's alignment.

        Raises:
            MemoryError: if the space has not enough memory; the message says what to change.
        """
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        memory = self._memory(size_class(max(nbytes, 1)))
        array = self.space.lease(memory, _DeviceLease(self, memory))
        return array[:nbytes].view(dtype).reshape(shape)

    def copy(self, array: Any) -> Any:
        """Return a copy of an array."""
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
        """Wait for consumers, then keep or free what was returned; the caller holds the lock."""
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

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing() and self._returned:
            self.space.finish_consumers()


class _DeviceLease:
    """Owner of the arrays over some memory; returns it to the pool when they are deleted."""

    def __init__(self, pool: DevicePool, memory: Any) -> None:
        self._pool, self._memory = pool, memory
        pool._shown[id(self)] = memory.nbytes

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():
            return
        del self._pool._shown[id(self)]
        self._pool._returned.append(self._memory)
