"""Memory, cores and devices: how much this process may use, and memory for batches."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.checks import check_choice, check_integer

ALIGNMENT = 64  # bytes: a cache line, and what DLPack consumers require
SMALL_BYTES = 65_536  # smaller arrays come from the C library's heap
HUGE_PAGE_BYTES = 2**21
CGROUPS = Path("/sys/fs/cgroup")
LESS_MEMORY = (
    "Give a smaller memory_budget, buffer_size or batch_size, or leave the device more memory "
    "(limit_tensorflow_memory; XLA_CLIENT_MEM_FRACTION for JAX)"
)


# Cores and memory of this process.


def usable_cores() -> int:
    """Return how many CPU cores this process may use, by its affinity and its container's quota.

    Example:
        >>> usable_cores() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    for folder in _own_cgroups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            files = [folder / name for name in names]
            if all(file.is_file() for file in files):
                quota = cores_of_quota(" ".join(file.read_text() for file in files))
                cores = min(cores, quota or cores)
    return cores


def cores_of_quota(text: str) -> int | None:
    """Return how many cores "quota period" of a control group keeps busy; None for no limit.

    Example:
        >>> cores_of_quota("250000 100000"), cores_of_quota("max 100000"), cores_of_quota("-1 1000")
        (3, None, None)
    """
    quota, period = text.split()
    return -(-int(quota) // int(period)) if quota.isdigit() else None


def cgroup_folders(text: str, controller: str) -> list[Path]:
    r"""Return the folders of a process's control group and of those above it.

    Args:
        text: /proc/self/cgroup of the process. Version 2 has one line without controllers.
        controller: "cpu" or "memory".

    Example:
        >>> [str(folder) for folder in cgroup_folders("0::/a/b", "cpu")]
        ['/sys/fs/cgroup/a/b', '/sys/fs/cgroup/a', '/sys/fs/cgroup']
        >>> [str(folder) for folder in cgroup_folders("7:pids:/a\n4:cpu,cpuacct:/a", "cpu")]
        ['/sys/fs/cgroup/cpu/a', '/sys/fs/cgroup/cpu']
    """
    folders = []
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = CGROUPS / controller if controllers else CGROUPS
            own = root / path.lstrip("/")
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders


def _own_cgroups(controller: str) -> list[Path]:
    known = Path("/proc/self/cgroup")
    return cgroup_folders(known.read_text(), controller) if known.is_file() else []


def thread_count(threads: int | None) -> int:
    """Return `threads`, or `usable_cores()` for None.

    Raises:
        ValueError: if `threads` is not an integer of at least 1.

    Example:
        >>> thread_count(3)
        3
    """
    return usable_cores() if threads is None else check_integer("threads", threads, at_least=1)


def host_memory_bytes() -> int:
    """Return the bytes that this process may use: the machine's memory or its container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _own_cgroups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = folder / name
            if limit.is_file() and (text := limit.read_text().strip()).isdigit():
                total = min(total, int(text))
    return total


# Memory for batches.


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array whose memory starts at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: np.ndarray) -> bool:
    """Return whether an array starts at a multiple of 64 bytes."""
    return array.ctypes.data % ALIGNMENT == 0


class BufferPool:
    """Aligned memory that returns to the pool when the last array over it is deleted.

    New memory costs a page fault for every 4 KiB, and memory that a thread frees stays in its arena
    of the C library's heap, where other threads cannot use it. Thread-safe without a lock, since
    the garbage collector may return memory at any time, also within a call of the pool.

    Memory that returns is kept with the next call.

    Args:
        limit_bytes: limit of the bytes in use and kept for later requests. Requests may exceed it;
            what is kept beyond it is freed when new memory is needed.

    Attributes:
        library: of the arrays, as an array library for the code that fills them: NumPy.
        aligned_rows: rows of a batch begin aligned at each multiple of so many.

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

    library: Any = np
    aligned_rows = 16  # of 4 bytes at least

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._free: dict[int, deque[np.ndarray]] = defaultdict(deque)  # by size
        self._lent: dict[int, _Lent] = {}  # by address
        self._returned: deque[_Lent] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes over which arrays exist."""
        self._take_back()
        return sum(lent.memory.nbytes for lent in list(self._lent.values()))

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept for later requests."""
        self._take_back()
        return sum(size * len(kept) for size, kept in list(self._free.items()))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised array whose memory starts at a multiple of 64 bytes."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape)) * dtype.itemsize
        if nbytes < SMALL_BYTES:
            return aligned_empty(shape, dtype)
        # Sizes are rounded up to whole pages, by at most an eighth, so that few sizes occur.
        step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-nbytes // step) * step
        self._take_back()
        try:
            memory = self._free[size].pop()
        except IndexError:
            self._make_room(size)
            memory = _mapped(size)
        lease = _Lease(memory)
        # The callback has no bytecode, so that no Ctrl-C can be raised in it and be lost there.
        lent = _Lent(lease, self._returned.append)
        lent.memory = memory
        self._lent[memory.ctypes.data] = lent
        return np.asarray(lease)[:nbytes].view(dtype).reshape(shape)

    def _take_back(self) -> None:
        """Keep the memory over which no array is left."""
        with contextlib.suppress(IndexError):  # there is no more
            while True:
                memory = self._returned.popleft().memory
                if self._lent.pop(memory.ctypes.data, None) is not None:  # not cleared meanwhile
                    self._free[memory.nbytes].append(memory)

    def _make_room(self, nbytes: int) -> None:
        """Free kept memory until `nbytes` more fit the limit."""
        more = self.used_bytes + self.free_bytes + nbytes - self.limit_bytes
        for size, kept in list(self._free.items()):
            with contextlib.suppress(IndexError):  # none of this size is left
                while more > 0:
                    kept.pop()
                    more -= size

    def clear(self) -> None:
        """Free all memory that is not in use, and the rest when the last array over it is gone."""
        self._take_back()
        self._free, self._lent = defaultdict(deque), {}


class _Lease:
    """Owner of the arrays over some memory."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


class _Lent(weakref.ref[_Lease]):
    """Memory that is lent out; its callback tells that the last array over it was deleted."""

    memory: np.ndarray


def _mapped(nbytes: int) -> np.ndarray:
    """Return memory that the system gets back as soon as it is freed, uint8 [nbytes]."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


# Where batches are made. A copy of tutorlib for CPUs alone lacks `tutorlib.gpu`.


def resolve_device(device: str | None) -> str:
    """Return the device on which batches are made, "cpu" or "gpu"; None means "cpu".

    Raises:
        ValueError: for another device, or for "gpu" without a GPU, or the packages or files that it
            needs.
    """
    check_choice("device", device, (None, "cpu", "gpu"))
    if device == "gpu":
        try:
            from tutorlib.gpu.memory import use_gpu
        except ModuleNotFoundError as error:
            raise ValueError(
                "device='gpu' needs the folder gpu/ of tutorlib, which is not in this copy. Copy "
                "it too, or leave device='cpu'."
            ) from error
        use_gpu()
    return device or "cpu"
