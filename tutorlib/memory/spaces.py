"""Memory spaces: where arrays live, with the array library that works there.

`GpuSpace` is a GPU with CuPy, `HostSpace` this machine's memory with NumPy. The same code makes
batches in both, so that all of it but CUDA is tested without a GPU. (`device="cpu"` does not use
it: `loader/host_batches.py` is faster.)

Work on a GPU may still run when a call returns. Each reader thread has a CUDA stream, which runs
its work in order, in parallel with other threads and with training. Two rules protect memory. A
thread uses what another thread has made only after that thread's `finish()`, and frees it only
after its own `finish()`. And memory that a consumer has used, on its own stream, is reused or freed
only after `finish_consumers()`; `DevicePool` takes care of that.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from tutorlib.memory.host_pool import ALIGNMENT, aligned_empty
from tutorlib.memory.limits import host_memory_bytes, loader_gpu_bytes, resolve_device


class MemorySpace(abc.ABC):
    """Where arrays live.

    Attributes:
        xp: the array library, numpy or cupy.
        alignment: bytes; every array of a batch starts at a multiple of it.
        on_gpu: whether it is a GPU's memory.
    """

    xp: Any
    alignment: int
    on_gpu = False

    @abc.abstractmethod
    def work(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this thread works in this space, on its own stream."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until all work that this thread has launched is done."""

    @abc.abstractmethod
    def finish_consumers(self) -> None:
        """Wait until all work that consumers have launched is done."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Return uninitialised memory, uint8 [nbytes], aligned.

        Raises:
            MemoryError: if the space has not enough memory.
        """

    @abc.abstractmethod
    def lease(self, memory: Any, owner: Any) -> Any:
        """Return an array over `memory` that keeps `owner` alive as long as any view of it."""

    @property
    @abc.abstractmethod
    def limit_bytes(self) -> int:
        """Bytes that may be used in this space."""

    @abc.abstractmethod
    def advice(self) -> str:
        """Return what error messages advise if the memory is not enough."""

    def array(self, values: Any) -> Any:
        """Return the values as an array of this space, copied if they are in another."""
        return self.xp.asarray(values)


