"""Memory, cores and devices: how much this process may use, and memory for batches.

Importing limits nothing: the user calls `limit_tensorflow_memory()` before TensorFlow first uses a
GPU, so that TensorFlow and the loader can share it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tutorlib.checks import check_choice, check_integer

ALIGNMENT = 64  # bytes: a cache line, and what DLPack consumers require
SMALL_BYTES = 65_536  # smaller arrays come from the C library's heap
HUGE_PAGE_BYTES = 2**21
ENVIRONMENT_VARIABLE = "TF_MEMORY_ALLOCATION"
DEVICES = ("cpu", "gpu")
GPU_RESERVE = 0.1  # of the free memory, for kernels and other libraries


# Cores and memory of this process.


def usable_cores() -> int:
    """Return how many CPU cores this process may use; on macOS, how many the machine has.

    Example:
        >>> usable_cores() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS has not
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def thread_count(threads: int | None, name: str = "threads") -> int:
    """Return `threads`, or `usable_cores()` for None.

    Raises:
        ValueError: if `threads`, called `name` in the message, is not an integer of at least 1.

    Example:
        >>> thread_count(3)
        3
    """
    return usable_cores() if threads is None else check_integer(name, threads, at_least=1)


def host_memory_bytes() -> int:
    """Return the bytes that this process may use: the machine's memory or its container's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup") / name
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


def is_aligned(array: Any) -> bool:
    """Return whether an array of NumPy starts at a multiple of 64 bytes; CuPy's views are not."""
    return isinstance(array, np.ndarray) and array.ctypes.data % ALIGNMENT == 0


class BufferPool:
    """Aligned memory that returns to the pool when the last array over it is deleted.

    New memory costs a page fault for every 4 KiB, and memory that a thread frees stays in its arena
    of the C library's heap, where other threads cannot use it. Thread-safe without a lock, since
    the garbage collector may return memory at any time, also within a call of the pool.

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
        self._used: dict[int, int] = {}  # bytes by address

    @property
    def used_bytes(self) -> int:
        """Bytes over which arrays exist."""
        return sum(list(self._used.values()))

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
        # Sizes are rounded up to whole pages, by at most an eighth, so that few sizes occur.
        step = max(mmap.PAGESIZE, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-nbytes // step) * step
        try:
            memory = self._free[size].pop()
        except (KeyError, IndexError):
            self._make_room(size)
            memory = _mapped(size)
        self._used[memory.ctypes.data] = size
        buffer = np.asarray(_Lease(self, memory))
        return buffer[:nbytes].view(dtype).reshape(shape)

    def _make_room(self, nbytes: int) -> None:
        """Free kept memory until `nbytes` more fit the limit."""
        while self.used_bytes + self.free_bytes + nbytes > self.limit_bytes:
            kept = [buffers for buffers in list(self._free.values()) if buffers]
            if not kept:
                return
            with contextlib.suppress(IndexError):  # another thread has just taken it
                kept[0].pop()

    def give_back(self, memory: np.ndarray) -> None:
        """Keep or free memory over which no array is left."""
        del self._used[memory.ctypes.data]
        if self.used_bytes + self.free_bytes + memory.nbytes <= self.limit_bytes:
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


def _mapped(nbytes: int) -> np.ndarray:
    """Return memory that the system gets back as soon as it is freed, uint8 [nbytes]."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


# The GPU. All of tutorlib works on the first GPU that CUDA shows, on CUDA's default stream.


def has_gpu() -> bool:
    """Return whether the driver of an NVIDIA GPU shows a device (on Linux)."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def missing_for_gpu() -> str | None:
    """Return in words what `device="gpu"` lacks on this machine; None if it lacks nothing."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error})"
    try:
        if not cupy.cuda.runtime.getDeviceCount():
            return "there is no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA finds no GPU ({error})"
    try:
        import cudf  # noqa: F401
        import rmm  # noqa: F401
    except ImportError as error:
        return f"cuDF cannot be imported ({error})"
    return None


def resolve_device(device: str | None) -> str:
    """Return the device on which batches are made, "cpu" or "gpu"; None means "cpu".

    Raises:
        ValueError: for another device, or for "gpu" without a GPU or the packages that it needs.
    """
    check_choice("device", device, (None, *DEVICES))
    if device == "gpu":
        if missing := missing_for_gpu():
            raise ValueError(
                f"device='gpu' needs an NVIDIA GPU, cuDF and CuPy, but {missing}. Install the "
                "packages with `pip install 'tutorlib[gpu]'`, or leave device='cpu'."
            )
        _share_gpu_memory()
    return device or "cpu"


