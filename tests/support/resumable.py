"""Trainings that can be interrupted, with everything a checkpoint must hold."""

import multiprocessing
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.loaders import loader_with
from tutorlib.callbacks import LoaderCheckpoint

ROWS, BATCH_SIZE, EPOCHS = 2000, 50, 3
BATCHES = ROWS // BATCH_SIZE
PROCESSES = multiprocessing.get_context("forkserver")  # imports once what is slow to import
PROCESSES.set_forkserver_preload(["tutorlib.loader", "tutorlib.callbacks", "tensorflow"])


def columns():
    """Return rows with an id, a number and a label."""
    rng = np.random.default_rng(0)
    item, x = rng.integers(0, 50, ROWS), rng.standard_normal(ROWS).astype("float32")
    return {"item": item, "x": x, "label": (x + item % 2 > 0.5).astype("float32")}


loader_of = loader_with(
    BATCH_SIZE, label_names=["label"], cat_names=["item"], cont_names=["x"], buffer_size=200
)


def model_of(optimizer=None, embedding_rows=50, units=8, seed=1, **options):
    """Return a model with all that can get lost: slots, a schedule, Dropout, moving averages."""
    keras.utils.set_random_seed(seed)
    item, x = (keras.Input((1,), name=name) for name in ("item", "x"))
    embedded = keras.layers.Flatten()(keras.layers.Embedding(embedding_rows, 4)(item))
    hidden = keras.layers.Concatenate()([embedded, x])
    hidden = keras.layers.Dense(units, activation="relu")(hidden)
    hidden = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(hidden))
    output = keras.layers.Dense(1, activation="sigmoid", dtype="float32")(hidden)
    model = keras.Model({"item": item, "x": x}, output)
    decay = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    model.compile(optimizer or keras.optimizers.Adam(decay), "binary_crossentropy", **options)
    return model


def values_of(model):
    """Return all that training changes in a model."""
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assert_equal_bits(have, want):
    """Assert that two lists of arrays have the same dtypes, shapes and bits."""
    assert len(have) == len(want)
    for a, b in zip(have, want, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


class Interrupted(Exception):
    """Ends a fit in the middle."""


class InterruptAfter(keras.callbacks.Callback):
    """Raises `Interrupted` after some executions of steps."""

    def __init__(self, executions):
        super().__init__()
        self.left = executions

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise Interrupted


def interrupted(folder, path, executions, *, every_n_batches=7, **model_options):
    """Train with checkpoints until an interruption; returns the model."""
    loader, model = loader_of(folder), model_of(**model_options)
    callbacks = [LoaderCheckpoint(path, loader, every_n_batches), InterruptAfter(executions)]
    with pytest.raises(Interrupted):
        model.fit(loader, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    return model


def names_in(path):
    """Return the sorted names of what is in a folder."""
    return sorted(entry.name for entry in Path(path).iterdir())
