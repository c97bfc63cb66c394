"""StallReport reports the share of an epoch that the training waits for data, by stage."""

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
from tutorlib.callbacks import Stall, StallReport


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"))


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
    assert not [name for name in history if name.startswith("stall_")]
    assert str(report.stalls[1]).startswith(
        "epoch 1: 86% of 17.50 s waiting for data, 7.00 s of it"
    )


def test_the_step_that_compiles_does_not_count_but_the_wait_for_its_batch_does():
    clock, model = FakeClock(), compiled_model()
    report = StallReport(slow_data(clock), clock=clock)
    for _ in range(2):
        steps = StepsTake(clock)
        model.fit(report.data, verbose=0, callbacks=[steps, report])
    assert [stall.elapsed_s for stall in report.stalls] == [17.0, 17.0]


def test_the_stall_of_a_loader_with_a_slow_transform_is_in_transform(folder, tmp_path):
    loader = slow_loader(folder)
    report = StallReport(loader)
    assert report.data is loader
    written = keras.callbacks.CSVLogger(tmp_path / "logs.csv")
    logs = model_of().fit(report.data, epochs=2, verbose=0, callbacks=[report, written]).history
    for stall in report.stalls:
        assert stall.steps == 8
        assert 0.25 <= stall.first_wait_s <= stall.wait_s <= stall.elapsed_s
        assert set(stall.stages) == {"read", "transform", "scatter", "convert"}
        assert stall.by_stage["transform"] > 0.8 * stall.share
        assert sum(stall.by_stage.values()) == pytest.approx(stall.share)
    assert "transform" in str(report.stalls[0])
    with open(tmp_path / "logs.csv") as file:
        rows = list(csv.DictReader(file))
    stages = ["stall_read", "stall_transform", "stall_scatter", "stall_convert"]
    for name in ["stall", *stages]:
        assert [float(row[name]) for row in rows] == pytest.approx(logs[name])


def test_an_epoch_without_work_of_the_loader_has_no_stall_by_stage():
    assert Stall(0, 3, 1.0, 0.1, 0.0, {"read": 0.0}).by_stage == {"read": 0.0}


def test_data_that_fit_does_not_train_on_is_refused(folder):
    with pytest.raises(RuntimeError, match="without a batch from the data of StallReport"):
        fit([StallReport(data())])
    with pytest.raises(RuntimeError, match="Give fit what StallReport has as its `data`"):
        model_of().fit(loader_of(folder), callbacks=[StallReport(loader_of(folder))], verbose=0)
    with pytest.raises(TypeError, match=r"a KerasSequenceLoader or a tf.data.Dataset, got a list"):
        StallReport([1, 2])
