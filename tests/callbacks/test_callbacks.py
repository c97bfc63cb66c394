"""Throughput, validation and memory in the logs of real Keras trainings."""

import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from tutorlib.callbacks.memory import host_memory

from tests.support.training import FakeClock, StepsTake, compiled_model, data, fit
from tutorlib.callbacks import (
    KerasSequenceValidater,
    LoaderCheckpoint,
    MemoryLogger,
    ThroughputLogger,
)
from tutorlib.loader import KerasSequenceLoader


def test_throughput_is_rows_over_the_seconds_of_their_steps():
    clock = FakeClock()
    logger = ThroughputLogger(every_steps=2, clock=clock)
    history = fit([StepsTake(clock), logger])
    # First epoch without its first step: 54 rows in 4 steps of 0.5 s; then 70 rows in 5 steps.
    assert history["samples_per_s"] == pytest.approx([54 / 2, 70 / 2.5, 70 / 2.5])
    assert [epoch.rows for epoch in logger.epochs] == [54, 70, 70]
    # Windows of two steps, 16 rows a step, 6 in an epoch's last; unfinished ones are left out.
    rates = [window.samples_per_s for window in logger.windows]
    assert rates == [32.0, 22.0, 32.0, 32.0, 32.0, 32.0]
    assert [window.step for window in logger.windows] == [3, 5, 7, 9, 12, 14]


def test_throughput_excludes_validation_and_other_work_at_the_end_of_epochs():
    clock = FakeClock()
    logger = ThroughputLogger(clock=clock)
    slow = StepsTake(clock, validation_s=50.0, epoch_end_s=70.0)
    history = fit([slow, logger], validation_data=data(200, seed=1))
    assert history["samples_per_s"] == pytest.approx([54 / 2, 70 / 2.5, 70 / 2.5])


@pytest.mark.parametrize("first", ["logger", "validater"])
def test_throughput_and_validation_do_not_depend_on_their_order(first):
    clock, valid = FakeClock(), data(200, seed=1)
    pair = [ThroughputLogger(clock=clock), KerasSequenceValidater(valid)]
    history = fit([StepsTake(clock), *(pair if first == "logger" else pair[::-1])], epochs=2)
    assert history["samples_per_s"] == pytest.approx([54 / 2, 70 / 2.5])
    assert len(history["val_loss"]) == 2


def test_the_step_counts_on_over_epochs_and_fits(tmp_path):
    model, clock = compiled_model(), FakeClock()
    logger = ThroughputLogger(every_steps=1, clock=clock)
    for _ in range(2):
        fit([StepsTake(clock), logger], epochs=1, model=model)
    assert [window.step for window in logger.windows] == [2, 3, 4, 5, 7, 8, 9, 10]
    assert [epoch.step for epoch in logger.epochs] == [5, 10]
    assert [epoch.samples_per_s for epoch in logger.epochs] == [27.0, 27.0]


def test_an_epoch_of_one_compiling_step_has_no_throughput():
    history = fit([ThroughputLogger()], epochs=2, rows=10)
    assert np.isnan(history["samples_per_s"][0])
    assert history["samples_per_s"][1] > 0


def test_throughput_counts_rows_of_several_steps_per_execution():
    clock = FakeClock()
    logger = ThroughputLogger(clock=clock)
    model = compiled_model(steps_per_execution=2)
    fit([StepsTake(clock), logger], model=model, rows=96)
    assert [epoch.rows for epoch in logger.epochs] == [64, 96, 96]


def test_an_epoch_that_is_stopped_early_has_the_throughput_of_its_steps():
    clock = FakeClock()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    history = fit([StepsTake(clock), Stop(), ThroughputLogger(clock=clock)])
    assert history["samples_per_s"] == pytest.approx([32 / 1.0])