@functools.cache
def _share_gpu_memory() -> None:
    """Let CuPy allocate from RMM, as cuDF does, up to what is free less a reserve.

    A memory resource that the program has given RMM stays in use.
    """
    import cupy
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    cupy.cuda.set_allocator(rmm_cupy_allocator)
    if isinstance(rmm.mr.get_current_device_resource(), rmm.mr.CudaMemoryResource):
        limit = gpu_memory_bytes() // 256 * 256
        asynchronous = rmm.mr.CudaAsyncMemoryResource()
        resource = rmm.mr.LimitingResourceAdaptor(asynchronous, allocation_limit=limit)
        rmm.mr.set_current_device_resource(resource)


@functools.cache
def gpu_memory_bytes() -> int:
    """Return the bytes of GPU memory that loaders may use: what was free first, less a tenth.

    Memory that TensorFlow was given by `limit_tensorflow_memory`, but has not taken yet, is not
    counted as free.
    """
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    promised = _given.get("tensorflow", 0) - (total - free)
    return int((free - max(0, promised)) * (1 - GPU_RESERVE))


_given: dict[str, int] = {}  # bytes of the GPU's memory


def limit_tensorflow_memory(allocation: str | float | None = None) -> int | None:
    """Give TensorFlow a fixed part of the first GPU's memory and leave the rest to the loader.

    Call it before anything runs on the GPU; TensorFlow otherwise allocates nearly all its memory.

    Args:
        allocation: below 1 a fraction of the GPU's free memory, from 1 on mebibytes; None reads the
            environment variable TF_MEMORY_ALLOCATION, and means 0.5 if that is not set.

    Returns:
        Bytes given to TensorFlow; None, without any effect, if TensorFlow sees no GPU.

    Raises:
        ValueError: if `allocation` is not a number or exceeds the GPU's memory.
        RuntimeError: if TensorFlow has already initialised the GPU.

    Example:
        >>> limit_tensorflow_memory(0.5)  # doctest: +SKIP
        42949672960

    Source: TensorFlow guide "Use a GPU", section "Limiting GPU memory growth".
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _given["tensorflow"] = 0
        return None
    import cupy

    if allocation is None:
        allocation = os.environ.get(ENVIRONMENT_VARIABLE, "0.5")
    limit = parse_allocation(allocation, cupy.cuda.runtime.memGetInfo()[0])
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
    try:
        tf.config.set_logical_device_configuration(gpus[0], [configuration])
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow has already initialised the GPU, so its memory can no longer be limited. "
            "Call limit_tensorflow_memory() right after importing tensorflow."
        ) from error
    _given["tensorflow"] = limit
    return limit


def parse_allocation(text: str | float, free_bytes: int) -> int:
    """Return the bytes that a memory allocation means.

    Args:
        text: below 1 a fraction of `free_bytes`; from 1 on mebibytes.
        free_bytes: memory of the device that nobody uses.

    Raises:
        ValueError: if it is not a number above 0, or exceeds `free_bytes`.

    Example:
        >>> parse_allocation("0.5", 8 * 2**30) == parse_allocation(4096, 8 * 2**30) == 4 * 2**30
        True
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value > 0:
        raise ValueError(
            f"{ENVIRONMENT_VARIABLE}={text!r} must be a number above 0: below 1 a fraction of the "
            "memory, from 1 on mebibytes"
        )
    wanted = int(value * free_bytes) if value < 1 else int(value * 2**20)
    if wanted > free_bytes:
        raise ValueError(
            f"{ENVIRONMENT_VARIABLE}={text!r} asks for {wanted / 2**20:,.0f} MiB, but the device "
            f"has {free_bytes / 2**20:,.0f} MiB free"
        )
    return wanted


def gpu_doubts(device: str) -> list[str]:
    """Return warnings: a GPU that is not used, or TF_MEMORY_ALLOCATION without effect."""
    doubts = []
    if device == "cpu" and has_gpu():
        missing = missing_for_gpu()
        remedy = "pass device='gpu' to make them there"
        if missing is not None:
            remedy = f"device='gpu' cannot be used, since {missing}"
        doubts.append(
            f"this machine has a GPU, but batches are made on the CPU: {remedy}, or device='cpu' "
            "to keep it so without this warning"
        )
    allocation = os.environ.get(ENVIRONMENT_VARIABLE)
    if allocation is not None and "tensorflow" not in _given:
        doubts.append(
            f"{ENVIRONMENT_VARIABLE}={allocation} is set, but does not limit TensorFlow until "
            "limit_tensorflow_memory() is called, right after tensorflow is imported"
        )
    return doubts
