"""diagnose tells slow data from a heavy model, and leaves both as they were."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tutorlib.profiling import diagnose

from tests.support.training import (
    BATCH_SIZE,
    ROWS,
    loader_by_row_group,
    loader_of,
    model_of,
    slow_dataset,
    slow_loader,
    values_of,
)
from tutorlib.layers import DenseFeatures, keras_inputs


def test_a_slow_loader_bounds_a_small_model(folder):
    found = diagnose(model_of(), slow_loader(folder))
    assert found.bound == "input"
    assert found.wait_share > 0.5
    assert found.gain_without_input > 2
    assert found.gain_without_model < 2
    assert found.training.steps == found.data_alone.steps == ROWS // BATCH_SIZE
    assert found.training.rows == ROWS
    assert str(found).startswith("The data bounds this training: a batch takes ")
    assert found.training.wait_s <= found.training.elapsed_s
    assert 0.25 <= found.training.first_wait_s <= found.training.wait_s


def test_a_heavy_model_bounds_a_fast_loader(folder):
    found = diagnose(model_of(2048, 2048, 2048), loader_of(folder))
    assert found.bound == "model"
    assert found.gain_without_model > 2
    assert found.gain_without_input < 2
    assert repr(found).startswith("The model bounds this training: a batch takes ")


def test_a_slow_dataset_bounds_a_small_model():
    dataset = slow_dataset(4, 0.25)
    assert diagnose(model_of(), dataset).bound == "input"
    endless = diagnose(model_of(), dataset.repeat(), max_seconds=1)
    assert endless.bound == "input"
    assert endless.training.elapsed_s < 30


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def rows_of(loader):
    return np.concatenate([inputs["x"] for inputs, _ in loader])


def test_model_optimizer_and_loader_are_restored(folder):
    model, loader, other = model_of(8, dropout=0.5), loader_of(folder), loader_of(folder)
    history = model.fit(loader, verbose=0)
    other.set_epoch(1)
    for _ in range(3):  # stop in the middle of an epoch
        batches = iter(loader)
        next(batches)
    before, state = values_of(model), loader.state_dict()
    assert len(before) > 8  # weights, both moments, learning rate, a random state
    diagnose(model, loader, max_seconds=1)
    assert same(before, values_of(model))
    assert int(model.optimizer.iterations) == len(loader)
    assert model.history is history
    assert loader.state_dict() == state
    assert np.array_equal(rows_of(loader), rows_of(other))
    assert loader.epoch == 2


def test_a_resumed_loader_keeps_its_position(folder):
    loader = loader_of(folder)
    batches = iter(loader)
    next(batches)
    again = loader_of(folder)
    again.load_state_dict(loader.state_dict())
    diagnose(model_of(), again, max_seconds=1)
    assert len(rows_of(again)) == ROWS - BATCH_SIZE


def test_the_model_is_restored_if_the_data_fails(folder):
    calls = []

    def fails(chunk):
        calls.append(chunk)
        if len(calls) > 12:
            raise ValueError("no more")
        return chunk

    model, loader = model_of(8), loader_by_row_group(folder, fails)
    model.optimizer.build(model.trainable_variables)
    before = values_of(model)
    with pytest.raises(ValueError, match="no more"):
        diagnose(model, loader)
    assert same(before, values_of(model))


def test_a_model_that_is_not_built_is_built_and_keeps_its_first_weights(folder):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs):
            return self.dense(inputs["x"])

    model = Own()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    diagnose(model, loader_of(folder), max_seconds=1)
    assert model.built
    assert np.array_equal(model.dense.bias, [0.0])
    assert int(model.optimizer.iterations) == 0
    assert all(np.all(keras.ops.convert_to_numpy(m.count) == 0) for m in model.metrics[:1])
    assert model.evaluate(loader_of(folder), verbose=0)


def test_a_smaller_last_batch_is_left_out(folder):
    loader = loader_of(folder, 100, cat_names=["g"])
    columns = loader.schema.features.replace("g", cardinality=9, embedding_dim=4)
    inputs = keras_inputs(columns)
    features = DenseFeatures(columns, combiner="mean")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(features))
    model.compile("adam", "binary_crossentropy")
    found = diagnose(model, loader, max_seconds=5)
    assert found.training.steps == 5  # of 6: the last one has 12 rows
    assert found.training.rows == 500


def test_lists_of_other_lengths_are_compiled_before_anything_is_measured(folder):
    traced = []

    class Sum(keras.layers.Layer):
        def call(self, values):
            traced.append(values.shape)
            return keras.ops.cast(keras.ops.sum(values), "float32") * keras.ops.ones(
                (BATCH_SIZE, 1)
            )

        def compute_output_shape(self, input_shape):
            return (BATCH_SIZE, 1)

    data = loader_of(folder, cat_names=["g"], cont_names=[])
    inputs = keras_inputs(data.schema.features)
    model = keras.Model(inputs, Sum()(inputs["g__values"]))
    model.compile("sgd", "mse")
    traced.clear()
    diagnose(model, data, max_seconds=1e-9)
    assert len(set(traced)) > 1  # TensorFlow takes any length from the second on


def test_each_step_of_an_execution_counts(folder):
    found = diagnose(model_of(steps_per_execution=3), loader_of(folder))
    assert found.training.steps == ROWS // BATCH_SIZE


def test_what_cannot_be_tested_is_refused(folder):
    plain = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="is not compiled"):
        diagnose(plain, loader_of(folder))
    with pytest.raises(ValueError, match="max_seconds must be above 0, got 0"):
        diagnose(model_of(), loader_of(folder), max_seconds=0)
    with pytest.raises(TypeError, match="got a list"):
        diagnose(model_of(), [])
    empty = tf.data.Dataset.from_tensor_slices((np.ones((4, 1)), np.ones((4, 1)))).batch(2).take(0)
    with pytest.raises(ValueError, match="the data has no batch"):
        diagnose(model_of(), empty)
