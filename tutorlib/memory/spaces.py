"""Places: memory in which batches are made on a device, with the array library that works there.

`GpuSpace` is a GPU with CuPy, `HostSpace` this machine's memory with NumPy: the same code makes
batches in both, so all of it but CUDA itself is tested without a GPU. (`device="cpu"` does not use
it: `batching.py` is faster there.)

What runs on a GPU is not done when a call returns. Each reader thread has a stream of its own, on
which its work is done in order, side by side with that of the others and with training. Two rules
keep memory whole: what one thread has made, another uses only after `finish()`, and lets go of only
after a `finish()` of its own; and what a consumer has had, which works on a stream of its own, is
used again or freed only after `finish_consumers()` (`device_pool.py` sees to that).
Does not belong here: what is in a batch, files.
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
    """Where batches are made.

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
        """Make what this thread does within happen here, on a stream of its own."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until everything that this thread has begun is done."""

    @abc.abstractmethod
    def finish_consumers(self) -> None:
        """Wait until consumers are done with all that they have begun."""

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """Return uninitialised memory, uint8 [nbytes], aligned.

        Raises:
            MemoryError: if there is not so much.
        """

    @abc.abstractmethod
    def lease(self, memory: Any, owner: Any) -> Any:
        """Return an array over `memory` that keeps `owner` as long as any view of it is held."""

    @property
    @abc.abstractmethod
    def limit_bytes(self) -> int:
        """The memory that may be used here, in bytes."""

    @abc.abstractmethod
    def advice(self) -> str:
        """What to change where this memory is not enough."""

    def array(self, values: Any) -> Any:
        """Return the values as an array of this place; copied if they are elsewhere."""
        return self.xp.asarray(values)


class HostSpace(MemorySpace):
    """This machine's memory, with NumPy.

    Args:
        limit_bytes: that `allocate` gives at a time at most; None for any.

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
        """Change nothing: NumPy is done when a call returns."""
        return contextlib.nullcontext()

    def finish(self) -> None:
        """Return at once."""

    def finish_consumers(self) -> None:
        """Return at once."""

    def allocate(self, nbytes: int) -> np.ndarray:
        """Return uninitialised memory, uint8 [nbytes], aligned."""
        if self._limit is not None and nbytes > self._limit:
            raise MemoryError(f"{nbytes:,} bytes, of {self._limit:,}")
        return aligned_empty((nbytes,), np.uint8)

    def lease(self, memory: np.ndarray, owner: Any) -> np.ndarray:
        """Return an array over `memory` that keeps `owner`."""
        return np.asarray(_HostLease(memory, owner))

    @property
    def limit_bytes(self) -> int:
        """The memory that this process may use."""
        return host_memory_bytes() if self._limit is None else self._limit

    def advice(self) -> str:
        """What to change where this memory is not enough."""
        return "Give a smaller memory_budget, buffer_size or batch_size."


class _HostLease:
    def __init__(self, memory: np.ndarray, owner: Any) -> None:
        self._owner = owner
        self.__array_interface__ = memory.__array_interface__


class GpuSpace(MemorySpace):
    """The first NVIDIA GPU, with CuPy; all memory comes from RMM, which cuDF uses too.

    If the program has given RMM a memory resource of its own, that is used. Otherwise memory is
    taken as it is needed, by cudaMallocAsync, and never more than TensorFlow's part leaves
    (`device.loader_gpu_bytes`).
    """

    on_gpu = True
    alignment = 256  # of every allocation of RMM; TensorFlow wants 64, XLA 128 at most

    def __init__(self) -> None:
        import cupy

        self.xp = cupy
        self._resource = _memory_resource()
        self._of_thread = threading.local()

    def __reduce__(self) -> Any:
        return gpu_space, ()

    def stream(self) -> Any:
        """Return this thread's stream; it waits for no other, and no other waits for it."""
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = self.xp.cuda.Stream(non_blocking=True)
        return self._of_thread.stream

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Make what this thread does within happen on the GPU, on a stream of its own."""
        from rmm.allocators.cupy import rmm_cupy_allocator

        with (
            self.xp.cuda.Device(0),
            self.xp.cuda.using_allocator(rmm_cupy_allocator),
            self.stream(),
        ):
            try:
                yield
            except BaseException:
                self.finish()  # before the memory goes that is still being worked on
                raise

    def finish(self) -> None:
        """Wait until everything that this thread has begun is done."""
        self.stream().synchronize()

    def finish_consumers(self) -> None:
        """Wait until all that Keras's backend was asked for on the GPU is done.

        Not until the GPU itself is idle: CUDA forbids asking for that while a thread records a
        graph, which XLA does in the middle of a training.
        """
        from tutorlib.keras_bridge import wait_for_gpu

        self.finish()
        wait_for_gpu()

    def allocate(self, nbytes: int) -> Any:
        """Return uninitialised memory, uint8 [nbytes], aligned."""
        with self.work():
            memory = self.xp.empty(nbytes, dtype=np.uint8)
            self.finish()  # from now on any stream may write there
        return memory

    def lease(self, memory: Any, owner: Any) -> Any:
        """Return an array over `memory` that keeps `owner`."""
        cuda = self.xp.cuda
        unowned = cuda.UnownedMemory(memory.data.ptr, memory.nbytes, (memory, owner), 0)
        return self.xp.ndarray(memory.shape, memory.dtype, cuda.MemoryPointer(unowned, 0))

    @property
    def limit_bytes(self) -> int:
        """The memory that is left to loaders beside TensorFlow."""
        return loader_gpu_bytes()

    def advice(self) -> str:
        """What to change where this memory is not enough."""
        import rmm.mr

        free, total = rmm.mr.available_device_memory()
        return (
            f"Of the GPU's {total / 2**20:,.0f} MiB, {free / 2**20:,.0f} are free, and loaders may "
            f"use {self.limit_bytes / 2**20:,.0f}. Leave them more: call limit_tensorflow_memory() "
            "before TensorFlow takes the GPU, with a smaller TF_MEMORY_ALLOCATION. Or need less: a "
            "smaller memory_budget, buffer_size, parts_per_chunk or batch_size, or row groups of "
            "fewer rows in the files."
        )


_LOCK = threading.Lock()
_GPU: list[GpuSpace] = []


def gpu_space() -> GpuSpace:
    """Return the GPU as a place, one in a process: its memory is shared by all loaders."""
    with _LOCK:
        if not _GPU:
            _GPU.append(GpuSpace())
        return _GPU[0]


def memory_space(device: str | None) -> MemorySpace | None:
    """Return the place of a device; None for the CPU, whose own path needs none.

    Raises:
        ValueError: for a device that is not known, or not there.
    """
    return gpu_space() if resolve_device(device) == "gpu" else None


def working_in(source: Any) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a thread works on what a source reads.

    Without it, CuPy works on one stream for all threads, which waits for none of those that read,
    and takes memory beside RMM's.

    Args:
        source: what `as_source` or `split_rows` gives.

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
    """Return the RMM resource that everybody uses from now on."""
    import rmm.mr

    current = rmm.mr.get_current_device_resource()
    if type(current) is not rmm.mr.CudaMemoryResource:  # what RMM begins with
        return current
    limit = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), loader_gpu_bytes())
    rmm.mr.set_current_device_resource(limit)
    return limit
