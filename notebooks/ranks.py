"""Lesson 12: its programs as processes of this machine, and what they give.

On a cluster, Slurm or Kubernetes starts the ranks of a training: docs/scale_out.md.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np

HERE = Path(__file__).resolve().parent
RUN = """
import runpy, sys
sys.modules["tensorflow"] = None  # Keras would import it, which takes seconds
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Losses(keras.callbacks.Callback):
    """Keeps the loss of each step, and kills its process where the settings ask for it.

    Args:
        settings: of the training, as `launch` gives them to its program.
        rank: number of this process.
    """

    def __init__(self, settings, rank):
        super().__init__()
        self.path, self.kill = f"{settings['folder']}/rank_{rank}.npz", settings.get("kill")
        self.rank, self.means = rank, []

    def on_train_batch_end(self, batch, logs):
        """Keep the mean of the steps so far, which is what Keras gives."""
        self.means.append(float(logs["loss"]))
        if self.kill == [self.rank, len(self.means)]:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, logs):
        """Write the losses and the weights, for `finish`."""
        losses = np.diff(self.means * np.arange(1, len(self.means) + 1), prepend=0)
        weights = np.concatenate([np.ravel(weight) for weight in self.model.get_weights()])
        np.savez(self.path, losses=losses, weights=weights)


def start(program, settings, **environment):
    """Start a program with Keras on JAX, on the CPU; return its process.

    Args:
        program: path of the program, which finds its settings as JSON in `sys.argv[1]`.
        settings: among them `folder`, for its log, and for what JAX compiles for several programs.
        **environment: more variables.
    """
    compiled = (
        Path(settings["folder"]).parent / "compiled"
    )  # the next process need not compile again
    environment |= {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-c", RUN, str(program), json.dumps(settings)]
    with open(f"{settings['folder']}/log.txt", "a") as log:
        return subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)


def launch(program, world, settings):
    """Start all ranks of a training, which meet at a free port of this machine.

    Args:
        program: path of a program that calls `keras.distribution.initialize`.
        world: number of ranks.
        settings: for each rank; their folder is made.

    Returns:
        The processes.
    """
    Path(settings["folder"]).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ranks = []
    for rank in range(world):
        told = {"JOB_ADDRESSES": address, "NUM_PROCESSES": str(world), "PROCESS_ID": str(rank)}
        environment = {f"KERAS_DISTRIBUTION_{name}": value for name, value in told.items()}
        ranks.append(start(program, settings, **environment))
    return ranks


def wait(ranks, at_most_s=300):
    """Wait for all processes, or end all when one fails. Return exit codes; None: ended here."""
    until, codes = time.monotonic() + at_most_s, [None]
    while None in codes and not any(codes) and time.monotonic() < until:
        time.sleep(0.05)
        codes = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.kill()  # does nothing to those that have ended
        rank.wait()
    return codes


def finish(ranks, folder):
    """Wait for a training; return the losses of its steps, and the weights of all ranks."""
    assert wait(ranks) == [0] * len(ranks), Path(folder, "log.txt").read_text()[-3000:]
    saved = [np.load(path) for path in sorted(Path(folder).glob("rank_*.npz"))]
    return saved[0]["losses"], [rank["weights"] for rank in saved]
