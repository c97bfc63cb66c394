"""Small trainings for the tests of callbacks and profiling: data, loaders, models and a clock."""

import time

import keras
import numpy as np
import tensorflow as tf

from tests.support.loaders import loader_with
from tutorlib.columns import Chunk, Ragged
from tutorlib.parquet import ParquetSink

ROWS, BATCH_SIZE = 512, 64


def write_rows(folder):
    """Write 8 row groups with a number x, lists of ids g and a label; returns the folder."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, ROWS))])
    x = rng.standard_normal(ROWS).astype("float32")
    columns = {"g": Ragged(rng.integers(0, 9, offsets[-1]), offsets), "x": x}
    with ParquetSink(folder / "train.parquet", row_group_rows=64) as sink:
        sink.write(Chunk({**columns, "label": (x > 0).astype("float32")}))
    return folder


loader_of = loader_with(BATCH_SIZE, cat_names=[], cont_names=["x"], label_names=["label"])


def loader_by_row_group(folder, function):
    """Return a loader that reads and transforms one row group after the other."""
    sizes = {"threads": 1, "buffer_size": 64, "parts_per_chunk": 1}
    return loader_of(folder, **sizes).map(function)


def slow_loader(folder):
    """Return a loader that takes a tenth of a second to transform each row group."""

    def slowly(chunk):
        time.sleep(0.1)
        return chunk

    return loader_by_row_group(folder, slowly)


def slow_dataset(batches, seconds, first_s=0.0):
    """Return a dataset of batches of 32 rows that take some seconds each, the first one more."""

    def rows():
        time.sleep(first_s)
        for _ in range(batches):
            time.sleep(seconds)
            yield {"x": np.ones((32, 1), "float32")}, np.ones((32, 1), "float32")

    kind = {"x": tf.TensorSpec((None, 1))}, tf.TensorSpec((None, 1))
    dataset = tf.data.Dataset.from_generator(rows, output_signature=kind)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def model_of(*hidden, dropout=0.0, **options):
    """Return a compiled model of x with hidden layers."""
    keras.utils.set_random_seed(0)
    inputs = {"x": keras.Input((1,), name="x")}
    y = inputs["x"]
    for width in hidden:
        y = keras.layers.Dense(width, "relu")(y)
    y = keras.layers.Dropout(dropout)(y)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(y))
    model.compile("adam", "binary_crossentropy", **options)
    return model


def values_of(model):
    """Return {path: value} of all that training changes in a model."""
    variables = [*model.variables, *model.optimizer.variables]
    return {v.path: keras.ops.convert_to_numpy(v).copy() for v in variables}


# ---- trainings with a clock that only the test moves --------------------------------------------


class FakeClock:
    """A clock that only the test moves."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class StepsTake(keras.callbacks.Callback):
    """Makes each training step take some seconds of a fake clock, the first one many."""

    def __init__(self, clock, step_s=0.5, compile_s=100.0, validation_s=0.0, epoch_end_s=0.0):
        super().__init__()
        self.clock, self.step_s, self.compile_s = clock, step_s, compile_s
        self.validation_s, self.epoch_end_s = validation_s, epoch_end_s

    def on_train_begin(self, logs=None):
        self.first = True

    def on_train_batch_end(self, batch, logs=None):
        self.clock.now += self.compile_s if self.first else self.step_s
        self.first = False

    def on_test_batch_end(self, batch, logs=None):
        self.clock.now += self.validation_s

    def on_epoch_end(self, epoch, logs=None):
        self.clock.now += self.epoch_end_s


def data(rows=70, batch_size=16, seed=0):
    """Return a dataset of batches: 70 rows are 4 batches of 16 and one of 6."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def compiled_model(**kwargs):
    """Return a model of the rows of `data`."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", **kwargs)
    return model


def fit(callbacks, epochs=3, model=None, rows=70, **kwargs):
    """Train on `data` and return the history of the logs."""
    model = model or compiled_model()
    return model.fit(data(rows), epochs=epochs, verbose=0, callbacks=callbacks, **kwargs).history
