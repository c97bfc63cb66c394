"""Devices, cores and memory: what this process may use of them.

Importing limits nothing: the user calls `limit_tensorflow_memory()` before TensorFlow first uses a
GPU, so that TensorFlow and the loader can share it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tutorlib.checks import check_choice, check_integer

ENVIRONMENT_VARIABLE = "TF_MEMORY_ALLOCATION"
DEVICES = ("cpu", "gpu")


def parse_allocation(text: str | float, total_bytes: int) -> int:
    """Return the bytes that a memory allocation means.

    Args:
        text: below 1 a fraction of `total_bytes`; from 1 on mebibytes.
        total_bytes: memory of the device.

    Raises:
        ValueError: if it is not a number above 0, or exceeds `total_bytes`.

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
    wanted = int(value * total_bytes) if value < 1 else int(value * 2**20)
    if wanted > total_bytes:
        raise ValueError(
            f"{ENVIRONMENT_VARIABLE}={text!r} asks for {wanted / 2**20:,.0f} MiB, but the device "
            f"has {total_bytes / 2**20:,.0f} MiB"
        )
    return wanted


def limit_tensorflow_memory(allocation: str | float | None = None) -> int | None:
    """Give TensorFlow a fixed part of the first GPU's memory and leave the rest to the loader.

    Call it before anything runs on the GPU; TensorFlow otherwise allocates nearly all its memory.

    Args:
        allocation: below 1 a fraction of the GPU's memory, from 1 on mebibytes; None reads the
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
        _GIVEN["tensorflow"] = 0
        return None
    if allocation is None:
        allocation = os.environ.get(ENVIRONMENT_VARIABLE, "0.5")
    limit = parse_allocation(allocation, _gpu_memory_bytes())
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
    try:
        tf.config.set_logical_device_configuration(gpus[0], [configuration])
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow has already initialised the GPU, so its memory can no longer be limited. "
            "Call limit_tensorflow_memory() right after importing tensorflow."
        ) from error
    _GIVEN["tensorflow"] = limit
    return limit


_GIVEN: dict[str, int] = {}  # bytes of the GPU's memory


def allocation_not_applied() -> str:
    """Return a warning if TF_MEMORY_ALLOCATION is set, but TensorFlow was not limited; else ""."""
    allocation = os.environ.get(ENVIRONMENT_VARIABLE)
    if allocation is None or "tensorflow" in _GIVEN:
        return ""
    return (
        f"{ENVIRONMENT_VARIABLE}={allocation} is set, but does not limit TensorFlow until "
        "limit_tensorflow_memory() is called, right after tensorflow is imported"
    )


def gpu_not_used(missing: str | None) -> str:
    """Return the warning that batches are made on the CPU, although the machine has a GPU.

    Args:
        missing: what `missing_for_gpu` returns.
    """
    remedy = "pass device='gpu' to make them there"
    if missing is not None:
        remedy = f"device='gpu' cannot be used, since {missing}"
    return (
        f"this machine has a GPU, but batches are made on the CPU: {remedy}, or device='cpu' to "
        "keep it so without this warning"
    )


def has_gpu() -> bool:
    """Return whether the driver of an NVIDIA GPU shows a device (on Linux)."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def loader_gpu_bytes() -> int:
    """Return the bytes of GPU memory that loaders may use.

    It is the total without what `limit_tensorflow_memory` gave TensorFlow, or else without what
    TF_MEMORY_ALLOCATION says; the total if neither is set.
    """
    total = _gpu_memory_bytes()
    if "tensorflow" in _GIVEN:
        return total - _GIVEN["tensorflow"]
    allocation = os.environ.get(ENVIRONMENT_VARIABLE)
    return total if allocation is None else total - parse_allocation(allocation, total)


def _gpu_memory_bytes() -> int:
    """Return the bytes of the first visible GPU, from the driver, without using its memory."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, total = ctypes.c_int(), ctypes.c_size_t()
    for name, error in (
        ("cuInit", cuda.cuInit(0)),
        ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
        ("cuDeviceTotalMem", cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)),
    ):
        if error:
            raise RuntimeError(f"the NVIDIA driver's {name} failed with error {error}")
    return total.value


def resolve_device(device: str | None) -> str:
    """Return the device on which batches are made, "cpu" or "gpu"; None means "cpu".

    Raises:
        ValueError: for another device, or for "gpu" without a GPU or the packages that it needs.
    """
    if device is None:
        return "cpu"
    check_choice("device", device, DEVICES)
    if device == "gpu":
        missing = missing_for_gpu()
        if missing:
            raise ValueError(
                f"device='gpu' needs an NVIDIA GPU, cuDF and CuPy, but {missing}. Install the "
                "packages with `pip install 'tutorlib[gpu]'`, or leave device='cpu'."
            )
    return device


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
    except ImportError as error:
        return f"cuDF cannot be imported ({error})"
    return None


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
