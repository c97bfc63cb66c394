"""Lesson 12: its programs as processes of this machine, and what they give.

On a cluster, Slurm or Kubernetes starts the ranks of a training: docs/scale_out.md.
"""

import collections
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
        settings: of the training, as its program finds them.
        rank: number of this process.
    """

    def __init__(self, settings, rank=0):
        super().__init__()
        self.path, self.kill = f"{settings['folder']}/rank_{rank}.npz", settings.get("kill")
        self.rank, self.means = rank, []

    def on_train_batch_end(self, batch, logs):
        """Keep the mean of the steps so far, which is what Keras gives."""
        self.means.append(float(logs["loss"]))
        if self.kill == [self.rank, len(self.means)]:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, logs):
        """Write losses, weights and the bytes that each device holds."""
        losses = np.diff(self.means * np.arange(1, len(self.means) + 1), prepend=0)
        weights = np.concatenate([np.ravel(weight) for weight in self.model.get_weights()])
        held = collections.Counter()
        for variable in [*self.model.variables, *self.model.optimizer.variables]:
            for shard in variable.value.addressable_shards:
                held[shard.device] += shard.data.nbytes
        np.savez(self.path, losses=losses, weights=weights, held=list(held.values()))


def start(program, settings, **environment):
    """Start a program with Keras on JAX, on the CPU; return its process.

    Args:
        program: path of the program, which finds its settings as JSON in `sys.argv[1]`.
        settings: among them `folder`, for its log and results.
        **environment: more variables.
    """
    # The next process need not compile again.
    compiled = Path(settings["folder"]).parent / "compiled"
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
    """Wait for a training; return the losses of its steps, and the weights of each rank."""
    saved = _results(ranks, folder)
    return saved[0]["losses"], [rank["weights"] for rank in saved]


def train_on(devices, program, settings):
    """Run a program on so many devices of the CPU; return its losses, and bytes on each device."""
    Path(settings["folder"]).mkdir()
    flags = f"--xla_force_host_platform_device_count={devices}"
    [saved] = _results([start(program, settings, XLA_FLAGS=flags)], settings["folder"])
    return saved["losses"], saved["held"]


def _results(ranks, folder):
    """Wait for processes, and return what `Losses` wrote in each."""
    assert wait(ranks) == [0] * len(ranks), Path(folder, "log.txt").read_text()[-3000:]
    return [np.load(path) for path in sorted(Path(folder).glob("rank_*.npz"))]
