"""Where batches are made, and how much memory may be used there.

Nothing here happens on import: `limit_tensorflow_memory()` is called by the user, before TensorFlow
first touches a GPU, so that TensorFlow and the loader can share one.
"""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "TF_MEMORY_ALLOCATION"
DEVICES = ("cpu",)


def parse_allocation(text: str | float, total_bytes: int) -> int:
    """Return the bytes that a memory allocation means.

    Args:
        text: below 1, a share of `total_bytes`; at or above 1, mebibytes.
        total_bytes: memory of the device.

    Raises:
        ValueError: if it is not a number above 0, or more than there is.

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
            f"{ENVIRONMENT_VARIABLE}={text!r} must be a number: below 1 a share of the memory, "
            "from 1 on mebibytes"
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

    Call it before anything runs on the GPU: TensorFlow otherwise takes nearly all of it.

    Args:
        allocation: below 1 a share of the GPU's memory, from 1 on mebibytes; None reads the
            environment variable TF_MEMORY_ALLOCATION, and 0.5 if that is not set.

    Returns:
        Bytes given to TensorFlow, or None if TensorFlow sees no GPU (then nothing is changed).

    Raises:
        ValueError: if `allocation` is not a number or more than there is.
        RuntimeError: if TensorFlow has already initialised the GPU.

    Example:
        >>> limit_tensorflow_memory(0.5)  # doctest: +SKIP
        42949672960

    Source: TensorFlow guide "Use a GPU", section "Limiting GPU memory growth".
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
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
            "Call limit_tensorflow_memory() first thing after importing tensorflow."
        ) from error
    return limit


def _gpu_memory_bytes() -> int:
    import cupy

    return int(cupy.cuda.Device(0).mem_info[1])


def resolve_device(device: str | None) -> str:
    """Return the device on which batches are made: "cpu".

    Raises:
        ValueError: for a device that this version of the loader cannot make batches on.
    """
    if device is None:
        return "cpu"
    if device not in DEVICES:
        raise ValueError(f"device must be one of {DEVICES} or None, got {device!r}")
    return device


def host_memory_bytes() -> int:
    """Return the memory that this process may use: of the machine, or of its container if less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = Path("/sys/fs/cgroup") / name
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total
