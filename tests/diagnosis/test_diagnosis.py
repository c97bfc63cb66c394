"""diagnose tells slow data from a heavy model, and leaves both as they were."""

import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.networks import dlrm_by_column
from lesson import measure_rates
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
from tfrecords import native_dataset, write_examples
from traces import ProfileSteps, read_trace
from tutorlib.callbacks import StallReport, ThroughputLogger
from tutorlib.columns import Chunk
from tutorlib.diagnosis import diagnose
from tutorlib.layers import keras_inputs
from tutorlib.schema import Column, Schema


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"))


def test_diagnose_from_the_top_is_the_function_after_its_module_was_imported():
    from tutorlib import diagnose as from_the_top

    assert from_the_top is diagnose


# ---- diagnose -----------------------------------------------------------------------------------


def test_slow_data_bounds_a_training(folder):
    found = diagnose(model_of(), slow_loader(folder))
    assert found.bound == "input"
    assert found.gain_without_input > 2 > found.gain_without_model >= 1
    assert found.wait_share > 0.5
    assert found.training.steps == found.data_alone.steps == ROWS // BATCH_SIZE
    assert found.training.rows == ROWS
    assert 0.25 <= found.training.first_wait_s <= found.training.wait_s <= found.training.elapsed_s
    assert str(found).startswith("The data bounds this training: data costs ")
    endless = diagnose(model_of(), slow_dataset(4, 0.25).repeat(), max_seconds=0.5)
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
    found = diagnose(model, loader_of(folder), max_seconds=5)
    assert found.bound == "model"
    assert found.gain_without_model > 2 > found.gain_without_input
    assert str(found).startswith("The model bounds this training: data costs ")


@pytest.mark.parametrize(
    ("model_s", "batch_s", "ahead", "bound", "cost"),
    [
        pytest.param(0.03, 0.15, 2, "input", 0.8, id="the reader is slower"),
        pytest.param(0.15, 0.03, 2, "model", 0.04, id="the model is slower"),
        pytest.param(0.12, 0.12, 4, "model", 0.1, id="equal, at the same time"),
        pytest.param(0.11, 0.09, 0, "both", 0.46, id="half and half, one after the other"),
    ],
)
def test_the_verdict_follows_from_what_data_costs_and_two_runs_give_one(
    model_s, batch_s, ahead, bound, cost
):
    model, dataset = sleeping(model_s, batch_s, ahead=ahead)
    for _ in range(2 if bound == "input" else 1):
        found = diagnose(model, dataset, max_seconds=4)
        print(found)
        assert found.bound == bound
        assert found.data_cost == pytest.approx(cost, abs=0.15)
        rates = [
            float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) rows/s", str(found))
        ]
        as_it_is, model_alone, data_alone = rates
        assert f"data costs {found.data_cost:.0%} of the time" in str(found)
        assert found.data_cost == pytest.approx(max(0, 1 - as_it_is / model_alone), abs=0.01)
        assert data_alone >= as_it_is


def test_diagnose_report_logger_rates_and_trace_agree_on_one_training(tmp_path):
    model, dataset = sleeping(0.08, 0.12, batches=6)
    report, logger = StallReport(dataset), ThroughputLogger()
    found = diagnose(model, dataset, max_seconds=3)
    model.fit(report.data, epochs=2, verbose=0, callbacks=[report, logger])
    rates = measure_rates({"training": (model, dataset)}, turns=3, at_least_s=0)
    model.fit(dataset, verbose=0, callbacks=[ProfileSteps(tmp_path, 2, 6)])
    trace, stall = read_trace(tmp_path), report.stalls[1]
    steps_s = {
        "diagnose": found.training.step_s,
        "StallReport": stall.elapsed_s / stall.steps,
        "ThroughputLogger": 32 / logger.epochs[1].samples_per_s,
        "measure_rates": 32 / rates["training"].median(),
        "trace": trace.length_ms / 1e3 / len(trace.steps),
    }
    assert steps_s == {name: pytest.approx(0.2, rel=0.3) for name in steps_s}
    assert found.wait_share == pytest.approx(0.6, abs=0.15)
    assert stall.share == pytest.approx(0.6, abs=0.15)
    assert trace.waiting.total_ms / trace.length_ms == pytest.approx(0.6, abs=0.15)


@pytest.fixture(scope="module")
def click_log(tmp_path_factory):
    """TFRecord of 65,536 rows with 13 counts and 26 ids, as in lesson 03, and their schema."""
    rng, rows = np.random.default_rng(0), 65_536
    columns = {f"I{n}": rng.standard_normal(rows).astype("float32") for n in range(1, 14)}
    columns |= {f"C{n}": rng.integers(0, 1_000, rows) for n in range(1, 27)}
    columns["label"] = rng.integers(0, 2, rows)
    numbers = [Column(f"I{n}", "continuous", "float32") for n in range(1, 14)]
    ids = [Column(f"C{n}", "categorical", cardinality=1_000, embedding_dim=8) for n in range(1, 27)]
    path = tmp_path_factory.mktemp("click_log") / "examples"
    write_examples(Chunk(columns), path, progress=False)
    return path, Schema([*numbers, *ids, Column("label", "label")])


def dlrm_of(schema, id_columns, step_s):
    """Return lesson 03's model over the first id columns; its steps also sleep some seconds."""
    chosen = Schema([*schema.continuous, *list(schema.categorical)[:id_columns]])
    inputs = keras_inputs(schema)
    used = {column.name: inputs[column.name] for column in chosen}
    used["I1"] = Sleeps(step_s)(used["I1"])
    model = keras.Model(inputs, dlrm_by_column(chosen, [32], [32])(used))
    model.compile(keras.optimizers.Adam(0.005), "binary_crossentropy")
    return model


@pytest.mark.slow  # half a minute each
@pytest.mark.parametrize(("id_columns", "step_s", "bound"), [(6, 0.0, "input"), (26, 0.5, "model")])
def test_two_runs_give_one_verdict_on_the_pipeline_of_lesson_03(
    click_log, id_columns, step_s, bound
):
    """Native TFRecord in batches of 4,096: far slower than a short step, far faster than a long."""
    path, schema = click_log
    dataset = native_dataset(path, 4_096, schema, seed=0)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(16))
    model = dlrm_of(schema, id_columns, step_s)
    found = [diagnose(model, dataset, max_seconds=2) for _ in range(2)]
    print(*found, sep="\n")
    assert [each.bound for each in found] == [bound, bound]
    for each in found:
        assert each.data_alone.step_s <= each.training.step_s
        assert each.data_cost == pytest.approx(1 - 1 / each.gain_without_input)


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


def test_what_cannot_be_tested_is_refused(folder):
    with pytest.raises(ValueError, match="is not compiled"):
        diagnose(keras.Sequential([keras.layers.Dense(1)]), loader_of(folder))
    with pytest.raises(ValueError, match="max_seconds must be above 0, got 0"):
        diagnose(model_of(), loader_of(folder), max_seconds=0)
    with pytest.raises(TypeError, match="got a list"):
        diagnose(model_of(), [])
    empty = tf.data.Dataset.from_tensor_slices((np.ones((4, 1)), np.ones((4, 1)))).batch(2).take(0)
    with pytest.raises(ValueError, match="the data has no batch"):
        diagnose(model_of(), empty)
