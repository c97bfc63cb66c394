"""diagnose tells slow data from a heavy model, and leaves both as they were."""

import dataclasses
import re
import time

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from tests.support.training import (
    BATCH_SIZE,
    ROWS,
    loader_by_row_group,
    loader_of,
    model_of,
    slow_dataset,
    slow_loader,
    values_of,
    write_rows,
)
from tutorlib.diagnosis import Diagnosis, Pace, diagnose
from tutorlib.loader import KerasSequenceLoader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"))


# ---- diagnose -----------------------------------------------------------------------------------


def test_slow_data_bounds_a_training(folder):
    found = diagnose(model_of(), slow_loader(folder))
    assert found.bound == "input"
    assert found.gain_without_input > 2 > found.training.step_s / found.data_alone.step_s >= 1
    assert found.wait_share > 0.5
    assert found.training.steps == found.data_alone.steps == ROWS // BATCH_SIZE
    assert found.training.rows == ROWS
    assert 0.1 <= found.training.first_wait_s <= found.training.wait_s <= found.training.elapsed_s
    assert str(found).startswith("The data bounds this training: data costs ")
    endless = diagnose(model_of(), slow_dataset(4, 0.1).repeat(), max_seconds=0.3)
    assert endless.bound == "input"
    assert endless.training.elapsed_s < 30


class Sleeps(keras.layers.Layer):
    """Returns its inputs, in each step after some seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def call(self, x):
        def sleep(values):
            time.sleep(self.seconds)
            return values

        return tf.ensure_shape(tf.numpy_function(sleep, [x], x.dtype), x.shape)


def sleeping(model_s, batch_s, batches=12, ahead=0, first_s=0.0):
    """Return a model and a dataset that take seconds per step and batch, `ahead` of the step."""
    x = keras.Input((1,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(1)(Sleeps(model_s)(x)))
    model.compile("sgd", "mse")
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # a batch is made when asked for
    dataset = slow_dataset(batches, batch_s, first_s).with_options(options)
    return model, dataset.prefetch(ahead) if ahead else dataset


def test_a_heavy_model_bounds_a_training(folder):
    model, _ = sleeping(0.15, 0)
    found = diagnose(model, loader_of(folder), max_seconds=1)
    assert found.bound == "model"
    assert found.data_cost < 0.2
    assert found.training.step_s / found.data_alone.step_s > 2 > found.gain_without_input
    assert str(found).startswith("The model bounds this training: data costs ")


@pytest.mark.parametrize(
    ("model_s", "batch_s", "ahead", "bound", "cost"),
    [
        pytest.param(0.12, 0.12, 4, "model", 0.1, id="equal, at the same time"),
        pytest.param(0.11, 0.09, 0, "both", 0.46, id="half and half, one after the other"),
    ],
)
def test_the_verdict_follows_from_what_data_costs(model_s, batch_s, ahead, bound, cost):
    model, dataset = sleeping(model_s, batch_s, ahead=ahead)
    found = diagnose(model, dataset, max_seconds=4)
    print(found)
    assert found.bound == bound
    assert found.data_cost == pytest.approx(cost, abs=0.15)
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) rows/s", str(found))]
    as_it_is, model_alone, data_alone = rates
    assert f"data costs {found.data_cost:.0%} of the time" in str(found)
    assert found.data_cost == pytest.approx(max(0, 1 - as_it_is / model_alone), abs=0.01)
    assert data_alone >= as_it_is


def test_of_a_part_of_an_epoch_the_wait_for_the_first_batch_counts_in_proportion():
    model, dataset = sleeping(0.04, 0, batches=40, first_s=0.6)
    pace = diagnose(model, dataset, max_seconds=1).training
    assert 1 < pace.steps < 25
    assert pace.first_wait_s / pace.steps == pytest.approx(0.6 / 40, rel=0.3)
    assert pace.step_s == pytest.approx(0.04 + 0.6 / 40, abs=0.02)


def test_model_optimizer_and_loader_are_restored(folder):
    model, loader, other = model_of(8, dropout=0.5), loader_of(folder), loader_of(folder)
    history = model.fit(loader, verbose=0)
    other.set_epoch(1)
    next(iter(loader))  # stop in the middle of an epoch
    before, state = values_of(model), loader.state_dict()
    assert len(before) > 8  # weights, both moments, learning rate, a random state
    diagnose(model, loader, max_seconds=1)
    np.testing.assert_equal(values_of(model), before)
    assert model.history is history
    assert loader.state_dict() == state
    rows = [np.concatenate([inputs["x"] for inputs, _ in each]) for each in (loader, other)]
    np.testing.assert_array_equal(*rows)
    assert loader.epoch == 2


def test_a_model_that_is_not_built_is_built_and_restored_also_if_the_data_fails(folder):
    calls = []

    def fails(chunk):
        calls.append(chunk)
        if len(calls) > 12:
            raise ValueError("no more")
        return chunk

    model = keras.Sequential([Number(), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy")
    with pytest.raises(ValueError, match="no more"):
        diagnose(model, loader_by_row_group(folder, fails))
    assert np.array_equal(model.layers[1].bias, [0.0])
    assert int(model.optimizer.iterations) == 0


class Number(keras.layers.Layer):
    def call(self, inputs):
        return inputs["x"]


@pytest.mark.parametrize(("batch_size", "steps"), [(100, 5), (BATCH_SIZE, 8)])
def test_a_smaller_last_batch_is_left_out_and_each_step_of_an_execution_counts(
    folder, batch_size, steps
):
    model = model_of(steps_per_execution=1 if batch_size == 100 else 3)
    found = diagnose(model, loader_of(folder, batch_size), max_seconds=5)
    assert (found.training.steps, found.training.rows) == (steps, steps * batch_size)


def test_what_would_help_is_tried_on_the_rows_and_told_by_effort():
    model, dataset = sleeping(0.01, 0.15, batches=6)
    found = diagnose(model, dataset, max_seconds=0.4)
    advice = [text.partition("(")[0].partition(" on ")[0] for text in found.remedies]
    assert advice[:3] == ["model.fit", "data.save", "KerasSequenceLoader"]
    assert all(len(gains) == 3 for gains in found.remedies.values())
    assert min(found.remedies[next(iter(found.remedies))]) > 2  # about 10
    assert "  1. " in str(found)
    assert "all rows in memory (1 MiB)" in str(found)
    assert min(found.costs) <= found.data_cost <= max(found.costs)


def test_a_loader_is_not_told_to_become_one_and_lists_are_left_out(folder):
    found = diagnose(model_of(), slow_loader(folder), max_seconds=0.3)
    assert next(iter(found.remedies)).startswith("model.fit(x, y, ")
    assert not any("KerasSequenceLoader" in text or "save" in text for text in found.remedies)
    lists = tf.ragged.constant([[1], [2, 3]] * 50, dtype=tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices(({"ids": lists}, np.ones((100, 1), "float32")))
    ids = keras.Input((None,), name="ids", dtype="int64")
    model = keras.Model({"ids": ids}, keras.layers.Dense(1)(keras.layers.Lambda(mean_of)(ids)))
    model.compile("sgd", "mse")
    found = diagnose(model, dataset.batch(10), max_seconds=0.2)
    assert found.remedies == {}
    assert str(found).endswith("Other ways to read lists and text are not tried.")


@pytest.mark.parametrize("labels", ["alone", "in a dict"])
def test_labels_and_inputs_may_have_one_axis(labels):
    """As a column of pandas: [rows], where the loader's batches have [rows, 1]."""

    def of(value):
        return {"out": value} if labels == "in a dict" else value

    def rows():
        for _ in range(20):
            time.sleep(0.02)
            x = np.arange(100, dtype="float32") / 100
            yield {"x": x}, of((x > 0.5).astype("float32"))

    kind = {"x": tf.TensorSpec((None,))}, of(tf.TensorSpec((None,)))
    slow = tf.data.Dataset.from_generator(rows, output_signature=kind)
    found = diagnose(model_of_one_number(of), slow, max_seconds=0.3)
    assert any(text.startswith("KerasSequenceLoader") for text in found.remedies)
    assert found.bound == "input"


