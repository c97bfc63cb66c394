"""Callbacks inside real Keras training, with a clock that only the test moves."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import time

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from tutorlib.callbacks import (
    KerasSequenceValidater,
    MemoryLogger,
    Stall,
    StallReport,
    ThroughputLogger,
)
from tutorlib.callbacks.memory import host_memory
from tutorlib.chunk import Chunk
from tutorlib.keras_bridge import TimedBatches
from tutorlib.loader import KerasSequenceLoader
from tutorlib.parquet import ParquetSink


class FakeClock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class StepsTake(keras.callbacks.Callback):
    """Lets each training step take some seconds of a fake clock, the first one many."""

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
    """tf.data of batches, the last one smaller: 70 rows are 4 batches of 16 and one of 6."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def compiled_model(**kwargs):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", **kwargs)
    return model


def fit(callbacks, epochs=3, model=None, rows=70, **kwargs):
    model = model or compiled_model()
    return model.fit(data(rows), epochs=epochs, verbose=0, callbacks=callbacks, **kwargs).history


def test_throughput_is_real_rows_over_the_seconds_of_steps():
    clock = FakeClock()
    logger = ThroughputLogger(every_steps=2, clock=clock)
    history = fit([StepsTake(clock), logger])
    # First epoch without its first step: 54 rows in 4 steps of 0.5 s; then 70 rows in 5 steps.
    assert history["samples_per_s"] == pytest.approx([54 / 2, 70 / 2.5, 70 / 2.5])
    assert [epoch.rows for epoch in logger.epochs] == [54, 70, 70]
    # Windows of two steps, 16 rows a step and 6 in an epoch's last; an unfinished one is left out.
    rates = [window.samples_per_s for window in logger.windows]
    assert rates == [32.0, 22.0, 32.0, 32.0, 32.0, 32.0]
    assert [window.step for window in logger.windows] == [3, 5, 7, 9, 12, 14]


def test_throughput_leaves_out_validation_and_the_ends_of_epochs():
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


def test_the_step_goes_on_over_epochs_and_fits(tmp_path):
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


def test_throughput_of_an_epoch_that_is_stopped_early():
    clock = FakeClock()

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 2

    history = fit([StepsTake(clock), Stop(), ThroughputLogger(clock=clock)])
    assert history["samples_per_s"] == pytest.approx([32 / 1.0])


def test_rows_are_counted_where_the_metric_of_keras_no_longer_can():
    class AsInALongEpoch(keras.callbacks.Callback):
        """Lets the second step find two billion rows behind it: the float32 stands still there."""

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


def test_validater_equals_evaluate_and_validation_data():
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


def test_other_callbacks_see_the_validaters_figures():
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)
    history = fit([KerasSequenceValidater(data(seed=3)), stop], epochs=9)
    assert len(history["val_loss"]) == 2


def test_validater_takes_a_prefix_and_refuses_a_taken_one():
    pair = [KerasSequenceValidater(data()), KerasSequenceValidater(data(seed=4), prefix="test_")]
    history = fit(pair, epochs=1)
    assert set(history) == {"loss", "val_loss", "test_loss"}
    with pytest.raises(ValueError, match=r"already hold .*'val_loss'"):
        fit([KerasSequenceValidater(data())], epochs=1, validation_data=data())


# --- StallReport --------------------------------------------------------------------------------


def slow_data(clock, wait_s=2.0, first_s=7.0, batches=5):
    """tf.data whose batches take seconds of a fake clock, the first of an epoch more."""

    def rows():
        for number in range(batches):
            clock.now += first_s if number == 0 else wait_s
            yield np.ones((16, 3), "float32"), np.ones((16, 1), "float32")

    kind = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = (
        False  # a batch is made when it is asked for
    )
    dataset = tf.data.Dataset.from_generator(rows, output_signature=kind).with_options(options)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def test_stalls_are_the_seconds_of_waiting_over_those_of_the_epoch():
    clock = FakeClock()
    report = StallReport(slow_data(clock), clock=clock)
    slow = StepsTake(clock, validation_s=50.0, epoch_end_s=70.0)
    options = {"epochs": 2, "verbose": 0, "callbacks": [slow, report]}
    history = compiled_model().fit(report.data, validation_data=data(), **options).history
    # 7 s for the first batch and 2 s for each of four more; steps of 0.5 s, but the one of 100 s
    # that compiles.
    assert report.stalls == [
        Stall(0, 5, 15.0 + 4 * 0.5, 15.0, 7.0, {}),
        Stall(1, 5, 15.0 + 5 * 0.5, 15.0, 7.0, {}),
    ]
    assert history["stall"] == pytest.approx([15 / 17, 15 / 17.5])
    assert not [name for name in history if name.startswith("stall_")]
    assert str(report.stalls[1]).startswith(
        "epoch 1: 86% of 17.50 s waiting for data, 7.00 s of it"
    )


def test_each_fit_leaves_out_its_first_step_but_not_the_wait_for_its_batch():
    clock, model = FakeClock(), compiled_model()
    report = StallReport(slow_data(clock), clock=clock)
    for _ in range(2):
        steps = StepsTake(clock)
        model.fit(report.data, verbose=0, callbacks=[steps, report])
    assert [stall.elapsed_s for stall in report.stalls] == [17.0, 17.0]


