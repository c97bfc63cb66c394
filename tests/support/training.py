"""Small trainings for the tests of callbacks and profiling: rows, loaders, models of one number."""

import time

import keras
import numpy as np
import tensorflow as tf

from tutorlib.chunk import Chunk, Ragged
from tutorlib.loader import KerasSequenceLoader
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


def loader_of(folder, batch_size=BATCH_SIZE, **options):
    """Return a loader of x and the label."""
    arguments = {"cat_names": [], "cont_names": ["x"], "label_names": ["label"], **options}
    return KerasSequenceLoader(folder / "train.parquet", batch_size, **arguments)


def loader_by_row_group(folder, function):
    """Return a loader that reads and transforms one row group after the other."""
    sizes = {"reader_kwargs": {"threads": 1}, "buffer_size": 64, "parts_per_chunk": 1}
    return loader_of(folder, **sizes).map(function)


def slow_loader(folder):
    """Return a loader that takes a quarter of a second to transform each row group."""

    def slowly(chunk):
        time.sleep(0.25)
        return chunk

    return loader_by_row_group(folder, slowly)


def slow_dataset(batches, seconds):
    """Return a dataset of batches of 32 rows that take some seconds each."""

    def rows():
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
