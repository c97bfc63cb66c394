"""MemoryLogger: memory that a training uses on the host and on the GPUs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras

MIB = 2**20


class MemoryLogger(keras.callbacks.Callback):
    """Logs the memory in use at the end of each epoch, in MiB.

    - `host_mib`: resident set of this process, including pages shared with other processes.
    - `host_peak_mib`: maximum of `host_mib` since the process began.
    - `gpu_mib`, `gpu_peak_mib`: what TensorFlow's tensors hold, summed over all GPUs, and its
      maximum since the program began or since `reset_memory_stats`; only with a GPU.

    Not measured: memory that TensorFlow has reserved on a GPU but not given to a tensor (which
    `nvidia-smi` shows), and GPU memory of other libraries. Callbacks after this one in the list,
    such as TensorBoard or CSVLogger, see the figures.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile(loss="mse")
        >>> x, y = np.zeros((70, 2)), np.zeros((70, 1))
        >>> logs = model.fit(x, y, verbose=0, callbacks=[MemoryLogger()]).history
        >>> 0 < logs["host_mib"][0] <= logs["host_peak_mib"][0]
        True
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the figures to the logs."""
        if logs is not None:
            logs.update(host_memory() | gpu_memory())


def host_memory() -> dict[str, float]:
    """Return {"host_mib": resident set of this process, "host_peak_mib": its maximum so far}."""
    status = Path("/proc/self/status")
    if status.is_file():  # Linux: "VmRSS:     1234 kB"
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        now, peak = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    else:  # macOS
        command = ["ps", "-o", "rss=", "-p", str(os.getpid())]
        now = 1024 * int(subprocess.run(command, capture_output=True, check=True).stdout)
        unit = 1 if sys.platform == "darwin" else 1024
        peak = max(now, unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return {"host_mib": now / MIB, "host_peak_mib": peak / MIB}


def gpu_memory() -> dict[str, float]:
    """Return {"gpu_mib": what tensors hold, "gpu_peak_mib": its maximum}; {} without a GPU."""
    if keras.backend.backend() != "tensorflow":
        return {}
    import tensorflow as tf

    gpus = range(len(tf.config.list_logical_devices("GPU")))
    read = [tf.config.experimental.get_memory_info(f"GPU:{number}") for number in gpus]
    if not read:
        return {}
    return {
        "gpu_mib": sum(memory["current"] for memory in read) / MIB,
        "gpu_peak_mib": sum(memory["peak"] for memory in read) / MIB,
    }