@pytest.fixture
def folder(tmp_path):
    """Parquet files of 4 row groups of 64 rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(256).astype("float32")
    with ParquetSink(tmp_path / "train.parquet", row_group_rows=64) as sink:
        sink.write(Chunk({"x": x, "label": (x > 0).astype("float32")}))
    return tmp_path


def loader_of(folder, **options):
    names = {"cat_names": [], "cont_names": ["x"], "label_names": ["label"]}
    return KerasSequenceLoader(folder / "train.parquet", 32, **names, **options)


def model_of_x(**options):
    inputs = {"x": keras.Input((1,), name="x")}
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(inputs["x"]))
    model.compile("sgd", "binary_crossentropy", **options)
    return model


def slowly(chunk):
    """Return the chunk, after half a second."""
    time.sleep(0.5)
    return chunk


def test_a_loader_that_transforms_slowly_is_reported_as_such(folder, tmp_path):
    one_after_the_other = {"reader_kwargs": {"threads": 1}, "buffer_size": 64, "parts_per_chunk": 1}
    loader = loader_of(folder, **one_after_the_other).map(slowly)
    report = StallReport(loader)
    assert report.data is loader
    written = keras.callbacks.CSVLogger(tmp_path / "logs.csv")
    logs = model_of_x().fit(report.data, epochs=2, verbose=0, callbacks=[report, written]).history
    for stall in report.stalls:
        assert stall.steps == 8
        assert 0.5 <= stall.first_wait_s <= stall.wait_s <= stall.elapsed_s
        assert set(stall.stages) == {"read", "transform", "scatter", "convert"}
        assert stall.by_stage["transform"] > 0.8 * stall.share
        assert sum(stall.by_stage.values()) == pytest.approx(stall.share)
    assert "transform" in str(report.stalls[0])
    with open(tmp_path / "logs.csv") as file:
        rows = list(csv.DictReader(file))
    stages = ["stall_read", "stall_transform", "stall_scatter", "stall_convert"]
    for name in ["stall", *stages]:
        assert [float(row[name]) for row in rows] == pytest.approx(logs[name])


def test_stalls_of_an_epoch_in_which_nothing_was_read_have_no_stage():
    assert Stall(0, 3, 1.0, 0.1, 0.0, {"read": 0.0}).by_stage == {"read": 0.0}


def test_stall_report_tells_if_fit_trains_on_something_else(folder):
    with pytest.raises(RuntimeError, match="without a batch from the data of StallReport"):
        fit([StallReport(data())])
    with pytest.raises(RuntimeError, match="Give fit what StallReport has as its `data`"):
        model_of_x().fit(loader_of(folder), callbacks=[StallReport(loader_of(folder))], verbose=0)
    with pytest.raises(TypeError, match=r"a KerasSequenceLoader or a tf.data.Dataset, got a list"):
        StallReport([1, 2])


# --- TimedBatches -------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("steps_per_execution", [1, 3])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_timed_batches_train_as_the_dataset_does(known, steps_per_execution):
    dataset = data() if known else data().filter(lambda x, y: True)
    timed = TimedBatches.of_dataset(dataset)
    model = compiled_model(steps_per_execution=steps_per_execution)
    plain = compiled_model(steps_per_execution=steps_per_execution)
    given = model.fit(timed, epochs=2, verbose=0, shuffle=False).history["loss"]
    assert given == pytest.approx(plain.fit(dataset, epochs=2, verbose=0).history["loss"])
    assert timed.batches == 10
    assert timed.wait_s > 0


def test_timed_batches_go_on_over_epochs_of_steps():
    timed = TimedBatches.of_dataset(data().repeat())
    compiled_model().fit(timed, epochs=3, steps_per_epoch=2, verbose=0)
    assert timed.batches == 6


def test_timed_batches_refuse_what_keras_would_ignore():
    timed = TimedBatches.of_dataset(data())
    for given in ({"class_weight": {0: 1.0}}, {"batch_size": 8}, {"sample_weight": np.ones(70)}):
        with pytest.raises(ValueError, match=f"{next(iter(given))}.* beside timed batches has"):
            compiled_model().fit(timed, verbose=0, **given)
    with (
        tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
        pytest.raises(ValueError, match=r"needs the tf\.data\.Dataset itself"),
    ):
        TimedBatches.of_dataset(data())


# --- MemoryLogger -------------------------------------------------------------------------------


class Hold(keras.callbacks.Callback):
    """Holds 256 MiB in the second epoch only."""

    def on_epoch_begin(self, epoch, logs=None):
        self.held = np.ones(2**28 if epoch == 1 else 1, "uint8")


def test_memory_is_that_of_the_process_now_and_at_its_peak():
    before = host_memory()["host_peak_mib"]  # of the tests that ran in this process
    history = fit([Hold(), MemoryLogger()], epochs=3)
    used, peak = history["host_mib"], history["host_peak_mib"]
    assert used[1] - used[0] > 200
    assert used[1] - used[2] > 200
    # The system itself counts in rough steps.
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