class HostSpace(MemorySpace):
    """This machine's memory, with NumPy.

    Args:
        limit_bytes: limit of a single allocation; None sets no limit.

    Example:
        >>> space = HostSpace()
        >>> space.array([1, 2]).dtype.name, space.allocate(100).ctypes.data % space.alignment
        ('int64', 0)
    """

    xp = np
    alignment = ALIGNMENT

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit = limit_bytes

    def work(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without effect: NumPy is done when a call returns."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Do nothing."""

    def finish_consumers(self) -> None:
        """Do nothing."""

    def allocate(self, nbytes: int) -> np.ndarray:
        """Return uninitialised memory, uint8 [nbytes], aligned."""
        if self._limit is not None and nbytes > self._limit:
            raise MemoryError(f"{nbytes:,} bytes exceed the limit of {self._limit:,}")
        return aligned_empty((nbytes,), np.uint8)

    def lease(self, memory: np.ndarray, owner: Any) -> np.ndarray:
        """Return an array over `memory` that keeps `owner` alive."""
        return np.asarray(_HostLease(memory, owner))

    @property
    def limit_bytes(self) -> int:
        """Bytes that this process may use."""
        return host_memory_bytes() if self._limit is None else self._limit

    def advice(self) -> str:
        """Return what error messages advise if the memory is not enough."""
        return "Give a smaller memory_budget, buffer_size or batch_size."


class _HostLease:
    def __init__(self, memory: np.ndarray, owner: Any) -> None:
        self._owner = owner
        self.__array_interface__ = memory.__array_interface__


class GpuSpace(MemorySpace):
    """The first NVIDIA GPU, with CuPy; all memory comes from RMM, which cuDF uses too.

    A memory resource that the program has given RMM stays in use. Otherwise memory is allocated as
    needed, with cudaMallocAsync, up to `loader_gpu_bytes()`.
    """

    on_gpu = True
    alignment = 256  # of every RMM allocation; TensorFlow needs 64, XLA up to 128

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self._resource = _memory_resource()
        self._of_thread = threading.local()

    def __reduce__(self) -> Any:
        return gpu_space, ()

    def stream(self) -> Any:
        """Return this thread's stream; streams do not wait for each other."""
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = self.xp.cuda.Stream(non_blocking=True)
        return self._of_thread.stream

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Run what this thread does within on the GPU, on its own stream."""
        from rmm.allocators.cupy import rmm_cupy_allocator

        with (
            self.xp.cuda.Device(0),
            self.xp.cuda.using_allocator(rmm_cupy_allocator),
            self.stream(),
        ):
            try:
                yield
            except BaseException:
                self.finish()  # before memory is freed on which work still runs
                raise

    def finish(self) -> None:
        """Wait until all work that this thread has launched is done."""
        self.stream().synchronize()

    def finish_consumers(self) -> None:
        """Wait until all work that Keras's backend has launched on the GPU is done.

        Waiting for the whole device is forbidden while a thread records a CUDA graph, which XLA
        does during training.
        """
        from tutorlib.keras_bridge.backend import wait_for_gpu

        self.finish()
        wait_for_gpu()

    def allocate(self, nbytes: int) -> Any:
        """Return uninitialised memory, uint8 [nbytes], aligned."""
        with self.work():
            memory = self.xp.empty(nbytes, dtype=np.uint8)
            self.finish()  # then any stream may write to it
        return memory

    def lease(self, memory: Any, owner: Any) -> Any:
        """Return an array over `memory` that keeps `owner` alive."""
        cuda = self.xp.cuda
        unowned = cuda.UnownedMemory(memory.data.ptr, memory.nbytes, (memory, owner), 0)
        return self.xp.ndarray(memory.shape, memory.dtype, cuda.MemoryPointer(unowned, 0))

    @property
    def limit_bytes(self) -> int:
        """Bytes of the GPU that loaders may use."""
        return loader_gpu_bytes()

    def advice(self) -> str:
        """Return what error messages advise if the memory is not enough."""
        import rmm.mr

        free, total = rmm.mr.available_device_memory()
        return (
            f"Of the GPU's {total / 2**20:,.0f} MiB, {free / 2**20:,.0f} are free, and loaders may "
            f"use {self.limit_bytes / 2**20:,.0f}. Call limit_tensorflow_memory() with a smaller "
            "TF_MEMORY_ALLOCATION before TensorFlow uses the GPU. Or pass a smaller memory_budget, "
            "buffer_size, parts_per_chunk or batch_size, or write files with fewer rows in a row "
            "group."
        )


_LOCK = threading.Lock()
_GPU: list[GpuSpace] = []


def gpu_space() -> GpuSpace:
    """Return the GPU's memory space, which all loaders of a process share."""
    with _LOCK:
        if not _GPU:
            _GPU.append(GpuSpace())
        return _GPU[0]


def memory_space(device: str | None) -> MemorySpace | None:
    """Return the memory space of a device; None for the CPU, which works without one.

    Args:
        device: "cpu", "gpu" or None, which means "cpu".

    Raises:
        ValueError: for another device, or for "gpu" without a GPU or the packages that it needs.
    """
    return gpu_space() if resolve_device(device) == "gpu" else None


def working_in(source: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a thread works on the columns that a source has read.

    Outside of it, CuPy uses one stream for all threads, which does not wait for the threads that
    read, and memory that is not RMM's.

    Args:
        source: what `as_source` or `split_rows` returns.

    Example:
        >>> with working_in({"no": "source of a device"}):
        ...     print("on the CPU")
        on the CPU
    """
    while hasattr(source, "source"):  # rows of it, by `split_rows`
        source = source.source
    memory = getattr(source, "memory", None)
    return contextlib.nullcontext() if memory is None else memory.work()


def _memory_resource() -> Any:
    """Return the RMM resource of this process, after setting it if the program has not."""
    import rmm.mr

    current = rmm.mr.get_current_device_resource()
    if type(current) is not rmm.mr.CudaMemoryResource:  # RMM's default
        return current
    limit = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), loader_gpu_bytes())
    rmm.mr.set_current_device_resource(limit)
    return limit
