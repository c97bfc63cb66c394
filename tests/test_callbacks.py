"""Callbacks inside real Keras training, with a clock that only the test moves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tutorlib.callbacks import KerasSequenceValidater, ThroughputLogger


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
    with pytest.raises(RuntimeError, match="train_step of one's own must update it"):
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
