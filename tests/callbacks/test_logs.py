"""Throughput, stalls and validation in the logs of real Keras trainings."""

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.training import (
    FakeClock,
    StepsTake,
    compiled_model,
    data,
    fit,
    loader_of,
    model_of,
    slow_loader,
    write_rows,
)
from tutorlib.callbacks import (
    KerasSequenceValidater,
    Stall,
    StallReport,
    ThroughputLogger,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"))


# ---- ThroughputLogger ---------------------------------------------------------------------------


def test_throughput_is_rows_over_the_seconds_of_their_steps():
    """Validation and other work at the end of an epoch do not count."""
    clock = FakeClock()
    slow = StepsTake(clock, validation_s=50.0, epoch_end_s=70.0)
    history = fit([slow, ThroughputLogger(clock), KerasSequenceValidater(data(200, seed=1))])
    # First epoch without its first step: 54 rows in 4 steps of 0.5 s; then 70 rows in 5 steps.
    assert history["samples_per_s"] == pytest.approx([54 / 2, 70 / 2.5, 70 / 2.5])


def test_throughput_counts_rows_of_several_steps_per_execution_and_of_stopped_epochs():
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = self.epoch == 2 and batch == 3

    clock, model = FakeClock(), compiled_model(steps_per_execution=2)
    history = fit([StepsTake(clock), Stop(), ThroughputLogger(clock)], model=model, rows=96)
    assert history["samples_per_s"] == pytest.approx([64 / 1.0, 96 / 1.5, 64 / 1.0])
    history = fit([ThroughputLogger()], epochs=2, rows=10)  # one step, which compiles
    assert np.isnan(history["samples_per_s"][0])
    assert history["samples_per_s"][1] > 0


def test_rows_are_counted_beyond_what_a_float32_can_count():
    class AsInALongEpoch(keras.callbacks.Callback):
        """Sets the count to two billion rows, where a float32 stops growing."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                loss = next(metric for metric in self.model.metrics if metric.name == "loss")
                loss.count.assign(2**31)

    clock = FakeClock()
    used = [AsInALongEpoch(), StepsTake(clock), ThroughputLogger(clock)]
    assert fit(used, epochs=2, rows=80)["samples_per_s"] == pytest.approx([64 / 2, 80 / 2.5])


def test_throughput_refuses_what_it_cannot_measure():
    class OwnStep(keras.Sequential):
        def train_step(self, batch):
            return {"loss": tf.reduce_mean(batch[0])}

    model = OwnStep([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match="train_step of your own must update it"):
        fit([ThroughputLogger()], model=model)


# ---- StallReport --------------------------------------------------------------------------------


def slow_data(clock, wait_s=2.0, first_s=7.0, batches=5):
    """Return a dataset whose batches take seconds of a fake clock, the first of an epoch more."""

    def rows():
        for number in range(batches):
            clock.now += first_s if number == 0 else wait_s
            yield np.ones((16, 3), "float32"), np.ones((16, 1), "float32")

    kind = tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # a batch is made when asked for
    dataset = tf.data.Dataset.from_generator(rows, output_signature=kind).with_options(options)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches))


def test_a_stall_is_the_waiting_time_over_the_time_of_the_epoch():
    clock = FakeClock()
    report = StallReport(slow_data(clock), clock=clock)
    slow = StepsTake(clock, validation_s=50.0, epoch_end_s=70.0)
    options = {"epochs": 2, "verbose": 0, "callbacks": [slow, report]}
    history = compiled_model().fit(report.data, validation_data=data(), **options).history
    # 7 s for the first batch and 2 s for each of four more; steps of 0.5 s each, without
    # the one of 100 s that compiles.
    assert report.stalls == [
        Stall(0, 5, 15.0 + 4 * 0.5, 15.0, 7.0, {}),
        Stall(1, 5, 15.0 + 5 * 0.5, 15.0, 7.0, {}),
    ]
    assert history["stall"] == pytest.approx([15 / 17, 15 / 17.5])


def test_only_the_step_that_compiles_is_left_out_of_a_stall():
    clock, model = FakeClock(), compiled_model()
    report = StallReport(slow_data(clock), clock=clock)
    for _ in range(2):  # in the second `fit`, the model is compiled
        slow = StepsTake(clock, compile_s=0.5)
        model.fit(report.data, verbose=0, callbacks=[slow, report])
    model.compile("sgd", "mse")
    model.fit(report.data, verbose=0, callbacks=[StepsTake(clock), report])
    assert [stall.elapsed_s for stall in report.stalls] == [17.0, 17.5, 17.0]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("of_dataset", [False, True])
@pytest.mark.parametrize("steps", [1, 11])
def test_an_epoch_of_batches_that_were_ready_before_it_has_a_stall(folder, steps, of_dataset):
    """The loader converts all 8 batches of its epoch at once; `fit` has epochs of its own."""
    loader, valid = loader_of(folder), loader_of(folder)
    report = StallReport(data(128) if of_dataset else loader, clock=FakeClock())
    options = {"steps_per_epoch": steps, "validation_data": data() if of_dataset else valid}
    callbacks = [report, *([] if of_dataset else [StallReport(loader)])]
    model = compiled_model() if of_dataset else model_of()
    for _ in range(2):
        model.fit(report.data, epochs=5, verbose=0, callbacks=callbacks, **options)
    assert [stall.epoch for stall in report.stalls] == [*range(5)] * 2
    assert all(1 <= stall.steps <= steps for stall in report.stalls)


def test_the_stall_of_a_loader_with_a_slow_transform_is_in_transform(folder, tmp_path):
    loader = slow_loader(folder)
    report = StallReport(loader)
    assert report.data is loader
    written = keras.callbacks.CSVLogger(tmp_path / "logs.csv")
    logs = model_of().fit(report.data, epochs=2, verbose=0, callbacks=[report, written]).history
    for stall in report.stalls:
        assert stall.steps == 8
        assert 0.1 <= stall.first_wait_s <= stall.wait_s <= stall.elapsed_s
        assert stall.by_stage["transform"] > 0.8 * stall.share
        assert sum(stall.by_stage.values()) == pytest.approx(stall.share)
    rows = list(csv.DictReader((tmp_path / "logs.csv").open()))
    assert [float(row["stall"]) for row in rows] == pytest.approx(logs["stall"])


def test_data_that_fit_does_not_train_on_is_refused(folder):
    with pytest.raises(RuntimeError, match="without a batch from the data of StallReport"):
        fit([StallReport(data())])
    with pytest.raises(RuntimeError, match="Give fit what StallReport has as its `data`"):
        model_of().fit(loader_of(folder), callbacks=[StallReport(loader_of(folder))], verbose=0)
    with pytest.raises(
        TypeError, match=r"a KerasSequenceLoader or a tf.data.Dataset of batches, got a list"
    ):
        StallReport([1, 2])


# ---- KerasSequenceValidater ---------------------------------------------------------------------


def test_validater_logs_what_validation_data_gives_for_later_callbacks_to_see():
    valid = data(75, seed=3)
    models = [compiled_model(metrics=["accuracy", keras.metrics.AUC(name="auc")]) for _ in "12"]
    stop = [keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9)]
    history = fit([KerasSequenceValidater(valid), *stop], model=models[0], epochs=9)
    assert history == fit(stop, validation_data=valid, model=models[1], epochs=9)
    assert len(history["val_auc"]) == 2


def test_validater_refuses_names_that_are_taken():
    with pytest.raises(ValueError, match=r"already hold .*'val_loss'"):
        fit([KerasSequenceValidater(data())], epochs=1, validation_data=data())


def test_validation_on_the_training_loader_changes_neither_its_epochs_nor_the_weights(folder):
    def losses(validated):
        loader, model = loader_of(folder, seed=1), model_of()
        used = [KerasSequenceValidater(loader)] if validated else []
        history = model.fit(loader, epochs=3, verbose=0, callbacks=used).history
        assert loader.epoch == 3
        return history["loss"]

    assert losses(validated=True) == losses(validated=False)