def test_rows_are_counted_beyond_what_a_float32_can_count():
    class AsInALongEpoch(keras.callbacks.Callback):
        """Sets the count to two billion rows, where a float32 stops growing."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                loss = next(metric for metric in self.model.metrics if metric.name == "loss")
                loss.count.assign(2**31)

    clock = FakeClock()
    logger = ThroughputLogger(every_steps=1, clock=clock)
    fit([AsInALongEpoch(), StepsTake(clock), logger], epochs=2, rows=80)
    assert [epoch.rows for epoch in logger.epochs] == [64, 80]
    assert {window.rows for window in logger.windows} == {16}


THROUGHPUT_ON_JAX = """
import json, sys
import keras
import numpy as np
from tutorlib.callbacks import ThroughputLogger

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
logger = ThroughputLogger(every_steps=1)
model.fit(np.zeros((70, 3)), np.zeros(70), batch_size=16, epochs=2, verbose=0, callbacks=[logger])
rows = [epoch.rows for epoch in logger.epochs], [window.rows for window in logger.windows]
print(json.dumps([*rows, [epoch.step for epoch in logger.epochs], "tensorflow" in sys.modules]))
"""


def test_throughput_counts_rows_on_jax_too():
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed: pip install jax")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", THROUGHPUT_ON_JAX]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    epochs, windows, steps, tensorflow = json.loads(done.stdout.splitlines()[-1])
    assert epochs == [54, 70]
    assert windows == [16, 16, 16, 6, 16, 16, 16, 16, 6]
    assert steps == [5, 10]
    assert not tensorflow


def test_throughput_by_the_real_clock_is_positive():
    logger = ThroughputLogger()
    history = fit([logger])
    assert [epoch.rows for epoch in logger.epochs] == [54, 70, 70]
    assert min(history["samples_per_s"]) > 0


def test_tensorboard_gets_windows_and_epochs_by_step(tmp_path):
    clock = FakeClock()
    fit([StepsTake(clock), ThroughputLogger(tmp_path, every_steps=2, clock=clock)], epochs=2)
    (path,) = tmp_path.iterdir()
    found = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            figures = found.setdefault(value.tag, [])
            figures.append((event.step, float(tf.make_ndarray(value.tensor))))
    assert found["samples_per_s"] == [(3, 32.0), (5, 22.0), (7, 32.0), (9, 32.0)]
    assert found["epoch_samples_per_s"] == [(5, 27.0), (10, 28.0)]


def test_throughput_refuses_what_it_cannot_measure():
    with pytest.raises(ValueError, match="every_steps must be at least 1, got 0"):
        ThroughputLogger(every_steps=0)

    class OwnStep(keras.Sequential):
        def train_step(self, batch):
            return {"loss": tf.reduce_mean(batch[0])}

    model = OwnStep([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="train_step of your own must update it"):
        fit([ThroughputLogger()], model=model)


def test_validater_logs_what_evaluate_and_validation_data_give():
    valid = data(75, seed=3)

    def model_with_metrics():
        return compiled_model(metrics=["accuracy", keras.metrics.AUC(name="auc")])

    model = model_with_metrics()
    history = fit([KerasSequenceValidater(valid)], model=model, epochs=2)
    expected = model.evaluate(valid, return_dict=True, verbose=0)
    assert sorted(expected) == ["accuracy", "auc", "loss"]
    assert {name: history[f"val_{name}"][-1] for name in expected} == expected
    built_in = fit([], validation_data=valid, model=model_with_metrics(), epochs=2)
    assert history == built_in  # the training figures too, in every epoch


def test_later_callbacks_see_the_metrics_of_the_validater():
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    history = fit([KerasSequenceValidater(data(seed=3)), stop], epochs=9)
    assert len(history["val_loss"]) == 2


def test_validater_takes_a_prefix_and_refuses_a_taken_one():
    pair = [KerasSequenceValidater(data()), KerasSequenceValidater(data(seed=4), prefix="test_")]
    history = fit(pair, epochs=1)
    assert set(history) == {"loss", "val_loss", "test_loss"}
    with pytest.raises(ValueError, match=r"already hold .*'val_loss'"):
        fit([KerasSequenceValidater(data())], epochs=1, validation_data=data())


def test_validation_on_the_training_loader_changes_neither_its_epochs_nor_the_weights(tmp_path):
    x = np.random.default_rng(0).normal(size=200).astype("float32")
    table = pa.table({"x": x, "label": (x > 0).astype("int32")})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)

    def losses(validated):
        keras.utils.set_random_seed(0)
        inputs = {"x": keras.Input((1,), name="x")}
        model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs["x"]))
        model.compile("sgd", "binary_crossentropy")
        loader = KerasSequenceLoader(tmp_path, 16, label_names=["label"], seed=1)
        callbacks = [KerasSequenceValidater(loader)] if validated else []
        history = model.fit(loader, epochs=3, verbose=0, callbacks=callbacks).history
        assert loader.epoch == 3
        return history["loss"]

    assert losses(validated=True) == losses(validated=False)


# --- MemoryLogger -------------------------------------------------------------------------------


class Hold(keras.callbacks.Callback):
    """Holds 256 MiB in the second epoch only."""

    def on_epoch_begin(self, epoch, logs=None):
        self.held = np.ones(2**28 if epoch == 1 else 1, "uint8")


def test_memory_is_the_resident_set_of_the_process_and_its_peak():
    before = host_memory()["host_peak_mib"]  # of the tests that ran in this process
    history = fit([Hold(), MemoryLogger()], epochs=3)
    used, peak = history["host_mib"], history["host_peak_mib"]
    assert used[1] - used[0] > 200
    assert used[1] - used[2] > 200
    # The operating system counts in coarse steps.
    assert used[1] - 50 < peak[2] < max(before, used[1]) + 100
    assert used[2] == pytest.approx(psutil.Process().memory_info().rss / 2**20, abs=100)
    assert bool(tf.config.list_physical_devices("GPU")) == ("gpu_mib" in history)


@pytest.mark.gpu
def test_gpu_memory_is_what_tensors_hold():
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a GPU that TensorFlow sees")
    before = fit([MemoryLogger()], epochs=1)
    with tf.device("GPU:0"):
        held = tf.ones((64, 2**20))
    after = fit([MemoryLogger()], epochs=1)
    assert after["gpu_mib"][0] - before["gpu_mib"][0] == pytest.approx(256, abs=16)
    assert after["gpu_peak_mib"][0] >= after["gpu_mib"][0]
    del held


def test_a_batch_size_in_the_place_of_a_path_is_refused():
    with pytest.raises(TypeError, match=r"log_dir must be a path, got 65536\. Throughput"):
        ThroughputLogger(65536)
    with pytest.raises(TypeError, match=r"path must be a path, got 65536\. .*\(folder, loader\)"):
        LoaderCheckpoint(65536, None)
