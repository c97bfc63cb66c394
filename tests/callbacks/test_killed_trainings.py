"""A training that is killed at any moment and resumed ends with the same bits."""

import os
import random
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.resumable import (
    BATCHES,
    EPOCHS,
    PROCESSES,
    assert_equal_bits,
    loader_of,
    model_of,
    names_in,
    values_of,
)
from tutorlib.callbacks import LoaderCheckpoint
from tutorlib.storage import find_checkpoints

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class Progress(keras.callbacks.Callback):
    """Makes a file a byte longer with every step."""

    def __init__(self, path):
        super().__init__()
        self.file = open(path, "ab", buffering=0)

    def on_train_batch_end(self, batch, logs=None):
        self.file.write(b".")


def train(folder, result, path=None, progress=os.devnull, every_n_batches=5, embedding_rows=50):
    """Train to the end, from the newest checkpoint if there is one, and save all variables."""
    tf.config.experimental.enable_op_determinism()
    loader, model = loader_of(folder), model_of(embedding_rows=embedding_rows, metrics=["auc"])
    callbacks, epoch = [Progress(progress)], 0
    if path is not None:
        checkpoint = LoaderCheckpoint(path, loader, every_n_batches)
        callbacks, epoch = [*callbacks, checkpoint], checkpoint.restore(model)
    model.fit(
        loader, initial_epoch=epoch, epochs=EPOCHS, verbose=0, callbacks=callbacks,
        validation_data=loader_of(folder, shuffle=False, limit_rows=500),
    )  # fmt: skip
    np.savez(result, *values_of(model))


def start(*arguments):
    process = PROCESSES.Process(target=train, args=arguments, daemon=True)
    process.start()
    return process


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.is_alive(), f"ended early, with {process.exitcode}"
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def finish(*arguments):
    process = start(*arguments)
    process.join(300)
    assert process.exitcode == 0
    with np.load(arguments[1]) as values:
        return [values[name] for name in values.files]


@pytest.fixture(scope="module")
def never_killed(folder, tmp_path_factory):
    return finish(folder, tmp_path_factory.mktemp("reference") / "values.npz")


def size_of(path):
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("every_n_batches", [1, 5, 13])
def test_a_training_killed_twice_at_random_moments_ends_with_the_same_bits(
    folder, never_killed, tmp_path, every_n_batches
):
    path, result, progress = tmp_path / "saved", tmp_path / "values.npz", tmp_path / "progress"
    arguments = (folder, result, path, progress, every_n_batches)
    steps = 0
    for most in (50, 25):
        process = start(*arguments)
        steps += random.randint(1, most)
        wait_for(lambda steps=steps: size_of(progress) >= steps, process)
        time.sleep(random.uniform(0, 0.01))
        kill(process)
        steps = size_of(progress)
        print(f"killed after {steps} steps, with {names_in(path) if path.exists() else []}")
    assert_equal_bits(finish(*arguments), never_killed)
    assert size_of(progress) < BATCHES * EPOCHS + 2 * every_n_batches + 5  # few steps are repeated
    assert len(names_in(path)) == 2


def test_a_training_killed_while_saving_resumes_from_the_checkpoint_before(folder, tmp_path):
    """A large table makes saving slow, so each kill leaves a folder that is half written."""
    rows = 500_000
    want = finish(folder, tmp_path / "reference.npz", None, os.devnull, None, rows)
    path, result = tmp_path / "saved", tmp_path / "values.npz"
    arguments = (folder, result, path, tmp_path / "progress", 15, rows)
    left_over = None
    for _ in range(2):
        process = start(*arguments)

        def writing(left_over=left_over):
            try:
                halves = path.glob("*.partial/variables.npy")
                new = [half for half in halves if half.stat().st_mtime_ns != left_over]
                return len(find_checkpoints(path)) == 2 and new and size_of(new[0]) > 0
            except FileNotFoundError:  # completed or removed meanwhile
                return False

        wait_for(writing, process)
        kill(process)
        (half,) = path.glob("*.partial")
        left_over = (half / "variables.npy").stat().st_mtime_ns
        assert not (half / "state.json").exists()
        whole = find_checkpoints(path)
        for checkpoint in whole:
            assert size_of(checkpoint.folder / "variables.npy") == checkpoint.state["nbytes"]
        print(f"killed while writing {half.name}, with {[c.folder.name for c in whole]}")
    assert_equal_bits(finish(*arguments), want)
    assert not list(path.glob("*.partial"))
