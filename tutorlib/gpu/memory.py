"""The GPU: what it needs, and how TensorFlow and the loader share its memory.

All of tutorlib works on the first GPU that CUDA shows, on CUDA's default stream, which all threads
share. CUDA_VISIBLE_DEVICES chooses another GPU, one for each process. Importing limits nothing. Who
takes how much:

- TensorFlow takes nearly all memory with its first tensor. Call `limit_tensorflow_memory()` before.
- JAX takes 75 % of all memory with its first array, or the part that the environment variable
  XLA_CLIENT_MEM_FRACTION says (".5"). The loader has it do so before it looks what is free.
- PyTorch takes what it needs when it needs it, and so does JAX with
  XLA_PYTHON_CLIENT_PREALLOCATE=false. Loaders may use what was free when the first of them was
  made, less a tenth, and keep what they used: bound that with `memory_budget`.
"""

from __future__ import annotations

import functools
import math
import os
import sys

ENVIRONMENT_VARIABLE = "TF_MEMORY_ALLOCATION"
GPU_RESERVE = 0.1  # of the free memory, for kernels and other libraries


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
        import pylibcudf  # noqa: F401
        import rmm  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: a library that it loads is missing
        return f"cuDF cannot be imported ({error})"
    return None


@functools.cache
def use_gpu() -> None:
    """Let CuPy allocate from RMM, as cuDF does, up to what is free less a reserve.

    A memory resource that the program has given RMM stays in use. Ours is CUDA's pool, which keeps
    what is freed for the next allocations: to give it back and take it again in every chunk costs
    time. Other libraries get it when the process ends.

    Raises:
        ValueError: without a GPU or the packages that it needs.
    """
    if missing := missing_for_gpu():
        raise ValueError(
            f"device='gpu' needs an NVIDIA GPU, cuDF and CuPy, but {missing}. Install the "
            "packages with `pip install 'tutorlib[gpu]'`, or leave device='cpu'."
        )
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

    Memory that TensorFlow was given by `limit_tensorflow_memory`, or that JAX allocates beforehand,
    is not counted as free, even if it has not been taken yet.
    """
    import cupy

    keras = sys.modules.get("keras")
    if keras is not None and keras.backend.backend() == "jax":
        import jax

        jax.device_put(0).block_until_ready()  # with its first array JAX takes its part
    free = cupy.cuda.runtime.memGetInfo()[0]
    return int(min(free, _left.get("tensorflow", free)) * (1 - GPU_RESERVE))


_left: dict[str, float] = {}  # bytes of the GPU's memory that a library leaves to others


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
        _left["tensorflow"] = math.inf
        return None
    import cupy

    if allocation is None:
        allocation = os.environ.get(ENVIRONMENT_VARIABLE, "0.5")
    free = cupy.cuda.runtime.memGetInfo()[0]
    limit = parse_allocation(allocation, free)
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
    tf.config.set_logical_device_configuration(gpus[0], [configuration])
    _left["tensorflow"] = free - limit
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
    part = int(value * free_bytes) if value < 1 else int(value * 2**20)
    if part > free_bytes:
        raise ValueError(
            f"{ENVIRONMENT_VARIABLE}={text!r} asks for {part / 2**20:,.0f} MiB, but the device "
            f"has {free_bytes / 2**20:,.0f} MiB free"
        )
    return part
