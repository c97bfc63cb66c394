"""What several lessons need and none of them teaches."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def check(claim: str, holds: object) -> None:
    """Print a claim that holds, or stop the lesson.

    Args:
        claim: what the text above the cell says, in a few words.
        holds: whether this run's numbers bear it out.

    Raises:
        AssertionError: if the claim does not hold.

    Example:
        >>> check("ids fit their tables", 3 < 4)
        ok: ids fit their tables
    """
    if not holds:
        raise AssertionError(f"this run does not bear out: {claim}")
    print("ok:", claim)


def criteo_rows(data_dir: str) -> Path:
    """Return the folder with `train` and `valid` of the Criteo rows that lesson 01 prepares.

    Data that exists is kept; if there is none, synthetic rows are made.
    """
    from data_prep import criteo, synthetic_criteo

    folder = Path(data_dir) / "criteo"
    if not (folder / "train").is_dir():
        if not (folder / "raw").is_dir():
            synthetic_criteo.write_criteo(folder / "raw")
        criteo.prepare(folder / "raw", folder)
    return folder


def loader_device() -> str:
    """Return where a loader can make its batches, "gpu" or "cpu", and print why.

    TensorFlow gets part of the GPU's memory and leaves the rest to the loader (lesson 04), so call
    this before anything uses the GPU.
    """
    import tensorflow as tf

    from tutorlib.memory import limit_tensorflow_memory, missing_for_gpu

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        print("no GPU: everything here runs on the CPU, and all numbers are CPU numbers")
        return "cpu"
    names = [tf.config.experimental.get_device_details(gpu).get("device_name") for gpu in gpus]
    print("GPU:", ", ".join(map(str, names)))
    if missing := missing_for_gpu():
        print(f"the loader stays on the CPU: {missing}")
        return "cpu"
    print(f"TensorFlow may use {limit_tensorflow_memory() / 2**30:.1f} GiB of its memory")
    return "gpu"


def show_tensorboard(log_dir: str, show: bool) -> None:
    """Open TensorBoard below the cell, or print the command that opens it.

    Args:
        log_dir: folder of the logs.
        show: whether to open it. The command waits up to a minute for its server, which then runs
            as long as the notebook's kernel: in an unattended run that would be wasted.
    """
    if not show:
        print(f"tensorboard --logdir {log_dir}")
        return
    from tensorboard import notebook

    os.environ.setdefault("TENSORBOARD_BINARY", str(Path(sys.executable).with_name("tensorboard")))
    notebook.start(f"--logdir {shlex.quote(log_dir)} --port 0")  # 0: any free port
