"""BufferPool: aligned memory for batches, reused when no array over it is left.

New memory costs a page fault for every 4 KiB, and memory that a thread frees stays in its arena of
the C library's heap, where other threads cannot use it: a loader that allocates each batch holds
half as much again as it needs.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes: a cache line, and what DLPack consumers require
SMALL_BYTES = 65_536  # smaller arrays come from the C library's heap
HUGE_PAGE_BYTES = 2**21


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array whose memory starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array whose memory starts at a multiple of 64 bytes."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class BufferPool:
    """Memory that returns to the pool when the last array over it is deleted.

    Thread-safe without a lock, since the garbage collector may return memory at any time, also
    within a call of the pool.

    Args:
        limit_bytes: limit of the bytes in use and kept for later requests. Requests may exceed it;
            memory beyond it is freed when it returns.

    Example:
        >>> pool = BufferPool(limit_bytes=2**24)
        >>> first = pool.empty((1000, 100), np.float32)
        >>> address, part = first.ctypes.data, first[10:20]
        >>> del first
        >>> pool.empty((1000, 100), np.float32).ctypes.data == address  # `part` still exists
        False
        >>> del part
        >>> pool.empty((1000, 100), np.float32).ctypes.data == address
        True
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._free: dict[int, deque[np.ndarray]] = {}
        self._shown: dict[int, int] = {}  # bytes by address

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept for later requests."""
        return sum(size * len(buffers) for size, buffers in list(self._free.items()))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised array whose memory starts at a multiple of 64 bytes."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        if nbytes < SMALL_BYTES:
            return aligned_empty(shape, dtype)
        size = size_class(nbytes)
        try:
            memory = self._free[size].pop()
        except (KeyError, IndexError):
            self._make_room(size)
            memory = _mapped(size)
        self._shown[memory.ctypes.data] = size
        buffer = np.asarray(_Lease(self, memory))
        return buffer[:nbytes].view(dtype).reshape(shape)

    def _make_room(self, nbytes: int) -> None:
        """Free kept memory until `nbytes` more fit the limit."""
        while self._too_much(nbytes):
            kept = [buffers for buffers in list(self._free.values()) if buffers]
            if not kept:
                return
            with contextlib.suppress(IndexError):  # another thread has just taken it
                kept[0].pop()

    def _too_much(self, nbytes: int) -> bool:
        return sum(list(self._shown.values())) + self.free_bytes + nbytes > self.limit_bytes

    def give_back(self, memory: np.ndarray) -> None:
        """Keep or free memory over which no array is left."""
        del self._shown[memory.ctypes.data]
        if not self._too_much(memory.nbytes):
            self._free.setdefault(memory.nbytes, deque()).append(memory)

    def clear(self) -> None:
        """Free all memory that is not in use."""
        self._free = {}


class _Lease:
    """Owner of the arrays over some memory; returns it to the pool when they are deleted."""

    def __init__(self, pool: BufferPool, memory: np.ndarray) -> None:
        self._pool, self._memory = pool, memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():  # at exit, modules that NumPy needs may already be gone
            self._pool.give_back(self._memory)


def size_class(nbytes: int) -> int:
    """Return `nbytes` rounded up to whole pages, by at most an eighth, so that few sizes occur."""
    step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // step) * step


def _mapped(nbytes: int) -> np.ndarray:
    """Return memory that the system gets back as soon as it is freed, uint8 [nbytes]."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
