"""MemoryLogger: what a training holds in the host's memory and in that of the GPUs."""

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
    """Adds the memory in use to the logs of each epoch, in MiB.

    - `host_mib`: what of this process is in the host's memory (its resident set) at the end of the
      epoch, before validation or after it, whichever comes first in the order of the callbacks;
      pages that it shares with others, such as those of a file that is mapped, are counted too.
    - `host_peak_mib`: the most that this was, since the process began.
    - `gpu_mib` and `gpu_peak_mib`, where TensorFlow has a GPU: what its tensors hold, all GPUs
      together, and the most since the program began or `reset_memory_stats` was called. Not in it:
      what TensorFlow has reserved and not given out, which `nvidia-smi` shows, and other libraries.

    A callback that stands behind this one (TensorBoard, CSVLogger) writes them down. Reading takes
    less than a millisecond.

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
            logs.update(host_memory())
            logs.update(gpu_memory())


def host_memory() -> dict[str, int]:
    """Return {"host_mib": what this process has in memory, "host_peak_mib": the most so far}."""
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


def gpu_memory() -> dict[str, int]:
    """Return {"gpu_mib": what tensors hold, "gpu_peak_mib": the most so far}; {} without a GPU."""
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