def test_a_model_that_was_trained_on_labels_of_one_axis_can_be_tested():
    x = np.arange(1000, dtype="float32")
    table = pa.table({"x": x / 1000, "label": (x > 500).astype("float32")})
    loader = KerasSequenceLoader(table, 100, ["label"], cont_names=["x"])
    model = model_of_one_number()
    inputs = {"x": x[:, None] / 1000}
    model.fit(inputs, (x > 500).astype("float32"), batch_size=100, verbose=0)
    trained = model.train_function
    assert diagnose(model, loader, max_seconds=0.2).training.steps > 0
    assert model.train_function is trained
    model.fit(inputs, (x > 500).astype("float32"), batch_size=100, verbose=0)


def model_of_one_number(of=lambda outputs: outputs):
    inputs = {"x": keras.Input((1,), name="x")}
    outputs = keras.layers.Dense(1, "sigmoid", name="out")(inputs["x"])
    model = keras.Model(inputs, of(outputs))
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    return model


def mean_of(ids):
    if hasattr(ids, "to_tensor"):
        ids = ids.to_tensor()
    return keras.ops.mean(keras.ops.cast(ids, "float32"), axis=1, keepdims=True)


def test_a_verdict_needs_all_turns_on_one_side():
    def found(*costs):
        return dataclasses.replace(EXAMPLE, costs=costs).bound

    assert [found(0.1, 0.2), found(0.3, 0.5), found(0.64, 0.9)] == ["model", "both", "input"]
    assert [found(0.2, 0.24), found(0.2, 0.3), found(0.55, 0.7)] == ["unclear"] * 3
    said = {(0.2, 0.3): "The model", (0.5, 0.7): "The data", (0.1, 0.9): "What bounds"}
    for costs, begin in said.items():
        text = str(dataclasses.replace(EXAMPLE, costs=costs))
        assert text.startswith(begin)
        assert "too close to tell" in text.splitlines()[0]


EXAMPLE = Diagnosis(*(Pace(10, 1000, seconds, 0, 0) for seconds in (1.0, 0.9, 0.75)))


def test_what_cannot_be_tested_is_refused(folder):
    with pytest.raises(ValueError, match="is not compiled"):
        diagnose(keras.Sequential([keras.layers.Dense(1)]), loader_of(folder))
    with pytest.raises(ValueError, match="max_seconds must be above 0, got 0"):
        diagnose(model_of(), loader_of(folder), max_seconds=0)
    with pytest.raises(TypeError, match=r"got a list\. Make a dataset of it: from_tensor_slices"):
        diagnose(model_of(), [])
    empty = tf.data.Dataset.from_tensor_slices((np.ones((4, 1)), np.ones((4, 1)))).batch(2).take(0)
    with pytest.raises(ValueError, match="the data has no batch"):
        diagnose(model_of(), empty)
